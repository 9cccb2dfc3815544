import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kfit.cluster import rendezvous as module
from kfit.cluster import sockets
from kfit.cluster.address_lists import addresses_by_name
from kfit.cluster.cluster import Cluster, ClusterError, Task
from kfit.cluster.rendezvous import RendezvousError, rendezvous
from kfit.supervisor.local import free_ports

# Many times what a rendezvous takes once all are up.
SOON = 15.0
LATER = 2 * SOON


def make_clusters(count: int, host: str = "localhost") -> list[Cluster]:
    addresses = tuple(f"{host}:{port}" for port in free_ports(count))
    return [Cluster({"worker": addresses}, Task("worker", i)) for i in range(count)]


@pytest.fixture
def start() -> Iterator[Callable[..., Future[None]]]:
    """Starts a rendezvous in a thread of its own; all must end before the test does."""
    with ThreadPoolExecutor(32) as pool:

        def submit(cluster: Cluster, timeout: float = SOON, delay: float = 0.0) -> Future[None]:
            def run() -> None:
                time.sleep(delay)
                rendezvous(cluster, timeout)

            return pool.submit(run)

        yield submit


def port_of(cluster: Cluster) -> int:
    return int(cluster.address.rpartition(":")[2])


def bind_like_grpc(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))
    server.listen()
    return server


@contextmanager
def connection_to(cluster: Cluster) -> Iterator[socket.socket]:
    deadline = time.monotonic() + SOON
    while True:
        try:
            connection = socket.create_connection(("localhost", port_of(cluster)), timeout=SOON)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with connection:
        yield connection


