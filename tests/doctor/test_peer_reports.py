"""Tasks that find each other, or say why not; all in threads of this process."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.doctor.findings import Finding
from kfit.doctor.peer_reports import PeerReports, exchange_reports, who_answers
from kfit.doctor.report import Message
from kfit.supervisor.local import free_ports
from tests.sweeps import sweep

GREETING = Message.greeting()

SOON, SHORT = 15.0, 0.6
ReportOf = Callable[..., Any]


def make_clusters(count: int) -> list[Cluster]:
    addresses = tuple(f"localhost:{port}" for port in free_ports(count))
    return [Cluster({"worker": addresses}, Task("worker", i)) for i in range(count)]


def port_of(cluster: Cluster) -> int:
    return int(cluster.address.rpartition(":")[2])


def all_at_once(
    clusters: list[Cluster], report_of: ReportOf, timeout: float = SOON, **changed: Any
) -> list[PeerReports]:
    with ThreadPoolExecutor(len(clusters)) as pool:
        runs = [
            pool.submit(
                exchange_reports, each, report_of(each, **changed), timeout, lambda report: True
            )
            for each in clusters
        ]
        return [run.result(SOON * 2) for run in runs]


def problems(found: list[Finding]) -> list[str]:
    return [finding.text for finding in found if not finding.ok]


@contextmanager
def serving(cluster: Cluster, talk: Callable[[socket.socket], None]) -> Iterator[None]:
    """A program at a task's address that talks to each caller in turn."""
    with socket.create_server(("127.0.0.1", port_of(cluster))) as server:
        held = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                talk(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()


def listening(cluster: Cluster, said: bytes | None) -> AbstractContextManager[None]:
    """A program at a task's address that says something and hangs up, or is silent."""

    def talk(connection: socket.socket) -> None:
        if said is not None:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)

    return serving(cluster, talk)


