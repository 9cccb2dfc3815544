"""Save points: the places in training where its state may be saved or restored.

There is a save point before the first step, after the batch hooks of an execution (a graph call of
one or more steps), after all `on_epoch_end`, and where a signal or a callback interrupts training.
After an execution, a callback is called only if its `is_due` has returned True on any task.
`kfit.callbacks.TrainingCallback` documents the hooks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from kfit.checkpoint.snapshot import Snapshot
from kfit.fault_sites import Site, reach
from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.errors import is_consequence
from kfit.heartbeat.summaries import summary_of
from kfit.training.callback import Reason, TrainingCallback
from kfit.training.fit_state import FitState
from kfit.training.noted_failure import NotedFailure
from kfit.training.share_snapshot import share_snapshot

FOREVER = 1 << 53
"""The number of steps to a save point that never comes; an integer that a float64 can hold."""


_LONGEST = 400
"""At most this many bytes of an error message are sent to the other tasks."""


_LONGEST_PATH = 900


def _rank(snapshot: Snapshot) -> tuple[bool, float]:
    """Returns a key that orders snapshots: of this `fit` before of a later one, then by age."""
    return "passed_by" in snapshot.about, -float(snapshot.about.get("created", 0.0))


class PeerFailedError(RuntimeError):
    """An error that is raised if a hook, a save or a restore has failed on another task.

    The message contains the error of the other task, if that error is known.
    """


class SavePoints:
    """The save points of one `fit`: places where callbacks may save, restore or interrupt training.

    All tasks come to a save point after the same step. If a callback fails on one task, the error
    is kept until the other tasks learn of it. Then an error is raised on all tasks.

    Args:
        fit: The state of the `fit`.
        heartbeat: The object that reports to the supervisor (`kfit run`), the process that watches
            the tasks, when this task saves.
    """

    def __init__(self, fit: FitState, heartbeat: Heartbeat) -> None:
        self._fit = fit
        self._heartbeat = heartbeat
        self._listeners = [c for c in fit.callbacks if isinstance(c, TrainingCallback)]
        together = [callback for callback in self._listeners if callback.takes_part]
        self._callbacks = sorted(together, key=lambda callback: not callback.goes_back)
        self._failure = NotedFailure(heartbeat, fit.strategy)
        self._has_begun = False

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def save_stops(self) -> bool:
        """Whether the state is saved when a signal stops training."""
        return any(callback.defines("saved_in") for callback in self._callbacks)

    def begin(self) -> None:
        """Looks for a snapshot to resume from; called before `on_train_begin`.

        Each callback gets the state of the `fit`. On the chief, each callback then looks for a
        snapshot. The snapshots that are found are sent to all tasks. Each is passed to its
        callback's `resume`, the newest first, until one requests that its snapshot be restored.
        For example, one callback may save often on a fast disk, and another one rarely on a slow
        disk that survives the machine.

        It is a collective: all tasks must call it.

        Raises:
            ValueError: If the callbacks that act at save points differ between the tasks.
            Exception: The error of a callback's `find_snapshot` or `resume` on this task.
            PeerFailedError: If `find_snapshot` has failed on another task.
        """
        for callback in self._listeners:
            callback.set_training(self._fit)
        self._check_same()
        snapshots = [(callback, self._found(callback)) for callback in self._callbacks]
        known = [(callback, found) for callback, found in snapshots if found is not None]
        for callback, snapshot in sorted(known, key=lambda pair: _rank(pair[1])):
            if self._fit.resuming is None and not self._fit.interrupted:
                callback.resume(snapshot)
        self._agree_on_number()
        resuming = self._fit.resuming
        if resuming is not None:
            states = resuming.snapshot.state["callbacks"] if "callbacks" in resuming.parts else []
            self._fit.memory.prepare(self._fit.callbacks, states)

    def _found(self, callback: TrainingCallback) -> Snapshot | None:
        """Returns the snapshot that a callback has found on the chief, on all tasks."""
        found = None
        try:
            if self._fit.is_chief:
                found = callback.find_snapshot()
        except Exception as error:
            self._failure.note(error)
        self._agree_on_failure()
        return share_snapshot(found, self._fit.strategy)

    def before_step(self, make_variables: Callable[[], None]) -> None:
        """Creates and restores variables that only a training step makes; called before each step.

        Examples are the slots of an optimizer that the model's own `train_step` builds. Only the
        call before the first step of the `fit` does anything.

        Args:
            make_variables: A function that traces the step without taking it, which creates the
                variables.
        """
        self._fit.before_step(make_variables)

    def remember(self) -> None:
        """Records the attributes of callbacks and of the model: what changes from now on is state.

        It is called after `on_train_begin`. It is a collective: all tasks must call it.
        """
        fit = self._fit
        if self._callbacks:
            with self.noting_failure():
                if fit.is_chief:
                    epoch = fit.progress.epoch if fit.resuming is None else None
                    fit.memory.begin_files(fit.callbacks, epoch)
                fit.own_attributes.begin()
                fit.memory.begin(fit.callbacks, fit.belongings(), saves=fit.is_chief)
        self._agree_on_failure()

    def end(self) -> None:
        """Calls `on_fit_end` of the callbacks, and waits until all tasks have done so.

        It is called after `on_train_end`. If training was interrupted, `on_fit_end` is not called.
        If a hook has failed on any task, an error is raised on all tasks.

        It is a collective: all tasks must call it.
        """
        self._agree_on_failure()
        if not self._fit.interrupted:
            for callback in self._listeners:
                with self.noting_failure():
                    callback.on_fit_end()
        self._agree_on_failure()

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Context for a call of a hook; keeps the hook's error until all tasks can stop together.

        All tasks stop when they next decide together how to continue. Until then this task
        continues, since the others would wait for it. If there is no other task, the error is
        raised at once.
        """
        try:
            yield
        except Exception as error:
            if self._fit.strategy.host_collectives.is_alone:
                raise
            self._failure.note(self._named(error))

    def cause_of(self, error: BaseException) -> BaseException:
        """Returns the error to raise in place of an error that ends this `fit`: the cause of it.

        If a hook has failed on this task before, the hook's error is the cause. Otherwise, if
        another task's failure has led to `error`, the cause is a PeerFailedError. In all other
        cases it is `error` itself.

        Args:
            error: The error that ends this `fit`.
        """
        if self._failure.error is not None:
            return self._failure.error
        return self._named(error) if isinstance(error, Exception) else error

    def _named(self, error: Exception) -> Exception:
        """Returns a PeerFailedError if another task's failure led to `error`, otherwise `error`.

        The message of the PeerFailedError says which task has failed.
        """
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
        """Whether a hook has failed on this task and the other tasks have not learned of it yet."""
        return self._failure.error is not None

    def note_usual(self, seconds: float) -> None:
        """Records how long a hook took, or how long this task waited for the hooks of other tasks.

        If a hook of this task fails later, this task waits for the other tasks before it aborts
        their collectives. It waits for the longest recorded time and 10 more seconds (`PATIENCE`).

        Args:
            seconds: The duration of the hook, or of the wait.
        """
        if not self.has_failed:
            self._failure.usual = max(self._failure.usual, seconds)

    def leave(self, succeeded: bool) -> None:
        """Calls `on_fit_exit` of all callbacks; called when `fit` is left, even if it has failed.

        Then it takes the state of this `fit` from the callbacks, which may outlive it.

        If the error of a failed hook is still kept for the other tasks (`noting_failure`), it is
        removed first, since `fit` now raises this error.

        Args:
            succeeded: Whether training came to its end.
        """
        self._failure.forget()
        self._fit.memory.end()
        with ExitStack() as stack:
            for callback in self._listeners:
                stack.callback(setattr, callback, "training", None)
            for callback in reversed(self._listeners):
                stack.callback(callback.on_fit_exit, succeeded)

    def due_on_this_task(self) -> tuple[int, int, bool]:
        """Asks the callbacks of this task when they want to be called at a save point.

        Returns:
            The number of steps until a callback must be asked again; which callbacks are to be
            called now, as an integer with a bit for each; and whether a callback has failed.
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
        """Calls the callbacks at a save point, where they may save, restore or interrupt training.

        If `stop_training` is True on any task afterwards, it is set on all tasks. It is a
        collective: all tasks must call it at the same save point.

        Args:
            reason: Which save point this is: "begin", "step", "epoch" or "stop".
            due: Only with "step": which callbacks to call, as an integer with a bit for each, in
                the order of `due_on_this_task`.

        Raises:
            Exception: The error of a callback that has failed on this task.
            PeerFailedError: If a callback has failed on another task.
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
            reach(Site.SAVE_POINT)
            if reason == "step":
                for callback in chosen:
                    with self.noting_failure():
                        callback.on_due()
            if reason == "stop" and self._fit.resuming is not None:
                self._restore_now()  # otherwise a mixture of two states would be saved
            for callback in chosen:
                with self.noting_failure():
                    callback.on_save_point(reason)
                goes_back = self._fit.resuming is not None
                if callback.goes_back:  # also if it has failed on this task
                    goes_back = self._fit.strategy.host_collectives.any_true(goes_back)
                if goes_back:
                    break
            model = self._fit.model
            own = [bool(model.stop_training), self.has_failed]
            views = self._fit.strategy.host_collectives.all_gather(own)
            model.stop_training = bool(views[:, 0].any())
            self.fail_if(bool(views[:, 1].any()))

    def restore(self, *, in_epoch: bool) -> None:
        """Restores the snapshot that training resumes from, if this is the place to restore it.

        The loop calls this method between two epochs and after each `on_epoch_begin`. A snapshot
        that was taken between two epochs is restored between two epochs, any other snapshot after
        `on_epoch_begin`. The first time that no snapshot is left to restore, callbacks are called
        at the save point "begin", too.

        Args:
            in_epoch: Whether this is after `on_epoch_begin`, and not between two epochs.
        """
        fit = self._fit
        if fit.resuming is not None and (in_epoch or fit.is_between_epochs):
            self._restore_now()
        if not self._has_begun and fit.resuming is None:
            self._has_begun = True
            self.visit("begin")

    def _restore_now(self) -> None:
        with self._fit.moving():
            self._fit.apply_restore()
        for callback in self._listeners:
            callback.on_restored()

    @property
    def leaves_epoch(self) -> bool:
        """Whether training leaves this epoch before its end.

        This is so if a callback has requested that a snapshot be restored, or has interrupted or
        stopped training.
        """
        fit = self._fit
        return fit.resuming is not None or fit.interrupted or bool(fit.model.stop_training)

    def saved_in(self) -> str:
        """Returns the directory in which the chief has saved the state after the present step.

        It is empty if the state is not saved. It is a collective: all tasks must call it.
        """
        if not self:
            return ""
        own = next((c.saved_in for c in self._callbacks if c.saved_in), "")
        return self._fit.strategy.host_collectives.texts(own, _LONGEST_PATH)[0]

    def fail_if(self, failed: bool) -> None:
        """Raises an error on all tasks if any task has failed; otherwise does nothing.

        If a task has failed, this is a collective: all tasks must call the method.

        Args:
            failed: Whether any task has failed; the same value on all tasks.

        Raises:
            Exception: The error of this task, if this task has failed.
            PeerFailedError: If only other tasks have failed.
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
        """Returns a sentence for each worker that has failed, with the error of the worker.

        It is a collective: all tasks must call it.

        Args:
            error: The error of this task; None if this task has not failed.
        """
        text = "" if error is None else summary_of(error)
        own = text.encode()[:_LONGEST].ljust(_LONGEST, b"\0")
        rows = self._fit.strategy.host_collectives.all_gather(list(own)).astype("uint8")
        lines = []
        for index, row in enumerate(rows):
            if text := row.tobytes().rstrip(b"\0").decode(errors="replace"):
                shown = "".join(char if char.isprintable() else " " for char in text)
                end = "" if shown.endswith(".") else "."
                lines.append(f"Worker {index} failed: {shown}{end}")
        return " ".join(lines)

    def _check_same(self) -> None:
        """Raises an error if the callbacks that act at save points differ between the tasks.

        At a save point, these callbacks save, restore or interrupt training on all tasks together.
        The check is a collective: all tasks must call it.
        """
        names = [type(callback).__name__ for callback in self._callbacks]
        views = self._fit.strategy.host_collectives.all_gather([zlib.crc32(repr(names).encode())])
        if len(set(views[:, 0])) > 1:
            raise ValueError(
                "`callbacks` must hold the same callbacks that save, restore or interrupt training "
                f"on every task, in one order. This task has {names}, another has others. Give "
                "them to all tasks: what they write, the chief writes."
            )

    def _agree_on_number(self) -> None:
        """Gives all tasks the chief's number of this `fit` in the program.

        Only the chief may have learned of it from snapshots, and a program may have called another
        `fit` on the chief only. It is a collective: all tasks must call it.
        """
        own = [self._heartbeat.fit_number]
        numbers = self._fit.strategy.host_collectives.all_gather(own)
        self._heartbeat.set_fit_number(int(numbers[0, 0]))

    def _agree_on_failure(self) -> None:
        self.fail_if(self._fit.strategy.host_collectives.any_true(self.has_failed))
