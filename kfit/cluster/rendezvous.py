"""Meet the other workers before TensorFlow does, and say who is missing.

TensorFlow waits in silence, and for ever, for a worker that was never started, whose name cannot
be resolved or that was given another cluster. So every worker first calls `rendezvous`: it listens
on its own port, calls every peer there until all have answered, and leaves when everybody knows
that everybody has. Then the port is free again for TensorFlow's own server.

The protocol is one line each way on a connection of its own: a magic word and a JSON object that
says who speaks to whom, a digest of the cluster, and whom the speaker still waits for. A worker
that waits for nobody is *ready*. It stops listening only once each peer has said that it is ready
and has answered when it was told the same. So a peer may be gone only if it has told us that it is
ready and we have told it: if its port is closed then, it has left, and otherwise it has died.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from kfit.cluster import sockets
from kfit.cluster.cluster import Cluster, ClusterError, Task, check_trains, split_address

_MAGIC = b"KFIT-RENDEZVOUS/1 "
_LONGEST_LINE = 8192
# Seconds that one connection may take; many times what a slow network needs.
_PATIENCE = 3.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
# How often a peer may seem to change back into one that it has replaced.
_MOST_RELAPSES = 5
# After a refusal we listen this long, so that every peer calls once more and learns the cause.
_LAST_WORDS = 2 * _LONGEST_PAUSE


class RendezvousError(ClusterError):
    """The workers of the cluster could not meet."""


def rendezvous(cluster: Cluster, timeout: float = 60.0) -> None:
    """Waits until all workers of the cluster are up and agree on who is who.

    Every worker calls this once, before its TensorFlow server starts. On return this task's port
    is free to be bound again.

    Args:
        cluster: The cluster, as seen by this task, which must be a worker.
        timeout: Seconds to wait for the last worker.

    Raises:
        ClusterError: This task is a ps or an evaluator.
        RendezvousError: This task's port is taken, a peer was given another cluster, two
            processes claim one task, or peers are missing when the time is up; the message names
            them with their addresses.
        ValueError: `timeout` is not a positive number.
    """
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"`timeout` is {timeout!r}; expected a positive number of seconds")
    check_trains(cluster)
    deadline = time.monotonic() + timeout
    meeting = _Meeting(cluster)
    with _listening(_bind_until(cluster, deadline), meeting):
        callers = [
            threading.Thread(target=_call_until_done, args=(meeting, peer), daemon=True)
            for peer in meeting.peers.values()
        ]
        for caller in callers:
            caller.start()
        try:
            met = meeting.wait(deadline)
        finally:
            meeting.leave()
    if not met:
        raise RendezvousError(meeting.who_is_missing(timeout))
    for caller in callers:
        caller.join(_PATIENCE)


@dataclass(frozen=True)
class _Hello:
    """The one message there is, the same in both directions."""

    sender: str
    receiver: str
    cluster: str
    workers: int
    incarnation: str
    # Counts what an incarnation has said: two connections may deliver it in another order.
    turn: int
    waits_for: tuple[str, ...]
    refusal: str = ""

    @property
    def ready(self) -> bool:
        return not self.waits_for

    def encode(self) -> bytes:
        return _MAGIC + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> _Hello | None:
        """Reads a line; None when something other than kfit wrote it."""
        if not line.startswith(_MAGIC) or not line.endswith(b"\n"):
            return None
        try:
            values = json.loads(line[len(_MAGIC) :])
            waits_for = tuple(str(name) for name in values.pop("waits_for"))
            hello = cls(waits_for=waits_for, **values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        texts = (hello.sender, hello.receiver, hello.cluster, hello.incarnation, hello.refusal)
        numbers = (hello.workers, hello.turn)
        well_typed = all(isinstance(text, str) for text in texts) and all(
            isinstance(number, int) for number in numbers
        )
        return hello if well_typed else None


@dataclass
class _Peer:
    """What is known of one other worker."""

    task: Task
    address: str
    answered: bool = False
    waits_for: tuple[str, ...] | None = None
    turn: int = -1
    # Whether our own being ready was said to it, and the turn of ours at which it answered that.
    assured: bool = False
    told: int = -1
    left: bool = False
    trouble: str = "no answer yet"
    incarnations: list[str] = field(default_factory=list)
    relapses: int = 0

    @property
    def ready(self) -> bool:
        return self.waits_for == ()

    def forget(self) -> None:
        """Forgets an earlier incarnation of this peer."""
        self.answered, self.assured, self.left = False, False, False
        self.waits_for, self.turn, self.told = None, -1, -1

    def __str__(self) -> str:
        return f"{self.task} at {self.address}"


class _Meeting:
    """Who has answered whom, shared by the caller of each peer and the listener."""

    def __init__(self, cluster: Cluster) -> None:
        self.me = cluster.task
        self.peers = {str(task): _Peer(task, address) for task, address in cluster.peers}
        self._num_workers = cluster.num_workers
        self._digest = sockets.digest(cluster)
        self._incarnation = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._turn = 0
        self._last_unready_turn = 0
        self._refusal = ""
        self._over = False

    @property
    def _ready(self) -> bool:
        return all(peer.answered for peer in self.peers.values())

    def hello(self, receiver: str) -> _Hello:
        """Returns what this task has to say to `receiver` now."""
        with self._changed:
            self._turn += 1
            missing = [name for name, peer in self.peers.items() if not peer.answered]
            if missing:
                self._last_unready_turn = self._turn
            elif receiver in self.peers:
                self.peers[receiver].assured = True
            return _Hello(
                sender=str(self.me),
                receiver=receiver,
                cluster=self._digest,
                workers=self._num_workers,
                incarnation=self._incarnation,
                turn=self._turn,
                waits_for=tuple(missing[:8]),
                refusal=self._refusal,
            )

    def called(self, hello: _Hello, host: str) -> None:
        """Takes in what a process that called us from `host` said."""
        with self._changed:
            if not self._agrees(hello, f"{hello.sender}, calling from {host},"):
                return
            if hello.receiver != str(self.me):
                self._refuse(
                    f"{hello.sender} reached this task, {self.me}, at the address of "
                    f"{hello.receiver}; start each task on the host of its own address, with its "
                    "own `task.index`"
                )
            elif hello.sender == str(self.me):
                self._refuse(
                    f"another process, calling from {host}, also claims to be {self.me}; give "
                    "each process its own `task.index`"
                )
            else:
                self._recognize(self.peers[hello.sender], hello, host)

    def answered(self, peer: _Peer, sent: _Hello, reply: _Hello) -> None:
        """Takes in what the process at the address of `peer` replied to `sent`."""
        with self._changed:
            if not self._agrees(reply, f"the process at {peer.address}"):
                return
            if reply.sender != str(peer.task):
                itself = "this very process" if reply.incarnation == self._incarnation else "it"
                self._refuse(
                    f"{peer.address} is the address of {peer.task}, but {itself} answers there "
                    f"as {reply.sender}; start each task on the host of its own address, with "
                    "its own `task.index`"
                )
                return
            self._recognize(peer, reply, peer.address)
            peer.answered = True
            if sent.ready:
                peer.told = sent.turn
            self._changed.notify_all()

    def failed(self, peer: _Peer, trouble: str, *, closed: bool) -> None:
        """Takes in that `peer` could not be asked.

        Args:
            peer: The peer that was called.
            trouble: What happened, in words.
            closed: Whether no kfit listens there, rather than that nobody can tell.
        """
        with self._changed:
            if closed and peer.ready and peer.assured:
                peer.left = True
            elif not peer.left:
                peer.answered = False
                peer.trouble = ("it was up, then " if peer.incarnations else "") + trouble
            self._changed.notify_all()

    def pause(self, peer: _Peer, seconds: float, sent: _Hello) -> bool:
        """Waits before `peer` is called again; False when all calls have ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or (self._ready and not sent.ready), timeout=seconds
            )
            # Where a peer has left, its TensorFlow server may listen already: leave that alone.
            self._changed.wait_for(lambda: self._over or not peer.left)
            return not self._over

    def wait(self, deadline: float) -> bool:
        """Waits for all to be done.

        Returns:
            Whether they are; False when the time is up.

        Raises:
            RendezvousError: A peer was refused, or refused us.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._refusal or self._complete(), max(0.0, deadline - time.monotonic())
            )
            refusal, complete = self._refusal, self._complete()
        if refusal:
            time.sleep(_LAST_WORDS)
            raise RendezvousError(refusal)
        return complete

    def leave(self) -> None:
        """Ends all calls."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def who_is_missing(self, seconds: float) -> str:
        """Returns the error message for a deadline that passed."""
        with self._changed:
            absent = [peer for peer in self.peers.values() if not peer.answered]
            lines = [f"  {peer}: {peer.trouble}" for peer in absent]
            for peer in self.peers.values():
                if peer.answered and peer.waits_for:
                    lines.append(f"  {peer}: it is up, but waits for {', '.join(peer.waits_for)}")
                elif peer.answered and not self._done(peer):
                    lines.append(f"  {peer}: it is up, but did not finish")
        return (
            f"{self.me} waited {seconds:g} s for its peers; {len(absent)} of {len(self.peers)} did "
            "not answer:\n" + "\n".join(lines) + "\n"
            "Start all tasks of `cluster` in `TF_CONFIG`, see why those did not come up, check "
            "that the addresses can be reached from each host, or wait for longer than "
            f"{seconds:g} s (`kfit run --start-timeout`, or `MultiWorker(start_timeout=...)`)."
        )

    def _complete(self) -> bool:
        return self._ready and all(self._done(peer) for peer in self.peers.values())

    def _done(self, peer: _Peer) -> bool:
        """Whether we know that `peer` is ready, and it knows that we are."""
        # When another peer restarts, we are no longer ready, and what was told no longer holds.
        return peer.left or (peer.ready and peer.told > self._last_unready_turn)

    def _agrees(self, hello: _Hello, speaker: str) -> bool:
        if hello.cluster != self._digest:
            self._refuse(
                f"{speaker} is {hello.sender} of another cluster: it was given {hello.workers} "
                f"worker(s) (digest {hello.cluster[:8]}), while this task, {self.me}, was given "
                f"{self._num_workers} worker(s) (digest {self._digest[:8]}); give every task the "
                "same `cluster` in `TF_CONFIG`, in the same order and spelling"
            )
        elif hello.refusal:
            self._refuse(f"{hello.sender} refused to start: {hello.refusal[:1000]}")
        elif hello.sender not in self.peers and hello.sender != str(self.me):
            self._refuse(f"{speaker} claims to be {hello.sender}, which `cluster` does not list")
        return not self._refusal

    def _recognize(self, peer: _Peer, hello: _Hello, where: str) -> None:
        known = peer.incarnations
        if not known or known[-1] != hello.incarnation:
            # A peer that restarts is new once. Two processes that claim one task take turns, for
            # as long as both live; a few relapses may be lines that were delivered late.
            if hello.incarnation in known:
                known.remove(hello.incarnation)
                peer.relapses += 1
            known.append(hello.incarnation)
            peer.forget()
            if peer.relapses > _MOST_RELAPSES:
                self._refuse(
                    f"two processes claim to be {peer.task}, the last one seen at {where}; give "
                    "each process its own `task.index`"
                )
        if hello.turn > peer.turn:
            peer.turn, peer.waits_for = hello.turn, hello.waits_for
        self._changed.notify_all()

    def _refuse(self, reason: str) -> None:
        self._refusal = self._refusal or reason
        self._changed.notify_all()


