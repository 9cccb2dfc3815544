"""Exchange of reports between tasks (processes of a cluster) that run `kfit doctor` now.

Each task listens at its own address, and calls every other task (its peers) until that task
answers. A call is one TCP connection. A task *reaches* another task if it calls the other task and
gets the report of the other task as an answer. The exchange ends when this task has reached all
peers and all peers have reached this task, or at the timeout. So both directions between two tasks
are tested, since TensorFlow uses both.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kfit.cluster import meeting, sockets
from kfit.cluster.address_lists import AddressList
from kfit.cluster.cluster import TASK_TYPES, Cluster, ClusterError, Task, split_address
from kfit.doctor.findings import Finding
from kfit.doctor.report import Message, Report

_MOST_STRANGE_CALLS = 8
"""The number of callers that should not have called of which this task tells at most."""


@dataclass
class Peer(meeting.Peer):
    """What this task has found out about another task of the cluster, the peer.

    There is also such an object for this task itself, since each task calls its own address, too.

    Args:
        report: The report with which the peer has answered a call; None before.
        clock: The number of seconds by which the peer's clock is ahead of this host's clock, and
            the largest error of this number.
        calls: Whether the peer has called this task, and got its report as an answer.
        misled: A text that says what is wrong if the process at the peer's address was given a
            different cluster or is a different task; otherwise "".
    """

    report: Report | None = None
    clock: tuple[float, float] = (0.0, 0.0)
    calls: bool = False
    misled: str = ""


@dataclass
class PeerReports:
    """The result of exchanging reports with all other tasks of the cluster, the peers.

    Args:
        peers: What this task has found out about each peer, by the peer's name.
        me: What this task has found out about itself by calling its own address.
        findings: The results of the checks of this task's address and, after the exchange, of the
            peers' addresses.
        unseen: The names of the peers whose test file in the shared directory this task does not
            see.
    """

    peers: dict[str, Peer]
    me: Peer
    findings: list[Finding] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    def reports(self) -> dict[str, Report]:
        """Returns the reports of all tasks that have answered a call of this task, by their names.

        This task's own report is included if the task has answered the call of its own address.
        """
        reports = {peer.task: peer.report for peer in [self.me, *self.peers.values()]}
        return {name: report for name, report in reports.items() if report is not None}


def exchange_reports(
    cluster: Cluster, own: Report, timeout: float, sees: Callable[[Report], bool]
) -> PeerReports:
    """Exchanges reports with all tasks of the cluster that run `kfit doctor` at the same time.

    Args:
        cluster: The cluster, in which this task must have an address.
        own: The report of this task about itself. Each time it is sent, its attribute `seconds` is
            set to the present time.
        timeout: Seconds to wait for all other tasks together.
        sees: A function that gets the report of another task, and returns whether the test file
            that the report names is visible in the shared directory.

    Returns:
        The reports of the tasks that answered, and findings about all addresses.
    """
    deadline = time.monotonic() + timeout
    try:
        doctors = _Doctors(cluster, own, sees)
    except ClusterError as error:  # without a good secret no task answers another
        text, _, fix = str(error).partition("; ")
        return PeerReports(
            {}, Peer(own.task, cluster.address), [Finding("secret", False, text, fix)]
        )
    result, listener = doctors.result, None
    called = list(result.peers.values())
    try:
        listener = sockets.listen(cluster)
        called.append(result.me)
    except ClusterError as error:
        result.findings.append(_cannot_listen(cluster, error))
    both_ways = listener is not None
    with doctors.under_way(listener, called):
        doctors.wait(deadline, both_ways=both_ways)
    result.findings += doctors.judge(both_ways=both_ways)
    return result


def tasks_of(cluster: Cluster) -> dict[str, str]:
    """Returns the `host:port` of each task that has an address, by names such as "worker 0"."""
    return {
        str(Task(task_type, index)): address
        for task_type in TASK_TYPES
        for index, address in enumerate(cluster.addresses.get(task_type, ()))
    }


class _Doctors(meeting.Meeting[Peer, Message]):
    """The exchange of reports between this task and the other tasks that run `kfit doctor`.

    It records which tasks have answered the calls of this task, and which tasks have called this
    task.
    """

    message_type = Message

    def __init__(self, cluster: Cluster, own: Report, sees: Callable[[Report], bool]) -> None:
        super().__init__()
        peers = {name: Peer(name, address) for name, address in tasks_of(cluster).items()}
        self.result = PeerReports(peers, peers.pop(str(cluster.task)))
        self._own = own
        self._list = AddressList(cluster)
        self._sees = sees
        self._strange_calls: dict[str, None] = {}  # texts, in the order in which they came

    def message(self, receiver: str) -> Message:
        report = replace(self._own, seconds=time.time())
        return Message(receiver, report, self._list.sent_to(receiver))

    def pause(self, peer: Peer, seconds: float) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.over or peer.report is not None, seconds)
            return not (self.over or peer.report or peer.misled)

    def failed(self, peer: Peer, trouble: str, *, closed: bool) -> None:
        peer.trouble = trouble

    def answered(self, peer: Peer, sent: Message, reply: Message) -> None:
        report = reply.report
        began, ended = sent.report.seconds, time.time()
        with self.changed:
            if report.cluster != self._own.cluster:
                peer.misled = self._other_cluster(reply)
            elif report.task != peer.task or (
                peer is self.result.me and report.process != self._own.process
            ):
                itself = report.process == self._own.process
                peer.misled = f"{'this very process' if itself else report.task} answers there"
            else:
                peer.clock = (report.seconds - (began + ended) / 2, (ended - began) / 2)
                self._look_for_probe(report)
                peer.report = report
            self.changed.notify_all()

    def who_answers(self, received: bytes) -> str:
        return who_answers(received)

    def called(self, message: Message, host: str) -> Message:
        report = message.report
        with self.changed:
            peer, problem = self.result.peers.get(report.task), self._problem_of(message)
            # Without a secret the caller may be a stranger, whatever it says. What is wrong is
            # told at the end, and nothing else follows from it.
            if self.secret and peer is not None and not problem:
                self._look_for_probe(report)
            elif self.secret and peer is not None and report.cluster != self._own.cluster:
                peer.misled = peer.misled or problem
            elif problem and len(self._strange_calls) < _MOST_STRANGE_CALLS:
                self._strange_calls.setdefault(f"{problem} (a call from {host})")
            self.changed.notify_all()
        return self.message(report.task)

    def on_message(self, message: Message) -> None:
        with self.changed:
            if message.report.task in self.result.peers and not self._problem_of(message):
                self.result.peers[message.report.task].calls = True
            self.changed.notify_all()

    def _problem_of(self, message: Message) -> str:
        """Returns what is wrong with the message of a caller; empty if nothing is wrong."""
        report = message.report
        if report.process == self._own.process:
            return ""  # this task, which has reached itself
        if report.cluster != self._own.cluster:
            return self._other_cluster(message)
        if report.task == self._own.task:
            return f"another process also claims to be {report.task}"
        if message.receiver != self._own.task:
            return f"{report.task} reached this task at the address of {message.receiver}"
        return ""

    def _other_cluster(self, message: Message) -> str:
        """Returns a text that says in what the addresses of another task's cluster differ."""
        its, own = message.report, self._own
        counts = f" {its.tasks} address(es), while {own.task} was given {own.tasks}:"
        entries = self._list.difference(message.addresses, its.source, own.source)
        different = counts if its.tasks != own.tasks else ""
        return f"{its.task} was given another cluster:{different} {entries}"

    def wait(self, deadline: float, *, both_ways: bool) -> None:
        """Waits until all other tasks (the peers) have answered and called, or until the deadline.

        It does not wait for a peer at whose address the wrong process answers.

        Args:
            deadline: The time, by `time.monotonic()`, at which to stop waiting.
            both_ways: Whether the peers can call this task. If False, it only waits for answers.
        """

        def is_done() -> bool:
            peers = self.result.peers.values()
            reached = [*peers, self.result.me] if both_ways else list(peers)
            return all(peer.misled or peer.report for peer in reached) and all(
                peer.misled or peer.calls or not both_ways for peer in peers
            )

        with self.changed:
            self.changed.wait_for(is_done, max(0.0, deadline - time.monotonic()))

    def judge(self, *, both_ways: bool) -> list[Finding]:
        """Returns the findings about the addresses of all tasks, after the exchange of reports.

        Args:
            both_ways: Whether other tasks could call this task. If False, it is no problem that a
                task has not called.
        """
        with self.changed:
            found = [_of_itself(self.result.me)] if both_ways else []
            peers = self.result.peers.values()
            found += [_of_peer(peer, self._own.task, both_ways) for peer in peers]
            is_harmless = not self.secret and all(finding.ok for finding in found)
            return found + [
                self._of_strange_call(text, is_harmless) for text in self._strange_calls
            ]

    def _of_strange_call(self, text: str, is_harmless: bool) -> Finding:
        if is_harmless:
            return Finding("peer", True, f"{text}: without KFIT_SECRET it may be a stranger's")
        return Finding("peer", False, text, _fix_of_other(text), about=self._own.task)

    def _look_for_probe(self, report: Report) -> None:
        # The peer's process runs while this connection is open, so its test file exists now.
        if report.task == self._own.task or not self._own.probe:
            return
        if report.task not in self.result.unseen and not self._sees(report):
            self.result.unseen.append(report.task)


