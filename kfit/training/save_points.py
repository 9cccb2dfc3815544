"""Save points: the places in training where its state may be saved or exchanged.

There is one before the first step, one after the batch hooks of an execution, one after all
`on_epoch_end`, and one where a signal stops training. After a step a callback is called when
its `is_due` is True on any task; `kfit.callbacks.TrainingCallback` documents the hooks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.errors import is_consequence
from kfit.training.callback import Reason, TrainingCallback
from kfit.training.fit_state import FitState
from kfit.training.noted_failure import NotedFailure
from kfit.training.share_snapshot import share_snapshot

FOREVER = 1 << 53
"""Steps until what never comes; a whole number that a float64 holds."""


_LONGEST = 400
"""Bytes of an error that are sent to the other tasks."""


class PeerFailedError(RuntimeError):
    """A hook, a save or a restore has failed on another task, whose error the message names."""


class SavePoints:
    """Calls the callbacks that save, restore or interrupt training, at the same step of all tasks.

    Args:
        fit: The `fit` under way.
        heartbeat: Reports to the supervisor that this task saves.
    """

    def __init__(self, fit: FitState, heartbeat: Heartbeat) -> None:
        self._fit = fit
        self._heartbeat = heartbeat
        self._listeners = [c for c in fit.callbacks if isinstance(c, TrainingCallback)]
        self._callbacks = [callback for callback in self._listeners if callback.takes_part]
        self._failure = NotedFailure(heartbeat, fit.strategy)
        self._has_begun = False

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def begin(self) -> None:
        """Before `on_train_begin`: gives the callbacks the state, and looks for a snapshot."""
        for callback in self._listeners:
            callback.set_training(self._fit)
        self._check_same()
        for callback in self._callbacks:
            found = None
            try:
                if self._fit.is_chief:
                    found = callback.find_snapshot()
            except Exception as error:
                self._failure.note(error)
            self._agree_on_failure()
            snapshot = share_snapshot(found, self._fit.strategy)
            if snapshot is not None and self._fit.resuming is None:
                callback.resume(snapshot)
        resuming = self._fit.resuming
        if resuming is not None:
            states = resuming.snapshot.state["callbacks"] if "callbacks" in resuming.parts else []
            self._fit.memory.prepare(self._fit.callbacks, states)

    def before_step(self, make_variables: Callable[[], None]) -> None:
        """Before each step: makes and restores the variables that only a first step makes."""
        self._fit.before_step(make_variables)

    def remember(self) -> None:
        """After `on_train_begin`: attributes that callbacks change from now on are their state."""
        fit = self._fit
        if self._callbacks:
            with self.noting_failure():
                fit.memory.begin(fit.callbacks, fit.belongings(), saves=fit.is_chief)
        self._agree_on_failure()

    def end(self) -> None:
        """After `on_train_end`: calls `on_fit_end`, and waits until all tasks have done so.

        Where training was interrupted nothing is called, but an error of any task is raised on all.
        """
        self._agree_on_failure()
        if not self._fit.interrupted:
            for callback in self._listeners:
                with self.noting_failure():
                    callback.on_fit_end()
        self._agree_on_failure()

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Keeps an error that is raised within it, so that all tasks stop at their next decision.

        Until then this task goes on, since the others would wait for it. A task that trains alone
        raises the error at once.
        """
        try:
            yield
        except Exception as error:
            if self._fit.strategy.host_collectives.is_alone:
                raise
            self._failure.note(self._named(error))

    def cause_of(self, error: BaseException) -> BaseException:
        """The error that was kept before `error`; else `error`, or the peer's failure behind it."""
        if self._failure.error is not None:
            return self._failure.error
        return self._named(error) if isinstance(error, Exception) else error

    def _named(self, error: Exception) -> Exception:
        """The error; or a PeerFailedError where it is a consequence of a peer's failure."""
        peer = self._fit.strategy.failed_peer
        if not peer or isinstance(error, PeerFailedError) or not is_consequence(error):
            return error
        named = PeerFailedError(
            f"{peer.capitalize()} has failed; its own output says why. This task stops with it."
        )
        named.__cause__ = error
        return named

    @property
    def has_failed(self) -> bool:
        """Whether a hook has failed here and the other tasks have not learned of it yet."""
        return self._failure.error is not None

    def note_usual(self, seconds: float) -> None:
        """Records how long a hook took, or this task waited for the hooks of the others."""
        if not self.has_failed:
            self._failure.usual = max(self._failure.usual, seconds)

    def leave(self, succeeded: bool) -> None:
        """Calls `on_fit_exit` of all callbacks, however `fit` ends."""
        self._failure.forget()
        self._fit.memory.end()
        with ExitStack() as stack:
            for callback in reversed(self._listeners):
                stack.callback(callback.on_fit_exit, succeeded)

    def due_on_this_task(self) -> tuple[int, int, bool]:
        """What the callbacks of this task want.

        Returns:
            The steps until the next save point; which callbacks are due now, a bit for each; and
            whether one has failed.
        """
        if self.has_failed:
            return FOREVER, 0, True
        try:
            steps = [callback.steps_until_due() for callback in self._callbacks]
            due = [callback.is_due() for callback in self._callbacks]
        except Exception as error:
            self._failure.note(error)
            return FOREVER, 0, True
        bits = sum(1 << index for index, is_due in enumerate(due) if is_due)
        return min((n for n in steps if n is not None), default=FOREVER), bits, False

    def visit(self, reason: Reason, due: int = 0) -> None:
        """Calls the callbacks at a save point; all tasks call it at the same one.

        Args:
            reason: "begin", "step", "epoch" or "stop".
            due: With "step", which callbacks to call, as in `due_on_this_task`.
        """
        chosen = [
            callback
            for index, callback in enumerate(self._callbacks)
            if reason != "step" or due >> index & 1
        ]
        if not chosen:
            return
        # The others wait in this phase while the chief writes; the supervisor allows time for it.
        with self._heartbeat.phase(Phase.SAVING):
            if reason == "step":
                for callback in chosen:
                    with self.noting_failure():
                        callback.on_due()
            for callback in chosen:
                with self.noting_failure():
                    callback.on_save_point(reason)
            model = self._fit.model
            own = [bool(model.stop_training), self.has_failed]
            views = self._fit.strategy.host_collectives.all_gather(own)
            model.stop_training = bool(views[:, 0].any())
            self.fail_if(bool(views[:, 1].any()))

    def restore(self, *, in_epoch: bool) -> None:
        """Restores the snapshot that training resumes from, if it was taken at this place.

        Without a snapshot, or once it is restored, this is the first save point: "begin".

        Args:
            in_epoch: Whether this is after `on_epoch_begin`, and not between two epochs.
        """
        fit = self._fit
        if fit.resuming is not None and (in_epoch or fit.is_between_epochs):
            with self._heartbeat.phase(Phase.SKIPPING):
                fit.apply_restore()
        if not self._has_begun and fit.resuming is None:
            self._has_begun = True
            self.visit("begin")

    @property
    def leaves_epoch(self) -> bool:
        """Whether training leaves this epoch: it restores a snapshot, is interrupted or stops."""
        fit = self._fit
        return fit.resuming is not None or fit.interrupted or bool(fit.model.stop_training)

    def fail_if(self, failed: bool) -> None:
        """Ends training on all tasks where any has failed.

        Args:
            failed: Whether any has; the same value on all tasks, since this is a collective.

        Raises:
            Exception: The error of this task.
            PeerFailedError: On the tasks that have not failed.
        """
        if not failed:
            return
        failures = self._failures(self._failure.error)
        error = self._failure.forget()
        if error is not None:
            raise error
        failures = failures or "Another task has failed; its own output says why."
        raise PeerFailedError(f"{failures} This task stops with it.")

    def _failures(self, error: Exception | None) -> str:
        """A sentence for each worker that has failed, with its error; a collective."""
        text = "" if error is None else f"{type(error).__name__}: {error}"
        own = text.encode()[:_LONGEST].ljust(_LONGEST, b"\0")
        rows = self._fit.strategy.host_collectives.all_gather(list(own)).astype("uint8")
        lines = []
        for index, row in enumerate(rows):
            if text := row.tobytes().rstrip(b"\0").decode(errors="replace"):
                shown = "".join(char if char.isprintable() else " " for char in text)
                lines.append(f"Worker {index} failed: {shown}.")
        return " ".join(lines)

    def _check_same(self) -> None:
        """Refuses tasks with other callbacks: all call those that act at save points together."""
        names = [type(callback).__name__ for callback in self._callbacks]
        views = self._fit.strategy.host_collectives.all_gather([zlib.crc32(repr(names).encode())])
        if len(set(views[:, 0])) > 1:
            raise ValueError(
                "`callbacks` must hold the same callbacks that save, restore or interrupt training "
                f"on every task, in one order. This task has {names}, another has others. Give "
                "them to all tasks: what they write, the chief writes."
            )

    def _agree_on_failure(self) -> None:
        self.fail_if(self._fit.strategy.host_collectives.any_true(self.has_failed))