def check_address(cluster: Cluster) -> None:
    """Checks that this task can listen at its own address.

    Raises:
        RendezvousError: The port is taken, or the address is not this host's.
    """
    try:
        sockets.listen(cluster).close()
    except sockets.AddressError as error:
        raise RendezvousError(str(error)) from None


def _call_until_done(meeting: _Meeting, peer: _Peer) -> None:
    pause = _SHORTEST_PAUSE
    while True:
        sent = meeting.hello(str(peer.task))
        _call(meeting, peer, sent)
        if not meeting.pause(peer, pause, sent):
            return
        pause = min(_LONGEST_PAUSE, pause * 1.5)


def _call(meeting: _Meeting, peer: _Peer, sent: _Hello) -> None:
    connected = False
    try:
        with sockets.call(peer.address, _PATIENCE) as connection:
            connected = True
            connection.sendall(sent.encode())
            with connection.makefile("rb") as stream:
                line = stream.readline(_LONGEST_LINE)
    except OSError as error:
        trouble, closed = sockets.explain(error, split_address(peer.address)[0])
        # Where a peer has left, its TensorFlow server may take the call before it is polled.
        meeting.failed(peer, trouble, closed=closed or connected)
    else:
        reply = _Hello.decode(line)
        if reply is not None:
            meeting.answered(peer, sent, reply)
        elif line:
            meeting.failed(peer, "something other than kfit answers there", closed=True)
        else:
            meeting.failed(peer, "it closed the connection without an answer", closed=True)