SECRET = "0123456789abcdef"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the run a secret."""
    monkeypatch.setenv("KFIT_SECRET", SECRET)


def say(task: Cluster, key: str | None = None, **changed: Any) -> bytes:
    """Speaks the protocol to a task as a process that the test makes up; returns the reply."""
    key = os.environ.get("KFIT_SECRET", "") if key is None else key
    hello = module._Hello(
        sender="worker 1",
        receiver=str(task.task),
        cluster=sockets.digest(task),
        workers=task.num_workers,
        addresses=addresses_by_name(task),
        source="",
        incarnation="made up",
        turn=0,
        waits_for=("worker 0",),
    )
    return ask(task, lambda greeting: replace(hello, **changed).encode(key.encode(), greeting))


def _signed(content: bytes, greeting: bytes) -> bytes:
    return module._Hello.signed(content, b"", greeting)


def ask(task: Cluster, question: Callable[[bytes], bytes]) -> bytes:
    """Greets a task, sends it the question that is made from its greeting; returns the reply."""
    with connection_to(task) as connection:
        connection.sendall(module._Hello.greeting())
        lines = connection.makefile("rb")
        connection.sendall(question(lines.readline()))
        return lines.readline()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", socket.gethostname()])
def test_workers_meet_and_free_their_ports(start: Any, host: str) -> None:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        pytest.skip("this host cannot resolve its own name")
    clusters = make_clusters(3, host)
    for meeting in [start(cluster) for cluster in clusters]:
        meeting.result(LATER)
    with ExitStack() as held:
        for cluster in clusters:
            held.enter_context(bind_like_grpc(port_of(cluster)))


def test_each_port_is_free_the_moment_its_rendezvous_returns() -> None:
    clusters = make_clusters(2)

    def meet_and_bind(cluster: Cluster) -> None:
        rendezvous(cluster, SOON)
        bind_like_grpc(port_of(cluster)).close()

    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(meet_and_bind, clusters))


@pytest.mark.long
def test_all_of_many_meet_whenever_they_come(start: Any) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        meetings = [start(cluster, delay=chance.random() / 2) for cluster in make_clusters(8)]
        for meeting in meetings:
            meeting.result(LATER)


@pytest.mark.long
def test_waits_for_a_late_peer(start: Any) -> None:
    first, second = make_clusters(2)
    begin = time.monotonic()
    early, late = start(first), start(second, delay=1.0)
    early.result(LATER)
    late.result(LATER)
    assert time.monotonic() - begin >= 1.0


def test_one_worker_needs_nobody() -> None:
    (cluster,) = make_clusters(1)
    rendezvous(cluster, 0.1)


def test_leaves_no_thread_behind(start: Any) -> None:
    meetings = [start(cluster) for cluster in make_clusters(3)]
    for meeting in meetings:
        meeting.result(LATER)
    assert not any(t.name == "kfit answers" for t in threading.enumerate())
    deadline = time.monotonic() + SOON
    while any("_call_until_done" in t.name for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_names_every_missing_peer_at_the_deadline(start: Any) -> None:
    clusters = make_clusters(4)
    begin = time.monotonic()
    meeting, _ = start(clusters[0], timeout=1.5), start(clusters[3], timeout=1.5)
    error = meeting.exception(LATER)
    assert 1.5 <= time.monotonic() - begin < 1.5 + SOON
    assert isinstance(error, RendezvousError)
    message = str(error)
    assert "worker 0 waited 1.5 s" in message
    assert f"worker 1 at {clusters[1].address}: nothing listens there" in message
    assert f"worker 2 at {clusters[2].address}: nothing listens there" in message
    assert f"worker 3 at {clusters[3].address}: it is up, but waits for worker 1" in message
    assert "2 of 3 did not answer" in message
    assert "or the environment variable KFIT_START_TIMEOUT." in message


def test_says_while_it_waits_whom_it_waits_for(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(module, "_NOTICE_INTERVAL", 0.3)
    cluster = make_clusters(6)[0]
    with pytest.raises(RendezvousError):
        rendezvous(cluster, 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 3
    first = rf"kfit: worker 0 waits for worker 1 at {cluster.peers[0][1]}: .*; and 2 more"
    assert re.match(first + r" \(0 s of 1\)$", lines[0])


@pytest.mark.long
def test_says_while_it_waits_what_is_wrong_with_a_caller(
    monkeypatch: Any, capsys: Any, start: Any
) -> None:
    """A caller may be a stranger, unless the run has a secret, so that the wait goes on."""
    monkeypatch.setattr(module, "_NOTICE_INTERVAL", 0.5)
    cluster = make_clusters(2)[0]
    meeting = start(cluster, timeout=2.0)
    say(cluster, cluster="of other addresses")
    assert isinstance(meeting.exception(LATER), RendezvousError)
    told = (
        "the process that calls from 127.0.0.1 is worker 1 of another cluster: "
        "its TF_CONFIG (or KFIT_WORKERS) lists other addresses than that of this task, worker 0, "
        f"which lists {', '.join(cluster.addresses['worker'])}; "
    )
    lines = capsys.readouterr().err.splitlines()
    assert sum(told in line for line in lines) == 1
    assert sum("worker 0 waits for worker 1" in line for line in lines) >= 2


def test_names_what_describes_the_cluster(monkeypatch: Any) -> None:
    clusters = make_clusters(2)
    monkeypatch.setenv("KFIT_WORKERS", ",".join(clusters[0].addresses["worker"]))
    monkeypatch.setenv("KFIT_INDEX", "0")
    with pytest.raises(
        RendezvousError, match="Start the missing tasks, with the same addresses in KFIT_WORKERS"
    ):
        rendezvous(clusters[0], 0.5)
    with bind_like_grpc(port_of(clusters[0])), pytest.raises(ClusterError, match="in KFIT_WORKERS"):
        rendezvous(clusters[0], 0.5)


def test_names_a_host_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    (port,) = free_ports(1)
    cluster = Cluster({"worker": (f"localhost:{port}", "nowhere.invalid:1")}, Task("worker", 0))
    with pytest.raises(RendezvousError, match=r"worker 1 at nowhere\.invalid:1.*not.* resolved"):
        rendezvous(cluster, 0.3)


def test_names_a_port_that_is_taken() -> None:
    cluster, _ = make_clusters(2)
    with bind_like_grpc(port_of(cluster)):
        begin = time.monotonic()
        with pytest.raises(RendezvousError) as caught:
            rendezvous(cluster, SOON)
    assert time.monotonic() - begin < 1.0
    assert f"own address {cluster.address}: port {port_of(cluster)} is taken" in str(caught.value)


def test_refuses_another_cluster(start: Any) -> None:
    first, second, _ = make_clusters(3)
    other = Cluster({"worker": second.addresses["worker"][:2]}, second.task)
    begin = time.monotonic()
    one, two = start(first), start(other)
    assert "worker 1 of another cluster" in str(one.exception(LATER))
    assert "given 2 worker(s), while this task, worker 0, was given 3" in str(one.exception())
    assert "given 3 worker(s), while this task, worker 1, was given 2" in str(two.exception(LATER))
    assert "give every task the same addresses, in the same order" in str(two.exception())
    assert time.monotonic() - begin < SOON


def test_names_the_addresses_that_differ(start: Any, capfd: Any) -> None:
    """A task that is only called by one with another list tells at once what is wrong."""
    second = make_clusters(2)[1]
    here, there = second.addresses["worker"]
    (port,) = free_ports(1)
    first = Cluster({"worker": (here, f"localhost:{port}")}, Task("worker", 0))
    one = start(first, timeout=5.0)
    begin = time.monotonic()
    message = str(start(second).exception(LATER))
    assert time.monotonic() - begin < SOON
    assert not one.done()
    assert (
        f"its TF_CONFIG (or KFIT_WORKERS) lists localhost:{port} for worker 1, that of this task, "
        f"worker 1, {there} for worker 1; give every task the same addresses"
    ) in message
    assert capfd.readouterr().err.splitlines() == [
        "kfit: the process that calls from 127.0.0.1 is worker 1 of another cluster: its TF_CONFIG "
        f"(or KFIT_WORKERS) lists {there} for worker 1, that of this task, worker 0, "
        f"localhost:{port} for worker 1; give every task the same addresses, in the same order and "
        "spelling; worker 0 waits on, since without KFIT_SECRET the caller may be a process of an "
        "earlier run"
    ]
    assert f"lists {there} for worker 1" in str(one.exception(LATER))


def test_what_is_wrong_with_a_caller_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_NOTICE_INTERVAL", 0.1)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.05)
    monkeypatch.delenv("KFIT_SECRET", raising=False)
    first, second = make_clusters(2)
    meeting = module._Rendezvous(first)
    hello = replace(module._Rendezvous(second).message("worker 0"), cluster="another")
    for _ in range(3):
        meeting.called(hello, "host1")
        meeting.dropped("host2", b"GET / HTTP/1.1")
    assert not meeting.wait(time.monotonic() + 1.5)
    doubt, *notices = capsys.readouterr().err.splitlines()
    assert doubt.startswith("kfit: the process that calls from host1 is worker 1 of another")
    assert len(notices) >= 2
    awaited = [notice.rpartition(" (")[0] for notice in notices]
    plain = f"kfit: worker 0 waits for worker 1 at {second.address}: it was not called yet"
    assert awaited == [f"{plain}; host2 called: it is no task of kfit", *[plain] * len(awaited[1:])]
    missing = meeting.who_is_missing(1.0)
    assert missing.count("from host1 is worker 1 of another") == missing.count("host2 called") == 1


def test_names_the_variables_that_were_set(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_clusters(2)[0]
    here, there = first.addresses["worker"]
    meeting = module._Rendezvous(first)
    hello = meeting.message("worker 1")
    monkeypatch.setenv("KFIT_WORKERS", f"{here},{there}")
    monkeypatch.setenv("KFIT_INDEX", "0")
    for source, says in (
        ("KFIT_WORKERS", "its KFIT_WORKERS lists a:1 for worker 1, that of this task, worker 0"),
        ("TF_CONFIG", "its TF_CONFIG lists a:1 for worker 1, the KFIT_WORKERS of this task, "),
        ("", "its TF_CONFIG (or KFIT_WORKERS) lists a:1 for worker 1, that of this task, "),
    ):
        theirs = replace(hello, addresses={"worker 0": here, "worker 1": "a:1"}, source=source)
        assert meeting._difference(theirs).startswith(says)
    assert module._Rendezvous(first).message("worker 1").source == "KFIT_WORKERS"
    # A program may have given its own description.
    monkeypatch.setenv("KFIT_INDEX", "x")
    assert module._Rendezvous(first).message("worker 1").source == ""
    assert "TF_CONFIG (or KFIT_WORKERS)" in meeting._difference(replace(hello, addresses={}))


def test_says_how_long_lists_differ_in_a_short_message() -> None:
    """However many addresses there are, no message is longer than a task reads."""
    addresses = [f"{'long-name.' * 24}host:{port}" for port in range(10000, 11000)]
    meeting = module._Rendezvous(Cluster({"worker": addresses}, Task("worker", 999)))
    peer = module._Rendezvous(
        Cluster({"worker": [*addresses[:500], "a:1", *addresses[501:]]}, Task("worker", 500))
    )
    sent = peer.message("worker 999")
    assert len(sent.encode(b"", b"")) < 20_000
    reply = meeting.called(sent, "host500")
    meeting.answered(meeting.peers["worker 500"], reply, sent)
    assert "lists a:1 for worker 500, that of this task, worker 999, long-name." in meeting._refusal
    # Where only what was not sent differs, nothing is claimed of single addresses.
    told = meeting._difference(replace(sent, addresses=reply.addresses))
    assert told.startswith("its TF_CONFIG (or KFIT_WORKERS) lists other addresses than that of")


def test_says_that_a_caller_runs_another_version(start: Any) -> None:
    cluster = make_clusters(2)[0]
    meeting = start(cluster, timeout=1.0)
    with connection_to(cluster) as connection:
        connection.sendall(b"KFIT-RENDEZVOUS/3 0123\n")
        assert connection.recv(100) == b""
    assert "127.0.0.1 called: it runs another version of kfit" in str(meeting.exception(LATER))


def test_refuses_a_second_process_that_claims_the_own_task(start: Any, secret: None) -> None:
    cluster, _ = make_clusters(2)
    meeting = start(cluster)
    reply = say(cluster, sender="worker 0")
    error = meeting.exception(LATER)
    assert "also claims to be worker 0" in str(error)
    assert "`task.index`" in str(error)
    assert b"also claims to be worker 0" in reply


def test_refuses_two_processes_that_claim_one_peer_and_tells_everybody(
    start: Any, secret: None
) -> None:
    first, _, third = make_clusters(3)
    one, three = start(first), start(third)
    for incarnation in ["a", "b"] * 4:
        say(first, incarnation=incarnation)
    assert "two processes claim to be worker 1" in str(one.exception(LATER))
    assert "two processes claim to be worker 1" in str(three.exception(LATER))


@pytest.mark.long
def test_refuses_a_task_on_the_host_of_another(start: Any, secret: None) -> None:
    cluster, _ = make_clusters(2)
    meeting = start(cluster)
    say(cluster, receiver="worker 5")
    assert "worker 1 reached this task, worker 0, at the address of worker 5" in str(
        meeting.exception(LATER)
    )


@pytest.mark.long
def test_refuses_a_peer_that_is_somebody_else(start: Any) -> None:
    first, second, third = make_clusters(3)
    # Worker 2 runs where worker 1 should: it listens at that address.
    addresses = third.addresses["worker"]
    swapped = Cluster({"worker": (addresses[0], addresses[2], addresses[1])}, third.task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "digest", lambda cluster: "the same")
        meeting, _ = start(first), start(swapped, timeout=3.0)
        message = str(meeting.exception(LATER))
    # Whichever of the two calls comes first.
    assert (
        f"{second.address} is the address of worker 1, but it answers there as worker 2" in message
        or "worker 0 reached this task, worker 2, at the address of worker 1" in message
    )


@pytest.mark.long
@pytest.mark.parametrize("key", ["", "of another run, long"])
def test_a_stranger_ends_no_rendezvous_and_is_named_at_its_end(
    start: Any, secret: None, key: str
) -> None:
    first, _ = make_clusters(2)
    meeting = start(first, timeout=2.0)
    assert say(first, key, cluster="another", sender="\x1b[31mroot") == b""
    assert say(first, key, refusal="for fun") == b""
    message = str(meeting.exception(LATER))
    assert "worker 0 waited 2 s for its peers; 1 of 1 did not answer" in message
    assert "127.0.0.1 called: its messages are not signed with the secret of this run" in message
    assert "for fun" not in message


def test_what_was_read_in_another_connection_is_worth_nothing(start: Any, secret: None) -> None:
    first, second = make_clusters(2)
    meeting = start(first)
    said: list[bytes] = []

    def listen_in(greeting: bytes) -> bytes:
        hello = module._Hello(
            *("worker 1", str(first.task), sockets.digest(first), 2, {}, "", "made up", 0, ()),
            refusal="an old reason",
        )
        said.append(replace(hello, refusal="").encode(SECRET.encode(), greeting))
        said.append(hello.encode(SECRET.encode(), b"the greeting of another connection"))
        return said[0]

    assert ask(first, listen_in).startswith(module._Hello.magic)
    for line in said:
        assert ask(first, lambda greeting, line=line: line) == b""
    rendezvous(second, SOON)
    meeting.result(LATER)


@pytest.mark.long
def test_without_a_secret_a_caller_is_not_believed(start: Any) -> None:
    first, _ = make_clusters(2)
    meeting = start(first, timeout=2.0)
    for changed in (
        {"cluster": "another", "sender": "\x1b[31mroot\nkfit: error: "},
        {"refusal": "for fun"},
        {"sender": "worker 0"},
        {"receiver": "worker 5"},
        {"sender": "worker 9"},
    ):
        assert b"refusal" in say(first, **changed)
    message = str(meeting.exception(LATER))
    assert "worker 0 waited 2 s for its peers" in message
    assert r"  the process that calls from 127.0.0.1 is \x1b[31mroot\nkf" in message
    assert "\x1b" not in message


@pytest.mark.long
def test_half_a_character_of_a_stranger_is_printed(start: Any) -> None:
    """JSON may hold what no encoding has."""
    first, _ = make_clusters(2)
    meeting = start(first, timeout=1.0)
    assert b"refusal" in say(first, cluster="\ud800", sender="\ud800", receiver="\ud800")
    message = str(meeting.exception(LATER))
    assert r"the process that calls from 127.0.0.1 is \ud800" in message
    assert message.encode()


def test_without_a_secret_the_workers_meet_in_spite_of_strangers(start: Any) -> None:
    first, second = make_clusters(2)
    meeting = start(first)
    for _ in range(3):
        say(first, cluster="another")
        say(first, refusal="for fun")
    rendezvous(second, SOON)
    meeting.result(LATER)


@pytest.mark.long
def test_a_task_with_another_secret_is_named(start: Any, monkeypatch: Any) -> None:
    first, second = make_clusters(2)
    monkeypatch.setenv("KFIT_SECRET", SECRET)
    one = start(first, timeout=2.0)
    say(first)  # so that its secret has been read
    monkeypatch.setenv("KFIT_SECRET", SECRET[::-1])
    two = start(second, timeout=2.0)
    for meeting in (one, two):
        assert "give all tasks the same KFIT_SECRET" in str(meeting.exception(LATER))


def test_refuses_a_secret_that_can_be_guessed(monkeypatch: Any) -> None:
    monkeypatch.setenv("KFIT_SECRET", "secret")
    with pytest.raises(ClusterError, match="`KFIT_SECRET` has 6 characters; expected at least 16"):
        rendezvous(make_clusters(2)[0])


def test_ignores_garbage_and_strangers_that_stay(start: Any) -> None:
    first, second = make_clusters(2)
    meeting = start(first)
    garbage = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff" * 20_000,
        module._Hello.magic,
    ]
    with ExitStack() as held:
        for content in (b"[]", b'{"waits_for": 3}', b"[" * 5000):
            said = ask(first, partial(_signed, content))
            assert said == b""
        for data in garbage:
            with connection_to(first) as stranger:
                stranger.sendall(data)
        for _ in range(3):
            held.enter_context(connection_to(first))
        begin = time.monotonic()
        rendezvous(second, SOON)
        meeting.result(LATER)
        assert time.monotonic() - begin < 2.5
        bind_like_grpc(port_of(first)).close()


@pytest.mark.long
def test_says_that_something_else_answers_at_a_peer(start: Any) -> None:
    first, second = make_clusters(2)
    with bind_like_grpc(port_of(second)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                    connection.recv(100_000)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(RendezvousError, match="something other than kfit answers"):
            rendezvous(first, 1.0)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(SOON)


def test_a_call_that_reaches_itself_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the system can do to a call to a local port of which nobody is the owner.
    def connect_to_itself(address: Any, timeout: float) -> socket.socket:
        connection = socket.socket()
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())
        return connection

    monkeypatch.setattr(socket, "create_connection", connect_to_itself)
    with pytest.raises(RendezvousError, match="nothing listens there"):
        rendezvous(make_clusters(2)[0], 0.3)


def test_meets_a_peer_that_was_killed_and_started_again(start: Any, tmp_path: Path) -> None:
    first, second, third = make_clusters(3)
    script = tmp_path / "worker.py"
    script.write_text(
        "import sys\n"
        "from kfit.cluster.cluster import Cluster\n"
        "from kfit.cluster.rendezvous import rendezvous\n"
        f"rendezvous(Cluster.from_tf_config(sys.argv[1]), {SOON})\n"
    )
    command = [sys.executable, str(script), second.to_tf_config()]
    meeting = start(first)
    with subprocess.Popen(command) as victim:
        deadline = time.monotonic() + SOON
        while b'"waits_for": ["worker 2"]' not in say(first, sender="worker 2", incarnation="x"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        victim.send_signal(signal.SIGKILL)
    with subprocess.Popen(command) as again:
        start(third).result(LATER)
        meeting.result(LATER)
        assert again.wait(SOON) == 0


def test_a_task_that_was_started_again_waits_for_its_port(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFIT_GENERATION", "1")
    first, second = make_clusters(2)
    with bind_like_grpc(port_of(first)):
        meetings = [start(first), start(second)]
        time.sleep(1.0)
        assert not any(meeting.done() for meeting in meetings)
    for meeting in meetings:
        meeting.result(LATER)


def test_meets_a_peer_whose_earlier_life_is_still_dying(start: Any) -> None:
    first, second = make_clusters(2)
    with bind_like_grpc(port_of(second)) as dying:
        meeting = start(first)
        # TensorFlow's server takes the call, and answers something else or hangs up.
        for answer in (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", b""):
            connection, _ = dying.accept()
            with connection:
                connection.sendall(answer)
                connection.recv(10_000)
    rendezvous(second, SOON)
    meeting.result(LATER)


def converse(
    meeting: module._Rendezvous, peer: str, turn: int, *waits_for: str, now: str = ""
) -> None:
    """Lets a made-up peer answer a call."""
    sent = meeting.message(peer)
    reply = replace(sent, sender=peer, receiver=sent.sender, incarnation=peer + now, turn=turn)
    meeting.answered(meeting.peers[peer], sent, replace(reply, waits_for=waits_for))


def call_in(
    meeting: module._Rendezvous, peer: str, turn: int, *waits_for: str, now: str = ""
) -> None:
    """Lets a made-up peer call."""
    hello = replace(meeting.message(peer), sender=peer, receiver=str(meeting.me), turn=turn)
    meeting.called(replace(hello, incarnation=peer + now, waits_for=waits_for), "nowhere")


def is_complete(meeting: module._Rendezvous) -> bool:
    return meeting.wait(time.monotonic())


def test_what_was_told_before_a_peer_restarted_does_not_count() -> None:
    meeting = module._Rendezvous(make_clusters(3)[0])
    for peer in ("worker 1", "worker 2"):
        converse(meeting, peer, 1, "worker 0")
    converse(meeting, "worker 2", 2)
    call_in(meeting, "worker 1", 1, "worker 0", now="again")
    # Now worker 2 hears that this task waits once more.
    call_in(meeting, "worker 2", 3)
    converse(meeting, "worker 1", 2, now="again")
    converse(meeting, "worker 1", 3, now="again")
    assert not is_complete(meeting)
    converse(meeting, "worker 2", 4)
    assert is_complete(meeting)


def test_an_old_message_does_not_undo_a_new_one() -> None:
    meeting = module._Rendezvous(make_clusters(2)[0])
    converse(meeting, "worker 1", 1, "worker 0")
    converse(meeting, "worker 1", 5)
    call_in(meeting, "worker 1", 4, "worker 0")
    assert is_complete(meeting)


def test_a_peer_is_gone_for_good_only_if_both_knew() -> None:
    meeting = module._Rendezvous(make_clusters(2)[0])
    peer = meeting.peers["worker 1"]
    call_in(meeting, "worker 1", 0)
    meeting.failed(peer, "closed", closed=True)
    # It was ready, but could not know that this task would be.
    assert not peer.left
    converse(meeting, "worker 1", 1, "worker 0")
    meeting.failed(peer, "closed", closed=True)
    assert not is_complete(meeting)
    assert "it was up, then closed" in meeting.who_is_missing(1.0)
    converse(meeting, "worker 1", 2, "worker 0")
    assert not is_complete(meeting)
    call_in(meeting, "worker 1", 3)
    meeting.failed(peer, "slow", closed=False)
    assert not is_complete(meeting)
    converse(meeting, "worker 1", 4)
    meeting.failed(peer, "closed", closed=True)
    assert is_complete(meeting)


def test_only_workers_meet() -> None:
    cluster = Cluster({"worker": ("a:1",), "ps": ("b:1",)}, Task("ps", 0))
    with pytest.raises(ClusterError, match="cannot run `fit`"):
        rendezvous(cluster)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(ValueError, match="`timeout` is"):
        rendezvous(make_clusters(1)[0], timeout)
