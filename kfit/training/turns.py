"""Lets one thread after the other use a model whose variables are moved to devices and back.

A web server predicts from several threads, for example. During a call the model's variables are on
the strategy's devices, and at its end they are taken back. So a thread must not begin a call while
that of another thread is being built, traced or ended.

A thread may also wait for another one: a hook of a callback may start a thread that evaluates the
model, and a thread may predict what a generator then yields to `fit`. So where code of the user's
may run, predictions of other threads are let in, and all calls of threads that were started there,
or earlier in such code of the same call, as if the code itself had made them. Evaluations of older
threads are let in between two times in which metrics are added up.

Any other call of an older thread waits: in the middle of an epoch, an evaluation would reset the
metrics and a `fit` would change the weights. But nothing tells whether the user's code itself waits
for that call. So if the code takes `_PATIENCE`, the call is let in after all, with a warning.

Models that share layers or variables take turns as if they were one model. But what another thread
does with another model is let in only if it does not train: otherwise it gets an error where it
would be let in (`Placement.lends_to`).
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kfit.heartbeat.tracebacks import warn_user

Purpose: TypeAlias = Literal["train", "evaluate", "predict"]
"""What a call uses the model for. A prediction changes no metric."""

_PATIENCE = 60.0
"""Seconds for which the user's code may keep a call waiting that it might itself wait for."""
_CODE_OF_GRAPHS = "tensorflow.python.ops.script_ops"


@dataclass(eq=False)
class _Turn:
    """A call of `fit`, `evaluate` or the like that has begun, or waits until it may begin.

    Attributes:
        turns: The turns of the call's model.
        thread: The thread that has made the call.
        purpose: What the call uses the model for.
        is_of_graph: Whether the thread runs Python code for a graph, such as a generator.
        lets_in: The calls of other threads that may begin now, as if this call had made them.
        known: The threads that were there when this call began to let in others, without `started`.
        started: Living threads that were started while this call let in others.
        since: When this call began to let in others, in seconds of the monotonic clock.
        sharing: Whether a model has something in common with this one, by its turns.
    """

    turns: Turns
    thread: threading.Thread
    purpose: Purpose
    is_of_graph: bool
    lets_in: Literal["none", "predictions", "all"] = "none"
    known: frozenset[threading.Thread] = frozenset()
    started: set[threading.Thread] = field(default_factory=set)
    since: float = 0.0
    sharing: dict[Turns, bool] = field(default_factory=dict)

    def shares_with(self, other: _Turn) -> bool:
        """Returns whether the models of two calls are one, or have something in common."""
        if other.turns not in self.sharing:
            self.sharing[other.turns] = self.turns.share(other.turns)
        return self.sharing[other.turns]

    def lends_to(self, other: _Turn) -> bool:
        """Returns whether another call may begin while this one is under way."""
        if self.thread is other.thread or (other.is_of_graph and not self.is_of_graph):
            return True
        # A thread that its code has started may be one that this call's own thread waits for.
        if other.purpose == "predict" or other.thread not in self.known:
            return self.lets_in != "none"
        return self.lets_in == "all" and other.purpose == "evaluate"


_changed = threading.Condition()
"""Held by the thread that reads or changes `_begun` and `_waiting`, or what is in them."""
_begun: list[_Turn] = []
"""The calls that have begun, of all models. The last one of a model is within the earlier ones."""
_waiting: list[_Turn] = []