def answering(cluster: Cluster, message: Message) -> AbstractContextManager[None]:
    """A program at a task's address that answers calls by a message, and calls nobody."""

    def talk(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            lines.readline()
            connection.sendall(GREETING)
            connection.sendall(message.encode(b"", lines.readline()))
            lines.read()

    return serving(cluster, talk)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_meet_at_once(report_of: ReportOf, count: int) -> None:
    clusters = make_clusters(count)
    begin = time.monotonic()
    for cluster, met in zip(clusters, all_at_once(clusters, report_of), strict=True):
        assert problems(met.findings) == []
        assert set(met.reports()) == {f"worker {i}" for i in range(count)}
        assert met.me.task == str(cluster.task)
        for peer in met.peers.values():
            ahead, uncertain = peer.clock
            assert abs(ahead) <= uncertain + 0.5
    assert time.monotonic() - begin < SOON


def test_a_late_task_is_waited_for(report_of: ReportOf) -> None:
    first, second = make_clusters(2)
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(exchange_reports, first, report_of(first), SOON, lambda report: True)
        time.sleep(0.7)
        late = pool.submit(exchange_reports, second, report_of(second), SOON, lambda report: True)
        assert problems(early.result(SOON).findings + late.result(SOON).findings) == []


def test_all_ports_are_free_afterwards(report_of: ReportOf) -> None:
    clusters = make_clusters(2)
    all_at_once(clusters, report_of)
    for cluster in clusters:
        socket.create_server(("", port_of(cluster))).close()


def test_a_task_that_is_down_is_named(report_of: ReportOf) -> None:
    first, second, third = make_clusters(3)
    for met in all_at_once([first, third], report_of, SHORT):
        (problem,) = problems(met.findings)
        assert problem.startswith(f"worker 1 at {second.address}: nothing listens there")


def test_a_host_name_without_an_address(
    report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    addresses = (f"localhost:{port}", "nohost.invalid:2222")
    cluster = Cluster({"worker": addresses}, Task("worker", 0))
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        if host == "nohost.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    met = exchange_reports(cluster, report_of(cluster), SHORT, lambda report: True)
    (finding,) = [each for each in met.findings if not each.ok]
    assert "its host name 'nohost.invalid' cannot be resolved" in finding.text
    assert "correct the host name" in finding.fix


def test_a_name_server_that_does_not_answer(
    report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    cluster = Cluster({"worker": (f"localhost:{port}", "slow:2222")}, Task("worker", 0))
    resolve, end = socket.getaddrinfo, threading.Event()

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        if host == "slow":
            end.wait(SOON)
        return resolve(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    begin = time.monotonic()
    met = exchange_reports(cluster, report_of(cluster), SHORT, lambda report: True)
    assert time.monotonic() - begin < SOON
    end.set()
    assert "the look-up of its host name 'slow' does not end" in problems(met.findings)[0]


@pytest.mark.parametrize(
    ("said", "found"),
    sweep(
        [
            (b"", "closed the connection without an answer"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "an SSH server answers there"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a web server answers there"),
            (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18, "a gRPC server answers there"),
            (b"hello there, who is it?\n", "another program answers there"),
            (Message.magic + b"{}\n", "give all tasks the same KFIT_SECRET"),
        ],
        every=3,
    ),
)
def test_something_else_at_the_address(report_of: ReportOf, said: bytes, found: str) -> None:
    first, second = make_clusters(2)
    with listening(second, said):
        met = exchange_reports(first, report_of(first), SHORT, lambda report: True)
    (problem,) = problems(met.findings)
    assert problem.startswith(f"worker 1 at {second.address}: ")
    assert found in problem


def test_something_that_says_nothing(report_of: ReportOf) -> None:
    first, second = make_clusters(2)
    with listening(second, None):
        met = exchange_reports(first, report_of(first), SHORT, lambda report: True)
    assert "it took the connection and said nothing" in problems(met.findings)[0]


def test_the_port_is_taken_here(report_of: ReportOf) -> None:
    first, second = make_clusters(2)
    with socket.create_server(("", port_of(first))):
        one, other = all_at_once([first, second], report_of, SHORT)
    mine = [finding for finding in one.findings if finding.check == "address"]
    assert f"port {port_of(first)} is taken" in mine[0].text
    if Path("/proc/net/tcp").exists():
        assert f"it is held by process {os.getpid()} (" in mine[0].text
    assert "end it" in mine[0].fix
    # It is reached from here all the same; it does not reach us.
    assert one.peers["worker 1"].report is not None
    assert any("worker 0 at" in problem for problem in problems(other.findings))


def test_other_addresses_are_noticed_by_both(report_of: ReportOf) -> None:
    first = make_clusters(2)[0]
    longer = Cluster({"worker": (*first.addresses["worker"], "localhost:1")}, Task("worker", 1))
    with ThreadPoolExecutor(2) as pool:
        own = report_of(first, tasks=2), report_of(longer, tasks=3)
        runs = [
            pool.submit(exchange_reports, each, report, SHORT, lambda report: True)
            for each, report in zip((first, longer), own, strict=True)
        ]
        found = [problems(run.result(SOON).findings) for run in runs]
    assert any("worker 1 was given another cluster: 3 address(es)" in text for text in found[0])
    assert any("worker 0 was given another cluster: 2 address(es)" in text for text in found[1])


def test_the_addresses_that_differ_are_named(report_of: ReportOf) -> None:
    second = make_clusters(2)[1]
    here, there = second.addresses["worker"]
    (port,) = free_ports(1)
    first = Cluster({"worker": (here, f"localhost:{port}")}, Task("worker", 0))
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(exchange_reports, each, report, SHORT, lambda report: True)
            for each, report in (
                (first, report_of(first, source="TF_CONFIG")),
                (second, report_of(second, source="KFIT_WORKERS")),
            )
        ]
        findings = [run.result(SOON).findings for run in runs]
    found = ["\n".join(problems(each)) for each in findings]
    assert all(
        each.fix.startswith("give every task the same addresses")
        for each in (*findings[0], *findings[1])
        if "another cluster" in each.text
    )
    assert (
        f"worker 1 was given another cluster: its KFIT_WORKERS lists {there} for worker 1, the "
        f"TF_CONFIG of this task, worker 0, localhost:{port} for worker 1"
    ) in found[0]
    assert (
        f"worker 0 was given another cluster: its TF_CONFIG lists localhost:{port} for worker 1, "
        f"the KFIT_WORKERS of this task, worker 1, {there} for worker 1"
    ) in found[1]


def test_swapped_indices_are_named(report_of: ReportOf) -> None:
    # Each process listens on the other's port: as when the index of each host is the other's.
    addresses = make_clusters(2)[0].addresses["worker"]
    mixed = Cluster({"worker": addresses[::-1]}, Task("worker", 0))
    right = Cluster({"worker": addresses}, Task("worker", 0))
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(
                exchange_reports, each, report_of(right, process=name), SHORT, lambda report: True
            )
            for each, name in ((right, "a"), (mixed, "b"))
        ]
        found = [problem for run in runs for problem in problems(run.result(SOON).findings)]
    assert any("another process also claims to be worker 0 (a call from" in each for each in found)
    assert any("worker 0 answers there" in problem for problem in found)


def say(cluster: Cluster, message: Message, secret: bytes = b"") -> Message | None:
    """Calls a task as soon as it listens, sends a message, and returns the answer."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            call = socket.create_connection(("localhost", port_of(cluster)), timeout=SOON)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with call, call.makefile("rb") as lines:
        call.sendall(Message.greeting())
        question = message.encode(secret, lines.readline())
        call.sendall(question)
        return Message.decode(lines.readline(), secret, question)


def false_messages(first: Cluster, second: Cluster, report_of: ReportOf) -> list[Message]:
    """What a stranger may say to the first task."""
    known = report_of(second, process="stranger")
    return [
        Message("worker 0", replace(known, cluster="00")),
        Message("worker 0", replace(known, task="worker 0")),
        Message("worker 1", known),
        *(Message("worker 0", report_of(first, process=f"{i}" + "x" * 9999)) for i in range(15)),
        *(Message(f"worker {i}", known) for i in range(2, 15)),
    ]


def test_without_a_secret_a_caller_is_not_believed(report_of: ReportOf) -> None:
    """All goes well in spite of strangers; if it does not, their calls may be the cause."""
    first, second = make_clusters(2)
    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(
            exchange_reports, first, report_of(first, probe="p"), SOON, lambda report: False
        )
        for message in false_messages(first, second, report_of):
            assert say(first, message) is not None
        other = pool.submit(exchange_reports, second, report_of(second), SOON, lambda report: True)
        met, others = run.result(SOON), other.result(SOON)
    assert problems(met.findings + others.findings) == []
    told = [each.text for each in met.findings if "may be a stranger's" in each.text]
    assert 3 <= len(told) <= 8
    assert any("worker 1 was given another cluster" in text for text in told)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            exchange_reports, first, report_of(first, probe="p"), 2.0, lambda report: False
        )
        for message in false_messages(first, second, report_of):
            assert say(first, message) is not None
        met = run.result(SOON)
    found = problems(met.findings)
    assert found[0].startswith(f"worker 1 at {second.address}: nothing listens there")
    assert "has reached this task" not in found[0]
    assert len(found) == 1 + len(told)
    assert met.unseen == []


def test_with_a_secret_a_caller_is_believed(
    report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFIT_SECRET", "s" * 16)
    first, second = make_clusters(2)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(exchange_reports, first, report_of(first), SOON, lambda report: True)
        other = Message("worker 0", replace(report_of(second), cluster="00"))
        assert say(first, other, b"s" * 16) is not None
        assert "worker 1 was given another cluster" in problems(run.result(2.0).findings)[0]


@pytest.mark.long
def test_one_that_calls_but_cannot_be_called(report_of: ReportOf) -> None:
    first, second = make_clusters(2)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(exchange_reports, first, report_of(first), 2.0, lambda report: True)
        reply = say(first, Message("worker 0", report_of(second)))
        met = run.result(SOON)
    assert reply is not None
    assert reply.report.task == "worker 0"
    assert problems(met.findings)[0].endswith("though it has reached this task")


def test_one_that_answers_but_does_not_call(report_of: ReportOf) -> None:
    first, second = make_clusters(2)
    with answering(second, Message("worker 0", report_of(second))):
        met = exchange_reports(first, report_of(first), SHORT, lambda report: True)
    (problem,) = problems(met.findings)
    assert problem.endswith("it answers, but has not reached worker 0 in turn")


def test_a_probe_that_is_not_seen(report_of: ReportOf) -> None:
    clusters = make_clusters(2)
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(exchange_reports, each, report_of(each, probe="p"), SOON, sees)
            for each, sees in zip(clusters, (lambda r: True, lambda r: False), strict=True)
        ]
        assert [run.result(SOON).unseen for run in runs] == [[], ["worker 0"]]


@pytest.mark.long
def test_a_task_stays_until_its_probe_was_looked_for(report_of: ReportOf) -> None:
    first, second = make_clusters(2)

    def sees(report: Any) -> bool:
        time.sleep(0.4)
        return not late.done()

    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(exchange_reports, first, report_of(first, probe="p"), SOON, sees)
        # Calls come half a second apart by now, so the late one calls first.
        time.sleep(1.5)
        late = pool.submit(
            exchange_reports, second, report_of(second, probe="p"), SOON, lambda r: True
        )
        assert early.result(SOON).unseen == []


def test_what_strangers_send_does_no_harm(report_of: ReportOf) -> None:
    first, second = make_clusters(2)
    good = Message("worker 0", report_of(second)).encode(b"", GREETING)
    lines = [b"\n", Message.magic, Message.magic + b"[" * 50_000 + b"\n", b"GET / HTTP/1.1\r\n\r\n"]
    lines += [good.replace(b'"cpus": [', b'"cpus": [null, '), good.replace(b'"task"', b'"tsk"')]
    assert Message.decode(good, b"", GREETING) is not None
    for line in lines:
        assert Message.decode(line, b"", GREETING) is None
    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(exchange_reports, first, report_of(first), SOON, lambda report: True)
        for line in [*lines, b"x" * 200_000]:
            for _ in range(100):
                try:
                    with socket.create_connection(("localhost", port_of(first))) as call:
                        call.sendall(line)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
                except OSError:
                    break
        other = pool.submit(exchange_reports, second, report_of(second), SOON, lambda report: True)
        assert problems(run.result(SOON).findings + other.result(SOON).findings) == []


def test_who_answers_never_fails() -> None:
    for said in (b"\x00", b"\x00\x00\x00\x04", b"\xff" * 100):
        assert who_answers(said)


def test_a_secret_that_is_too_short_is_a_problem(
    report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFIT_SECRET", "short")
    cluster = make_clusters(2)[0]
    met = exchange_reports(cluster, report_of(cluster), 0.1, lambda report: True)
    assert met.reports() == {}
    [text] = problems(met.findings)
    assert text == "`KFIT_SECRET` has 5 characters"
