"""Lets one thread after the other use a model whose variables are moved to devices and back.

A web server predicts from several threads, for example. During a call the model's variables are on
the strategy's devices, and at its end they are taken back. So a thread must not begin a call while
that of another thread is being built, traced or ended.

A thread may also wait for another one: a hook of a callback may start a thread that evaluates the
model, and a thread may predict what a generator then yields to `fit`. So where code of the user's
may run, predictions of other threads are let in, and all calls of threads that were started there,
as if the code itself had made them. Evaluations of older threads are let in between two times in
which metrics are added up. A `fit` of an older thread is not: it would take long, and might itself
wait for the call that has let it in.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

Purpose: TypeAlias = Literal["train", "evaluate", "predict"]
"""What a call uses the model for. A prediction changes no metric."""

_CODE_OF_GRAPHS = "tensorflow.python.ops.script_ops"


@dataclass(eq=False)
class _Turn:
    """A call of `fit`, `evaluate` or the like that has begun, or waits until it may begin.

    Attributes:
        thread: The identity of the thread that has made the call.
        purpose: What the call uses the model for.
        is_of_graph: Whether the thread runs Python code for a graph, such as a generator.
        lets_in: The calls of other threads that may begin now, as if this call had made them.
        known: The threads that were there when this call began to let in others.
    """

    thread: int
    purpose: Purpose
    is_of_graph: bool
    lets_in: Literal["none", "predictions", "all"] = "none"
    known: frozenset[int | None] = frozenset()

    def lends_to(self, other: _Turn) -> bool:
        """Returns whether another call may begin while this one is under way."""
        if self.thread == other.thread or (other.is_of_graph and not self.is_of_graph):
            return True
        # A thread that was started meanwhile may be one that this call's own thread waits for.
        if other.purpose == "predict" or other.thread not in self.known:
            return self.lets_in != "none"
        return self.lets_in == "all" and other.purpose == "evaluate"


class Turns:
    """The order in which threads use one model."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun: list[_Turn] = []
        self._waiting: list[_Turn] = []

    @contextmanager
    def taken(self, purpose: Purpose) -> Iterator[None]:
        """Context of a call, which begins when no other thread uses the model, or one lets it in.

        A call within a call of the same thread begins at once. The Python code of a graph does so
        too, since the thread that runs the graph waits for it.

        Args:
            purpose: What the call uses the model for.
        """
        turn = _Turn(threading.get_ident(), purpose, _is_of_graph())
        with self._changed:
            self._waiting.append(turn)
            try:
                self._changed.wait_for(lambda: not self._begun or self._begun[-1].lends_to(turn))
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
            self._begun.append(turn)
        try:
            yield
        finally:
            with self._changed:
                self._begun.remove(turn)
                self._changed.notify_all()

    @contextmanager
    def lent(self, *, to: Literal["predictions", "all"]) -> Iterator[None]:
        """Context within a call, in which calls of other threads may begin.

        Those that wait already come first. The context ends when all of them have ended, except
        those of the thread that ends it: in one thread, two iterators of `predict_iter` may take
        turns. An iterator may be closed by the garbage collector, within any code, also within a
        call that the iterator would wait for. So an iterator that is closed does not wait.

        Args:
            to: "predictions" if only predictions may begin, since metrics are being added up;
                "all" if also evaluations may. All calls of threads that are started within the
                context may begin in either case.
        """
        thread = threading.get_ident()
        with self._changed:
            turn = next((each for each in reversed(self._begun) if each.thread == thread), None)
            if turn is not None:
                before = turn.lets_in, turn.known
                turn.lets_in = to
                turn.known = frozenset(thread.ident for thread in threading.enumerate())
            due = [] if turn is None else list(filter(turn.lends_to, self._waiting))
            self._changed.notify_all()
        is_closed = False
        try:
            yield
        except GeneratorExit:
            is_closed = True
            raise
        finally:
            if turn is not None:
                with self._changed:
                    if not is_closed:
                        turn.thread = threading.get_ident()
                        self._changed.wait_for(lambda: self._may_go_on(turn, due))
                        self._go_on(turn)
                    turn.lets_in, turn.known = before

    def _may_go_on(self, turn: _Turn, due: list[_Turn]) -> bool:
        within = self._begun[self._begun.index(turn) + 1 :]
        is_alone = all(each.is_of_graph or each.thread == turn.thread for each in within)
        return is_alone and not any(each in due for each in self._waiting)

    def _go_on(self, turn: _Turn) -> None:
        """Makes a turn the last that has begun, after later ones of its thread.

        They stand still meanwhile, and whether others may begin depends on the last one.
        """
        within = self._begun[self._begun.index(turn) + 1 :]
        if any(each.thread == turn.thread for each in within):
            self._begun.remove(turn)
            self._begun.append(turn)


def _is_of_graph() -> bool:
    """Returns whether a graph of TensorFlow has called this code, as it calls a generator's."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _CODE_OF_GRAPHS:
            return True
        frame = frame.f_back
    return False