class Turns:
    """The order in which threads use one model, and others that share something with it.

    Args:
        parts: Returns the ids of what the model may share with others, such as its variables.
    """

    def __init__(self, parts: Callable[[], set[int]] = set) -> None:
        self._parts = parts

    def share(self, other: Turns) -> bool:
        """Returns whether these turns are those of one model, or of two that share something."""
        return other is self or not self._parts().isdisjoint(other._parts())

    @contextmanager
    def taken(self, purpose: Purpose) -> Iterator[None]:
        """Context of a call, which begins when no other thread uses the model, or one lets it in.

        A call within a call of the same thread begins at once. The Python code of a graph does so
        too, since the thread that runs the graph waits for it.

        Args:
            purpose: What the call uses the model for.
        """
        turn = _Turn(self, threading.current_thread(), purpose, _is_of_graph())
        with _changed:
            _waiting.append(turn)
            try:
                kept_by = _wait_for(turn)
            finally:
                _waiting.remove(turn)
                _changed.notify_all()
            _begun.append(turn)
        try:
            if kept_by is not None and (kept_by.turns is self or purpose != "train"):
                _warn_of(turn, kept_by)
            yield
        finally:
            with _changed:
                _begun.remove(turn)
                _changed.notify_all()

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
                context, or within an earlier one of the call, may begin in either case.
        """
        thread = threading.current_thread()
        with _changed:
            own = [each for each in _begun if each.turns is self and each.thread is thread]
            turn = own[-1] if own else None
            if turn is not None:
                before = turn.lets_in, turn.known, turn.since
                turn.lets_in, turn.since = to, time.monotonic()
                turn.known = frozenset(threading.enumerate()) - turn.started
            due = [] if turn is None else _due(turn)
            _changed.notify_all()
        is_closed = False
        try:
            yield
        except GeneratorExit:
            is_closed = True
            raise
        finally:
            if turn is not None:
                with _changed:
                    turn.started = set(threading.enumerate()) - turn.known
                    if not is_closed:
                        turn.thread = threading.current_thread()
                        _changed.wait_for(lambda: _may_go_on(turn, due))
                        _go_on(turn)
                    turn.lets_in, turn.known, turn.since = before


def _wait_for(turn: _Turn) -> _Turn | None:
    """Waits until a call may begin.

    Returns:
        The call that has kept it waiting for so long that it begins within that call's code of the
        user's; None if there is none.
    """
    began = time.monotonic()
    while keeping := [last for last in _lasts(turn) if not last.lends_to(turn)]:
        last = keeping[-1]
        waited = time.monotonic() - max(began, last.since)
        if all(each.lets_in != "none" for each in keeping) and waited >= _PATIENCE:
            break
        _changed.wait(_PATIENCE / 10)
    return keeping[-1] if keeping else None


def _lasts(turn: _Turn) -> list[_Turn]:
    """Returns the last call that has begun of each model that is used, or shares something."""
    begun = list(_begun)  # the garbage collector may end a call meanwhile
    return list({each.turns: each for each in begun if turn.shares_with(each)}.values())


def _due(turn: _Turn) -> list[_Turn]:
    """Returns the calls that wait, and may begin now that a call lets in others."""
    waiting = [each for each in list(_waiting) if each.shares_with(turn)]
    return [each for each in waiting if all(last.lends_to(each) for last in _lasts(each))]


def _may_go_on(turn: _Turn, due: list[_Turn]) -> bool:
    within = [each for each in _begun[_begun.index(turn) + 1 :] if each.shares_with(turn)]
    is_alone = all(each.is_of_graph or each.thread is turn.thread for each in within)
    return is_alone and not any(each in due for each in _waiting)


def _go_on(turn: _Turn) -> None:
    """Makes a turn the last that has begun, after later ones of its thread.

    They stand still meanwhile, and whether others may begin depends on the last one.
    """
    within = [each for each in _begun[_begun.index(turn) + 1 :] if each.turns is turn.turns]
    if any(each.thread is turn.thread for each in within):
        _begun.remove(turn)
        _begun.append(turn)


def _warn_of(turn: _Turn, kept_by: _Turn) -> None:
    warn_user(
        f"The thread {turn.thread.name!r} uses the model to {turn.purpose} while the thread "
        f"{kept_by.thread.name!r} uses it to {kept_by.purpose}: a hook or the data has taken "
        f"{_PATIENCE:.0f} s there, and may be waiting for this call. As in Keras, what one call "
        "changes (metrics, and weights if it trains) is changed for the other one. Make the call "
        "in the hook itself, or in a thread that the hook starts; or evaluate in a hook at the end "
        "of an epoch."
    )


def _is_of_graph() -> bool:
    """Returns whether a graph of TensorFlow has called this code, as it calls a generator's."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _CODE_OF_GRAPHS:
            return True
        frame = frame.f_back
    return False