def who_answers(received: bytes) -> str:
    """Describes a program that answers at a task's address, but is no `kfit doctor`.

    Args:
        received: The first bytes that the program has sent; empty if it has sent none.

    Returns:
        A text for a finding, such as "a web server answers there".
    """
    if not received:
        return (
            "it closed the connection without an answer; a training task that still waits for its "
            "peers does that"
        )
    kinds: Mapping[str, bool] = {
        meeting.OTHER_SECRET: received.startswith(Message.magic),
        # The header of an HTTP/2 SETTINGS frame: three bytes of length, then the type.
        "a gRPC server answers there: TensorFlow, of a run that is under way or was left over": (
            len(received) >= 9 and received[3:4] == b"\x04" and received[:1] == b"\x00"
        ),
        "a web server answers there": received.startswith(b"HTTP/"),
        "an SSH server answers there": received.startswith(b"SSH-"),
    }
    return next((kind for kind, fits in kinds.items() if fits), "another program answers there")


def _of_itself(me: Peer) -> Finding:
    if me.report is not None:
        return Finding("address", True, f"this task reaches itself at {me.address}")
    return Finding(
        "address",
        False,
        f"this task, {me.task}, does not reach itself at its own address {me.address}: "
        f"{me.misled or me.problem}",
        "start each task on the host of its own address with its own task index, or correct the "
        "address",
        about=me.task,
    )


