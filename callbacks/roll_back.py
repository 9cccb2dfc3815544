"""`RollBack`: a callback that restores an earlier state if the loss becomes NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from kfit.argument_checks import check_positive, checked_save_freq
from kfit.checkpoint.schema import count, record
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.state import is_finite
from kfit.heartbeat.tracebacks import warn_user
from kfit.training.callback import Reason, TrainingCallback


class RollBack(TrainingCallback):
    """A callback that restores the last good state when the loss or a weight is NaN or infinite.

    A copy of the last good state of training is kept in memory. The copy is made at the beginning,
    at the end of each epoch and, with an integer as `save_freq`, every so many steps. A rollback
    restores this state, on all workers together. Training then repeats the steps since that state
    one by one, until it finds the batch that caused the problem. It skips this batch and continues
    with the next batch, as if the bad batch had not been in the data.

    The data must be able to go back to an earlier position: arrays, a PyDataset, or a tf.data
    pipeline. If the pipeline has a `shuffle` that draws a new order in each pass over the data, its
    order changes with each rollback, so the batch that is skipped may be a good one. Skipped
    batches are not counted as steps.

    Args:
        on: When to roll back: "nan" if the loss or a weight is NaN or infinite; or a function that
            gets the logs of a step and returns whether something is wrong.
        skip: Whether to skip the batch that caused the problem. If False, the same steps are
            repeated; this is useful together with a callback that changes the learning rate.
        max_rollbacks: How many rollbacks are allowed. A further rollback raises an error.
        save_freq: "epoch" to keep the state at the end of each epoch; an integer to keep it also
            after every so many steps.

    Attributes:
        rollbacks: The number of rollbacks so far. When the bad batch has been found, training goes
            back a second time to skip it; this second time is not counted.

    Raises:
        ValueError: If an argument is wrong, or the data cannot go back.
        RuntimeError: If there are more than `max_rollbacks` rollbacks.
    """

    goes_back = True
    _needs_kfit = True

    def __init__(
        self,
        on: Literal["nan"] | Callable[[dict[str, Any]], bool] = "nan",
        *,
        skip: bool = True,
        max_rollbacks: int = 10,
        save_freq: Literal["epoch"] | int = "epoch",
    ) -> None:
        super().__init__()
        if on != "nan" and not callable(on):
            raise ValueError(f'`on` must be "nan" or a function of the logs. Received: {on!r}')
        check_positive(max_rollbacks=max_rollbacks)
        self._on = on
        self._skip = skip
        self._max_rollbacks = max_rollbacks
        self._save_freq = checked_save_freq(save_freq, "epoch")
        self._good: Snapshot | None = None
        self._bad_at: tuple[int, int] | None = None
        self._skipped = 0
        self._judged: tuple[tuple[int, int], bool] | None = None
        self.rollbacks = 0

    def steps_until_due(self) -> int | None:
        """Returns the number of steps until the state must be checked, and kept if it is good.

        With `save_freq="epoch"` the result is usually None, since the state is kept at the ends of
        epochs. But while training searches for the bad batch after a rollback, the result is 1, so
        that the state is checked after each step.
        """
        if self._bad_at is not None:
            return 1
        if self._save_freq == "epoch":
            return None
        return self._save_freq - self._progress.step % self._save_freq

    def is_due(self) -> bool:
        """Returns whether `on_save_point` must be called now, to keep the state or to roll back.

        It must be called if the logs are bad. If `save_freq` is an integer, it must also be called
        after every `save_freq` steps. While training searches for the bad batch after a rollback,
        it must be called after each step.
        """
        if self._bad_at is not None or self._is_bad():
            return True
        return self._save_freq != "epoch" and self._progress.step % self._save_freq == 0

    def on_save_point(self, reason: Reason) -> None:
        """Keeps the state of training in memory if it is good; otherwise rolls training back.

        A rollback restores the good state that was kept last. If there is none yet, nothing
        happens.

        Args:
            reason: Why it is called now; see `TrainingCallback.on_save_point`.
        """
        if reason == "stop":
            return
        now = self.training.snapshot()
        model, kept = self.training.model, now.state["variables"]
        if not self._is_bad() and (self._on != "nan" or is_finite(model, kept)):
            self._good, self._skipped = now, 0
            if self._bad_at is not None and self._place > self._bad_at:
                self._bad_at = None
        elif self._good is not None:
            self._go_back()

    def on_restored(self) -> None:
        """Takes the restored state for a good one: its logs were judged before it was kept."""
        self._judged = (self._place, False)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of rollbacks as a dict, to keep it when training is restarted."""
        return {"rollbacks": self.rollbacks}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if a state from a file cannot be one that `state_dict` returned."""
        record({"rollbacks": count})(state, "the state of RollBack")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the number of rollbacks, but never lowers it.

        It is also called in a rollback, since this restores the states of all callbacks. The number
        must not go back then.
        """
        self.rollbacks = max(self.rollbacks, state["rollbacks"])

    def on_fit_exit(self, succeeded: bool) -> None:
        """Deletes the copy of the last good state, to free its memory."""
        self._good = self._bad_at = None

    @property
    def _progress(self) -> Any:
        return self.training.progress

    @property
    def _place(self) -> tuple[int, int]:
        return self._progress.epoch, self._progress.step_in_epoch

    def _is_bad(self) -> bool:
        """Returns whether the logs of the current step are bad, by the argument `on`.

        The result is stored, so that a function of the user's is called only once for each step.
        """
        if self._judged is None or self._judged[0] != self._place:
            logs = self.training.logs
            if callable(self._on):
                is_bad = bool(logs) and bool(self._on(logs))
            else:
                is_bad = not np.all(np.isfinite(logs.get("loss", 0.0)))
            self._judged = (self._place, is_bad)
        return self._judged[1]

    def _go_back(self) -> None:
        """Requests that training returns to the last good state; called when the state is bad.

        The first time, it is unknown which batch is bad. Training returns to the last good state,
        and then takes one step at a time, after each of which a good state is kept. When the state
        becomes bad again, the last good state is the one just before the bad batch. Training
        returns to this state, and skips the batch unless `skip` is False.

        Raises:
            RuntimeError: If there are more than `max_rollbacks` rollbacks.
        """
        assert self._good is not None
        skips = self._skip and self._bad_at is not None
        if not skips or self._skipped:  # the batch that caused it was counted when it went wrong
            self.rollbacks += 1
        if self.rollbacks > self._max_rollbacks:
            raise RuntimeError(
                f"Training went wrong {self.rollbacks} times; `max_rollbacks` is "
                f"{self._max_rollbacks}."
            )
        epoch, step = self._place
        to = self._good.about["step"]
        if skips:
            warn_user(f"Leaving out the batch of step {step} of epoch {epoch + 1}.")
            self._skipped += 1  # as well as those between the good state and this batch
        else:
            at = f"step {step} of epoch {epoch + 1}" if step else f"the end of epoch {epoch}"
            warn_user(
                f"Training went wrong by step {self._progress.step}, {at}; going back to step {to}."
            )
        if self._skip:
            self._bad_at = max(self._bad_at or self._place, self._place)
        self.training.request_restore(self._good, skip=self._skipped if skips else 0)
