"""Lets the workers meet before TensorFlow connects them, so that an error can name a missing one.

TensorFlow waits silently, and for ever, for a worker that was never started, whose host name cannot
be resolved, or that was given a different cluster. So every worker first calls `rendezvous`: it
listens on its own port, and calls every other worker (its peers) until all have answered. When it
leaves the rendezvous, the port is free again for TensorFlow's own server.

Messages are signed with the secret of the run, if it has one (`secret.py`). What a caller says can
then be believed: a wrong address or cluster ends the rendezvous at once. Without a secret a caller
may be a stranger, such as a process of an earlier run. What is wrong with its message is then
printed at once, and named again when the time is up, and only an answer from the address of a peer
ends the rendezvous at once.

In each message a worker sends its name, the receiver's name, a hash of the cluster's addresses, the
first of these addresses, and the names of the peers that have not answered yet. A worker is *ready*
when all its peers have answered. A worker A leaves, and stops listening, when two conditions are
true for each peer B:

- B has told A that B is ready.
- A has told B that A is ready, and B has answered this message.

If A finds the port of B closed, B has either left or died. B has left if A and B have told each
other that they are ready; otherwise B has died.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from dataclasses import dataclass, field

from kfit.argument_checks import check_seconds
from kfit.cluster import sockets
from kfit.cluster.address_lists import AddressList, source_or_none
from kfit.cluster.cluster import Cluster, ClusterError, check_trains
from kfit.cluster.meeting import LONGEST_PAUSE, OTHER_SECRET, PATIENCE, Meeting, Message, Peer
from kfit.cluster.printable import printable

# How often a peer may seem to change back to an earlier incarnation. Each process of a task is an
# incarnation of it; a restart of the task begins a new one.
_MOST_RELAPSES = 5
# Seconds between two messages about the workers that have not answered, and how many are named.
_NOTICE_INTERVAL = 10.0
_MOST_NAMED = 3
# What messages of all versions of kfit begin with, and of all its commands.
_OF_KFIT = b"KFIT-"
# The most hosts to name whose calls were no messages of a worker of this run.
_MOST_DOUBTS = 8
# Seconds to listen after an error, so that every peer calls once more and learns the reason.
_LAST_WORDS = 2 * LONGEST_PAUSE


class RendezvousError(ClusterError):
    """An error that is raised if the workers of a cluster cannot meet at the start.

    For example, a worker is missing, or the port of this task is taken.
    """


def rendezvous(cluster: Cluster, timeout: float = 60.0) -> None:
    """Waits until all workers of a cluster are up and have the same description of the cluster.

    Every worker calls it once, before TensorFlow's server is started on the port of the worker. The
    port is used meanwhile, and free again when this function returns.

    Args:
        cluster: The description of the cluster. This task must be one of its workers.
        timeout: How many seconds to wait until the last worker is up.

    Raises:
        ClusterError: If this task is a ps or an evaluator, or the secret of the run, KFIT_SECRET,
            is too short.
        RendezvousError: If this task's port is taken, another worker was given a different cluster,
            two processes claim to be the same task, or workers are missing when the time is up. The
            message names these workers with their addresses, and hosts from which strangers called.
        ValueError: If `timeout` is not a positive number.
    """
    check_seconds("timeout", timeout, above_zero=True)
    check_trains(cluster)
    deadline = time.monotonic() + timeout
    meeting = _Rendezvous(cluster)
    listener = _bind_until(cluster, deadline)
    with meeting.under_way(listener, meeting.peers.values()) as callers:
        met = meeting.wait(deadline)
    if not met:
        raise RendezvousError(meeting.who_is_missing(timeout))
    for caller in callers:
        caller.join(PATIENCE)


@dataclass(frozen=True)
class _Hello(Message):
    """The only kind of message in a rendezvous, in which workers check that all of them are up.

    Attributes:
        sender: The name of the worker that sends the message, such as "worker 0".
        receiver: The name of the worker that the message is meant for.
        cluster: A hash of the addresses of the cluster, as they were given to the sender.
        workers: The number of workers in the sender's cluster.
        addresses: The first 32 of these addresses, and those of the sender and the receiver, by the
            names of the tasks, so that an error message can name addresses that differ.
        source: What describes the cluster to the sender, such as "TF_CONFIG"; empty if the program
            does.
        incarnation: A random text that identifies the sender's process. A worker that is restarted
            has a different one.
        turn: A number that grows with each message of the sender. By it the receiver recognizes an
            older message that arrives after a newer message.
        waits_for: The names of up to 8 workers that have not answered the sender yet; empty if all
            have answered.
        refusal: The reason why the sender refuses to start; empty if the sender does not refuse.
    """

    magic = b"KFIT-RENDEZVOUS/4 "

    sender: str
    receiver: str
    cluster: str
    workers: int
    addresses: dict[str, str]
    source: str
    incarnation: str
    turn: int
    waits_for: tuple[str, ...]
    refusal: str = ""

    @property
    def ready(self) -> bool:
        return not self.waits_for


@dataclass
class _Peer(Peer):
    """What this task knows in a rendezvous about one of the other workers, the peer.

    A worker is ready when all its peers have answered it. If the peer's process is restarted, the
    new process is called another incarnation of the peer.

    Attributes:
        answered: Whether the peer's present incarnation has answered a call of this task.
        waits_for: The workers that had not answered the peer when the peer sent its newest message;
            None before the first message of the peer.
        turn: The number (`_Hello.turn`) of the newest message from the peer; -1 before the first.
        assured: Whether this task has sent the peer a message that this task is ready.
        answered_turn: The number (`_Hello.turn`) of the newest message from this task that says
            that this task is ready, and that the peer has answered; -1 if there is none.
        left: Whether the peer has left the rendezvous, because all workers were ready.
        incarnations: The incarnations of the peer that were seen, the present incarnation last.
        relapses: How many times a message came from an earlier incarnation, after a message from a
            later one. If this happens often, two processes claim to be the peer.
    """

    answered: bool = False
    waits_for: tuple[str, ...] | None = None
    turn: int = -1
    assured: bool = False
    answered_turn: int = -1
    left: bool = False
    incarnations: list[str] = field(default_factory=list)
    relapses: int = 0

    @property
    def ready(self) -> bool:
        return self.waits_for == ()

    def forget(self) -> None:
        """Forgets what an earlier process of the peer has said, since the peer was restarted."""
        self.answered, self.assured, self.left = False, False, False
        self.waits_for, self.turn, self.answered_turn = None, -1, -1

    def __str__(self) -> str:
        return f"{self.task} at {self.address}"


def _in_source() -> str:
    """Returns " in TF_CONFIG", or in what else describes the cluster; "" if that is unknown."""
    source = source_or_none()
    return f" in {source}" if source else ""


class _Rendezvous(Meeting[_Peer, _Hello]):
    """The rendezvous of this task with the other workers, in which they check that all are up.

    It keeps track of which of the other workers, this task's peers, have answered this task, and
    which of them are ready. A worker is ready when all its own peers have answered it.

    Args:
        cluster: The description of the cluster. This task must be one of its workers.

    Attributes:
        me: The name of this task, such as "worker 0".
        peers: What this task knows about each of its peers, by their names.

    Raises:
        ClusterError: If the secret of the run is too short.
    """

    message_type = _Hello

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.me = str(cluster.task)
        self.peers = {str(task): _Peer(str(task), address) for task, address in cluster.peers}
        self._num_workers = cluster.num_workers
        self._list = AddressList(cluster)
        self._source = source_or_none() or ""
        self._digest = sockets.digest(cluster)
        self._incarnation = secrets.token_hex(8)
        self._turn = 0
        self._last_unready_turn = 0
        self._refusal = ""
        self._doubts: dict[str, str] = {}
        self._untold: list[str] = []
        self._told: set[str] = set()

    @property
    def _ready(self) -> bool:
        return all(peer.answered for peer in self.peers.values())

    def message(self, receiver: str) -> _Hello:
        with self.changed:
            self._turn += 1
            missing = [name for name, peer in self.peers.items() if not peer.answered]
            if missing:
                self._last_unready_turn = self._turn
            elif receiver in self.peers:
                self.peers[receiver].assured = True
            return _Hello(
                sender=self.me,
                receiver=receiver,
                cluster=self._digest,
                workers=self._num_workers,
                addresses=self._list.sent_to(receiver),
                source=self._source,
                incarnation=self._incarnation,
                turn=self._turn,
                waits_for=tuple(missing[:8]),
                refusal=self._refusal,
            )

    def called(self, message: _Hello, host: str) -> _Hello:
        with self.changed:
            self._take_call(message, host)
            return self.message(message.sender)

    def _take_call(self, hello: _Hello, host: str) -> None:
        problem = self._problem_of_call(hello, host)
        if not problem:
            self._recognize(self.peers[hello.sender], hello, host)
        elif self.secret:
            self._refuse(problem)
        elif self._doubt(host, problem):
            self._untold.append(problem)
            self.changed.notify_all()

    def _problem_of_call(self, hello: _Hello, host: str) -> str:
        """Returns what is wrong with the message of a caller; empty if nothing is wrong.

        Args:
            hello: The message.
            host: The host from which the caller has connected.
        """
        if problem := self._disagreement(hello, f"the process that calls from {host}"):
            return problem
        if hello.receiver != self.me:
            return (
                f"{hello.sender} reached this task, {self.me}, at the address of "
                f"{printable(hello.receiver)} (it called from {host}); start each task on the host "
                "of its own address, "
                "with its own `task.index`"
            )
        if hello.sender == self.me:
            return (
                f"another process, calling from {host}, also claims to be {self.me}; give each "
                "process its own `task.index`"
            )
        return ""

    def dropped(self, host: str, received: bytes) -> None:
        with self.changed:
            if received.startswith(_Hello.magic):
                self._doubt(host, f"{host} called: {OTHER_SECRET}")
            elif received.startswith(_OF_KFIT):
                self._doubt(
                    host,
                    f"{host} called: it runs another version of kfit, or another command such as "
                    "`kfit doctor`; install the same version for all tasks",
                )
            elif received:
                self._doubt(host, f"{host} called: it is no task of kfit")

    def _doubt(self, host: str, problem: str) -> bool:
        """Remembers what is wrong with a caller that may be a stranger, until the time is up.

        Args:
            host: The host from which the caller has connected.
            problem: What is wrong with whom.

        Returns:
            Whether this is the first doubt about the host.
        """
        if host in self._doubts or len(self._doubts) >= _MOST_DOUBTS:
            return False
        self._doubts[host] = problem
        return True

    def answered(self, peer: _Peer, sent: _Hello, reply: _Hello) -> None:
        with self.changed:
            if problem := self._disagreement(reply, f"the process at {peer.address}"):
                self._refuse(problem)
                return
            if reply.sender != peer.task:
                itself = "this very process" if reply.incarnation == self._incarnation else "it"
                self._refuse(
                    f"{peer.address} is the address of {peer.task}, but {itself} answers there "
                    f"as {printable(reply.sender)}; start each task on the host of its own "
                    "address, with its own `task.index`"
                )
                return
            self._recognize(peer, reply, peer.address)
            peer.answered = True
            if sent.ready:
                peer.answered_turn = sent.turn
            self.changed.notify_all()

    def failed(self, peer: _Peer, trouble: str, *, closed: bool) -> None:
        with self.changed:
            if closed and peer.ready and peer.assured:
                peer.left = True
            elif not peer.left:
                peer.answered = False
                peer.trouble = ("it was up, then " if peer.incarnations else "") + trouble
            self.changed.notify_all()

    def pause(self, peer: _Peer, seconds: float) -> bool:
        with self.changed:
            # When this task becomes ready, the peer is called at once, without the pause.
            self.changed.wait_for(
                lambda: (
                    self.over or (self._ready and not self._refusal and not self._is_informed(peer))
                ),
                timeout=seconds,
            )
            # After a peer has left, TensorFlow's server may listen at its port: do not call it.
            self.changed.wait_for(lambda: self.over or not peer.left)
            return not self.over

    def wait(self, deadline: float) -> bool:
        """Waits until all workers are up, and each of them knows that all are up.

        Args:
            deadline: The time, by `time.monotonic()`, at which to give up.

        Returns:
            True if all workers are up; False if the deadline has passed.

        Raises:
            RendezvousError: If this task or another worker refuses to start, for example because
                an address is wrong. This task tells the other workers the reason before it raises
                the error.
        """
        begun, is_over = time.monotonic(), False
        with self.changed:
            while not is_over and (left := deadline - time.monotonic()) > 0:
                has_news = self.changed.wait_for(
                    lambda: self._is_over() or bool(self._untold), min(left, _NOTICE_INTERVAL)
                )
                # The answer to a call may end the wait before a doubt about a caller is of use.
                is_over = self.changed.wait_for(
                    self._is_over, min(left, LONGEST_PAUSE) if self._untold else 0.0
                )
                if not is_over and self._untold:
                    self._tell_doubts()
                elif not is_over and not has_news and left > _NOTICE_INTERVAL:
                    self._say_who_is_awaited(time.monotonic() - begun, deadline - begun)
            refusal, complete = self._refusal, self._complete()
        if refusal:
            time.sleep(_LAST_WORDS)
            raise RendezvousError(refusal)
        return complete

    def _is_over(self) -> bool:
        return bool(self._refusal) or self._complete()

    def _tell_doubts(self) -> None:
        """Prints what is wrong with callers, since it may be why this task waits in vain."""
        for problem in self._untold:
            print(
                f"kfit: {problem}; {self.me} waits on, since without KFIT_SECRET the caller may be "
                "a process of an earlier run",
                file=sys.stderr,
                flush=True,
            )
        self._told.update(self._untold)
        self._untold.clear()

    def _say_who_is_awaited(self, waited: float, limit: float) -> None:
        """Prints which workers have not answered yet, so that a wait is not silent.

        What is wrong with callers that may be strangers is printed, too, once for each.

        Args:
            waited: The number of seconds that this task has waited.
            limit: The number of seconds that it waits at most.
        """
        absent = [f"{peer}: {peer.problem}" for peer in self.peers.values() if not peer.answered]
        shown = absent[:_MOST_NAMED] or ["the others, which wait for each other"]
        more = f"; and {len(absent) - len(shown)} more" if len(absent) > len(shown) else ""
        doubts = [doubt for doubt in self._doubts.values() if doubt not in self._told]
        self._told.update(doubts)
        called = "".join(f"; {doubt}" for doubt in doubts[:_MOST_NAMED])
        time_told = f"({waited:.0f} s of {limit:.0f})"
        print(
            f"kfit: {self.me} waits for {'; '.join(shown)}{more}{called} {time_told}",
            file=sys.stderr,
            flush=True,
        )

    def who_is_missing(self, seconds: float) -> str:
        """Returns the error message for a rendezvous in which some workers are missing.

        The message names each missing worker, with the reason as far as it is known.

        Args:
            seconds: How long this task has waited for the workers.
        """
        with self.changed:
            absent = [peer for peer in self.peers.values() if not peer.answered]
            lines = [f"  {peer}: {peer.problem}" for peer in absent]
            for peer in self.peers.values():
                if peer.answered and peer.waits_for:
                    awaited = printable(", ".join(peer.waits_for))
                    lines.append(f"  {peer}: it is up, but waits for {awaited}")
                elif peer.answered and not self._done(peer):
                    lines.append(f"  {peer}: it is up, but did not finish")
            lines += [f"  {problem}" for problem in self._doubts.values()]
        return (
            f"{self.me} waited {seconds:g} s for its peers; {len(absent)} of {len(self.peers)} did "
            "not answer:\n" + "\n".join(lines) + "\n"
            f"Start the missing tasks, with the same addresses{_in_source()}.\n"
            "To find out why one cannot be reached, run `kfit doctor` on each host in place of the "
            "program.\n"
            f"To wait longer than {seconds:g} s, use `kfit run --start-timeout`, "
            "`MultiWorker(start_timeout=...)` or the environment variable KFIT_START_TIMEOUT."
        )

    def _complete(self) -> bool:
        return self._ready and all(self._done(peer) for peer in self.peers.values())

    def _done(self, peer: _Peer) -> bool:
        """Returns whether this task and a peer have told each other that they are ready.

        The result is also True if the peer has already left the rendezvous.
        """
        return peer.left or (peer.ready and self._is_informed(peer))

    def _is_informed(self, peer: _Peer) -> bool:
        # If another peer restarts, this task is no longer ready, and earlier reports do not count.
        return peer.answered_turn > self._last_unready_turn

    def _disagreement(self, hello: _Hello, speaker: str) -> str:
        """Returns why a process is no worker of this cluster, or refuses to start; else empty.

        Args:
            hello: The message of the process.
            speaker: A description of the process, for the error message.
        """
        sender = printable(hello.sender)
        if hello.cluster != self._digest:
            return (
                f"{speaker} is {sender} of another cluster: {self._difference(hello)}; give every "
                f"task the same addresses{_in_source()}, in the same order and spelling"
            )
        if hello.refusal:
            return f"{sender} refused to start: {printable(hello.refusal)}"
        if hello.sender not in self.peers and hello.sender != self.me:
            return f"{speaker} claims to be {sender}, which `cluster` does not list"
        return ""

    def _difference(self, hello: _Hello) -> str:
        """Returns how the addresses of another process differ from those of this task."""
        entries = self._list.difference(hello.addresses, hello.source, source_or_none())
        if hello.workers == self._num_workers:
            return entries
        return (
            f"it was given {hello.workers} worker(s), while this task, {self.me}, was given "
            f"{self._num_workers}: {entries}"
        )

    def _recognize(self, peer: _Peer, hello: _Hello, where: str) -> None:
        known = peer.incarnations
        if not known or known[-1] != hello.incarnation:
            # A peer that restarts has a new incarnation once. Two processes that claim one task
            # alternate as long as both run; a few relapses may be messages that arrived late.
            if hello.incarnation in known:
                known.remove(hello.incarnation)
                peer.relapses += 1
            known.append(hello.incarnation)
            peer.forget()
            if peer.relapses > _MOST_RELAPSES:
                problem = (
                    f"two processes claim to be {peer.task}, the last one seen at {where}; give "
                    "each process its own `task.index`"
                )
                if self.secret:
                    self._refuse(problem)
                else:
                    self._doubt(where, problem)
        if hello.turn > peer.turn:
            peer.turn, peer.waits_for = hello.turn, hello.waits_for
        self.changed.notify_all()

    def _refuse(self, reason: str) -> None:
        self._refusal = self._refusal or reason
        self.changed.notify_all()


def check_address(cluster: Cluster) -> None:
    """Checks that this task can listen on the port of its own address.

    Args:
        cluster: The description of the cluster, with the address of this task.

    Raises:
        RendezvousError: If the port is taken, or the system refuses it for another reason.
    """
    try:
        sockets.listen(cluster).close()
    except sockets.AddressError as error:
        raise RendezvousError(str(error)) from None


def _bind_until(cluster: Cluster, deadline: float) -> socket.socket:
    """Opens a socket on which other workers can connect to this task.

    If this task was restarted, its previous process may still use the port for a moment. In this
    case this function tries again and again until the deadline.

    Args:
        cluster: The description of the cluster, with the address of this task.
        deadline: The time, by `time.monotonic()`, at which to give up.

    Raises:
        RendezvousError: If this task cannot listen at its address.
    """
    # In a restarted task, connections of its previous process may hold the port for a moment. In
    # the first attempt a taken port is an error.
    restarted = os.environ.get("KFIT_GENERATION", "0") != "0"
    while True:
        try:
            return sockets.listen(cluster)
        except sockets.PortTakenError as error:
            if not restarted or time.monotonic() >= deadline:
                raise RendezvousError(str(error)) from None
        except sockets.AddressError as error:
            raise RendezvousError(str(error)) from None
        time.sleep(LONGEST_PAUSE)