def _of_peer(peer: Peer, me: str, both_ways: bool) -> Finding:
    where = f"{peer.task} at {peer.address}"
    if peer.misled:
        fix = _fix_of_other(peer.misled)
        return Finding("peer", False, f"{where}: {peer.misled}", fix, about=peer.task)
    if peer.report is None:
        one_way = ", though it has reached this task" if peer.calls else ""
        return Finding("peer", False, f"{where}: {peer.problem}{one_way}", _fix(peer), peer.task)
    if both_ways and not peer.calls:
        return Finding(
            "peer",
            False,
            f"{where}: it answers, but has not reached {me} in turn",
            f"see what `kfit doctor` says there: the address of {me} may mean another host to it, "
            "or a firewall is in between",
            peer.task,
        )
    return Finding("peer", True, f"{where}: answers", about=peer.task)


def _fix_of_other(problem: str) -> str:
    """Returns what to do about a process that is not the task it should be."""
    if "another cluster" in problem:
        return "give every task the same addresses, in the same order and spelling"
    return "start each task on the host of its own address, with its own task index"


def _fix(peer: Peer) -> str:
    if "resolved" in peer.problem or "look-up" in peer.problem:
        return "correct the host name, or make it known to the name server or /etc/hosts"
    if "refused" in peer.problem or "closed" in peer.problem:
        return (
            "run `kfit doctor` on all tasks at the same time (`--timeout` waits for longer); if it "
            "does run there, see why it does not listen at this address"
        )
    if "answers there" in peer.problem:
        return "end what runs there, or give this task another port, on all tasks"
    return "see that the host is up, and that a firewall lets this port through in both directions"


def _cannot_listen(cluster: Cluster, error: ClusterError) -> Finding:
    text, _, fix = str(error).rpartition("; ")
    holder = _who_listens(split_address(cluster.address)[1])
    problem = (text or str(error)) + (f"; it is held by {holder}" if holder else "")
    return Finding("address", False, problem, fix if text else "", str(cluster.task))


def _who_listens(port: int) -> str:
    """Describes the process that listens on a port, such as "process 123 (python train.py)".

    The result is "" if the process cannot be found out: it may be another user's process, or the
    system is not Linux.
    """
    inodes = set(_listening_inodes(port))
    if not inodes:
        return ""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) in inodes:
                        return _described(folder.parent)
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    """Yields the name that Linux has for each socket that listens on a port: "socket:[INODE]".

    By this name the process that has opened the socket can be found.
    """
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                # Number, local address, remote address, state (0A: it listens), ..., inode.
                values = line.split()
                if values[1].endswith(f":{port:04X}") and values[3] == "0A":
                    yield f"socket:[{values[9]}]"


def _described(process: Path) -> str:
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    command = " ".join(words).strip()
    return f"process {process.name} ({command[:60]})"
