"""Save points: the places in training where its state may be saved or exchanged.

There is one before the first step, one after the batch hooks of an execution, one after all
`on_epoch_end`, and one where a signal stops training. After a step, a callback is called when it,
or its twin on another task, says that it is due; `kfit.callbacks.TrainingCallback` documents the
hooks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.errors import is_consequence
from kfit.training.callback import Reason, TrainingCallback
from kfit.training.fit_state import Training
from kfit.training.noted_failure import NotedFailure

FOREVER = 1 << 53
"""Steps until what never comes; a whole number that a float64 holds."""


_LONGEST = 400
"""Bytes of an error that the other tasks are told."""


class PeerFailedError(RuntimeError):
    """A hook has failed on another task, or it could not save or restore; its error is in this."""


class SavePoints:
    """Asks the callbacks what is due, and lets all tasks agree on it.

    Args:
        training: The training.
        heartbeat: What tells the supervisor of this task that it saves.
    """

    def __init__(self, training: Training, heartbeat: Heartbeat) -> None:
        self._training = training
        self._heartbeat = heartbeat
        self._told = [c for c in training.callbacks if isinstance(c, TrainingCallback)]
        self._callbacks = [callback for callback in self._told if callback.takes_part]
        self._failure = NotedFailure(heartbeat, training.strategy)
        self._has_begun = False

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def begin(self) -> None:
        """Before `on_train_begin`: hands out the training, and looks for what to go on from."""
        for callback in self._told:
            callback.set_training(self._training)
        self._check_same()
        for callback in self._callbacks:
            found = None
            try:
                if self._training.is_chief:
                    found = callback.find_snapshot()
            except Exception as error:
                self._failure.note(error)
            self._agree_on_failure()
            snapshot = self._training.share(found)
            if snapshot is not None and self._training.resuming is None:
                callback.resume(snapshot)
        resuming = self._training.resuming
        if resuming is not None:
            states = resuming.snapshot.state["callbacks"] if "callbacks" in resuming.parts else []
            self._training.memory.prepare(self._training.callbacks, states)

    def before_step(self, make_variables: Callable[[], None]) -> None:
        """Before each step: has the variables that only a first step makes be there, restored."""
        self._training.before_step(make_variables)

    def remember(self) -> None:
        """After `on_train_begin`: what the callbacks change from now on is their state."""
        training = self._training
        if self._callbacks:
            with self.noting_failure():
                training.memory.begin(
                    training.callbacks, training.belongings(), saves=training.is_chief
                )
        self._agree_on_failure()

    def end(self) -> None:
        """When training has come to its end, after `on_train_end`: no task leaves before the rest.

        Where it was interrupted nothing is called, but what has failed meanwhile is told to all.
        """
        self._agree_on_failure()
        if not self._training.interrupted:
            for callback in self._told:
                with self.noting_failure():
                    callback.on_fit_end()
        self._agree_on_failure()

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Notes what fails within, for all tasks to stop at the next place where they agree.

        Until then this task goes on: the others, who know nothing of it, would wait for it.
        """
        try:
            yield
        except Exception as error:
            if self._training.host_collectives.is_alone:
                raise
            self._failure.note(self._named(error))

    def cause_of(self, error: BaseException) -> BaseException:
        """What has failed here before `error`, which may be for a task that is gone; or itself."""
        if self._failure.error is not None:
            return self._failure.error
        return self._named(error) if isinstance(error, Exception) else error

    def _named(self, error: Exception) -> Exception:
        """The error; that a peer has failed, where it only comes of that."""
        peer = self._training.strategy.failed_peer
        if not peer or isinstance(error, PeerFailedError) or not is_consequence(error):
            return error
        named = PeerFailedError(
            f"{peer.capitalize()} has failed; its own output says why. This task stops with it."
        )
        named.__cause__ = error
        return named

    @property
    def has_failed(self) -> bool:
        """Whether something has failed here that the other tasks have still to be told."""
        return self._failure.error is not None

    def note_usual(self, seconds: float) -> None:
        """Notes how long a hook took, or this task waited for the others' hooks to end."""
        if not self.has_failed:
            self._failure.usual = max(self._failure.usual, seconds)

    def leave(self, succeeded: bool) -> None:
        """When `fit` is left, however that happens."""
        self._failure.forget()
        self._training.memory.end()
        with ExitStack() as stack:
            for callback in reversed(self._told):
                stack.callback(callback.on_fit_exit, succeeded)

    def due_on_this_task(self) -> tuple[int, int, bool]:
        """What this task says.

        Returns:
            The steps until the next save point; whose is due, a bit for each callback; and whether
            one has failed.
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
        """Calls the callbacks at a save point; on all tasks at the same one.

        Args:
            reason: "begin", "step", "epoch" or "stop".
            due: With "step", whose turn it is, as in `due_on_this_task`; else it is everybody's.
        """
        chosen = [
            callback
            for index, callback in enumerate(self._callbacks)
            if reason != "step" or due >> index & 1
        ]
        if not chosen:
            return
        # The others wait here, where they are given time, for the chief, which may write for long.
        with self._heartbeat.phase(Phase.SAVING):
            if reason == "step":
                for callback in chosen:
                    with self.noting_failure():
                        callback.on_due()
            for callback in chosen:
                with self.noting_failure():
                    callback.on_save_point(reason)
            model = self._training.model
            own = [bool(model.stop_training), self.has_failed]
            views = self._training.host_collectives.all_gather(own)
            model.stop_training = bool(views[:, 0].any())
            self.fail_if(bool(views[:, 1].any()))

    def visit_begin(self) -> None:
        """The first save point, once, when the state that training begins with is loaded."""
        if not self._has_begun and self._training.resuming is None:
            self._has_begun = True
            self.visit("begin")

    @property
    def leaves_epoch(self) -> bool:
        """Whether training is to go on from another state than the one it is in, or not at all."""
        training = self._training
        return (
            training.resuming is not None
            or training.interrupted
            or bool(training.model.stop_training)
        )

    def fail_if(self, failed: bool) -> None:
        """Ends training on all tasks where any has failed.

        Args:
            failed: Whether any has; the same on all tasks, since they tell each other what.

        Raises:
            Exception: What failed here.
            PeerFailedError: Elsewhere.
        """
        if not failed:
            return
        told = self._told_of(self._failure.error)
        error = self._failure.forget()
        if error is not None:
            raise error
        told = told or "Another task has failed; its own output says why."
        raise PeerFailedError(f"{told} This task stops with it.")

    def _told_of(self, error: Exception | None) -> str:
        """What has failed on which worker, as the tasks tell each other."""
        text = "" if error is None else f"{type(error).__name__}: {error}"
        own = text.encode()[:_LONGEST].ljust(_LONGEST, b"\0")
        rows = self._training.host_collectives.all_gather(list(own)).astype("uint8")
        lines = []
        for index, row in enumerate(rows):
            if text := row.tobytes().rstrip(b"\0").decode(errors="replace"):
                shown = "".join(char if char.isprintable() else " " for char in text)
                lines.append(f"Worker {index} failed: {shown}.")
        return " ".join(lines)

    def _check_same(self) -> None:
        """All tasks meet at the save points, so all must have the callbacks that act there."""
        names = [type(callback).__name__ for callback in self._callbacks]
        views = self._training.host_collectives.all_gather([zlib.crc32(repr(names).encode())])
        if len(set(views[:, 0])) > 1:
            raise ValueError(
                "`callbacks` must hold the same callbacks that save, restore or interrupt training "
                f"on every task, in one order. This task has {names}, another has others. Give "
                "them to all tasks: what they write, the chief writes."
            )

    def _agree_on_failure(self) -> None:
        self.fail_if(self._training.host_collectives.any_true(self.has_failed))