@contextmanager
def _listening(listener: socket.socket, meeting: _Meeting) -> Iterator[None]:
    server = sockets.Server(listener, _Answer, meeting)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        # Nobody is in accept() any more, so this really frees the port.
        thread.join()
        server.server_close()


class _Answer(socketserver.StreamRequestHandler):
    timeout = _PATIENCE
    server: sockets.Server[_Meeting]

    def handle(self) -> None:
        hello = _Hello.decode(self.rfile.readline(_LONGEST_LINE))
        if hello is None:
            return
        host = str(self.client_address[0]).removeprefix("::ffff:")
        self.server.meeting.called(hello, host)
        self.wfile.write(self.server.meeting.hello(hello.sender).encode())
        # The caller hangs up first: the side that does keeps the connection for a minute.
        self.rfile.read(1)


def _bind_until(cluster: Cluster, deadline: float) -> socket.socket:
    """Listens at this task's address, as soon as it can be."""
    # What is left of this task's own earlier life, or a peer's call to it, may hold the port for a
    # moment. In a first life a taken port is a mistake.
    restarted = os.environ.get("KFIT_GENERATION", "0") != "0"
    while True:
        try:
            return sockets.listen(cluster)
        except sockets.PortTakenError as error:
            if not restarted or time.monotonic() >= deadline:
                raise RendezvousError(str(error)) from None
        except sockets.AddressError as error:
            raise RendezvousError(str(error)) from None
        time.sleep(_LONGEST_PAUSE)
