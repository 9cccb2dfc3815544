"""`ModelCheckpoint`: a callback that saves the model regularly, or when it is the best so far."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from kfit.argument_checks import check_no_url, check_positive, checked_save_freq
from kfit.callbacks.monitor import Mode, Monitor
from kfit.checkpoint.schema import count, each, is_a, number, optional, record
from kfit.checkpoint.snapshot import Snapshot
from kfit.heartbeat.tracebacks import warn_user
from kfit.lazy import closest_name
from kfit.saving import write_path
from kfit.training.callback import TrainingCallback
from kfit.user_files.file_template import FileTemplate
from kfit.user_files.replacement import check_replaceable


class ModelCheckpoint(TrainingCallback):
    """A callback that saves the model or its weights, as `keras.callbacks.ModelCheckpoint` does.

    Files are replaced atomically, so readers never see an incomplete file. With several workers the
    chief writes the files. They can be loaded under any strategy, and in Keras without kfit. If
    `fit` also has the callback BackupAndRestore, the best value so far is kept when training is
    restarted, so a worse model never replaces the best.

    Only model files are replaced, and only files that this callback has saved are deleted. The
    callback remembers the names of its files relative to the folder of `filepath`. So if a run
    continues in a copy of the folder, only files in the copy are deleted.

    Example:
        >>> best = kfit.callbacks.ModelCheckpoint(
        ...     "best.keras", monitor="val_accuracy", save_best_only=True
        ... )
        >>> trainer.fit(x, y, validation_data=(xv, yv), callbacks=[best])

    Args:
        filepath: The path of the file. It ends in ".keras" or ".h5", or in ".weights.h5" with
            `save_weights_only`. It may contain `{epoch}` (counted from 1) and the names of the
            logs, as in `"{epoch:02d}-{val_loss:.2f}.keras"`. With an integer as `save_freq` it may
            also contain `{batch}` and `{step}`.
        monitor: The name of the loss or metric in the logs that decides which model is the best.
        verbose: 0 is silent, 1 prints what is saved and why.
        save_best_only: Whether to save a model only if it is better than all models before.
        save_weights_only: Whether to save only the weights.
        mode: Whether the best value is the smallest ("min") or the largest ("max"). "auto" means
            "min" for a loss, and for a metric the direction that the metric itself declares.
        save_freq: "epoch", or an integer to save after every so many steps. The model is saved
            exactly at these steps, whatever `steps_per_execution` is.
        initial_value_threshold: With `save_best_only`, the value that the first saved model must be
            better than.
        max_to_keep: The number of files to keep; when there are more, the oldest are deleted. None
            keeps all.

    Raises:
        ValueError: If an argument is wrong, if `filepath` has a field that is not in the logs, or
            if a file that is not a model would be replaced.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: Mode = "auto",
        save_freq: Literal["epoch"] | int = "epoch",
        initial_value_threshold: float | None = None,
        *,
        max_to_keep: int | None = None,
    ) -> None:
        super().__init__()
        self.filepath = os.fspath(filepath)
        check_no_url("filepath", self.filepath)
        endings = (".weights.h5",) if save_weights_only else (".keras", ".h5")
        if not self.filepath.endswith(endings) or (
            not save_weights_only and self.filepath.endswith(".weights.h5")
        ):
            raise ValueError(
                f"`filepath` must end in {' or '.join(map(repr, endings))} with "
                f"save_weights_only={save_weights_only}. Received: {self.filepath!r}"
            )
        check_positive(max_to_keep=max_to_keep)
        self.verbose = verbose
        self.save_best_only = save_best_only
        self.save_weights_only = save_weights_only
        self.save_freq = checked_save_freq(save_freq, "epoch")
        self.max_to_keep = max_to_keep
        self._monitor = Monitor(monitor, mode, best=initial_value_threshold)
        self._template = FileTemplate(self.filepath)
        self._saved: list[str] = []  # names relative to the template's folder
        self._saved_step = 0

    @property
    def monitor(self) -> str:
        """The name of the loss or metric in the logs that decides which model is the best."""
        return self._monitor.name

    @property
    def mode(self) -> Mode:
        """Whether a smaller or a larger value is better; "auto" until the first comparison."""
        return self._monitor.mode

    @property
    def best(self) -> float | None:
        """The best value so far of the monitored loss or metric; None if there is none yet."""
        return self._monitor.best

    def find_snapshot(self) -> Snapshot | None:
        """Checks that a file that exists at `filepath` may be replaced; always returns None.

        It is called only on the chief, before training begins. The check is made in this hook since
        it is the first one; there is no snapshot to find. If `filepath` has fields, such as
        `{epoch}`, its files are checked later, when they are saved.

        Raises:
            ForeignFileError: If the existing file must not be replaced.
        """
        if not self._template.has_fields:
            check_replaceable(self.filepath, "file", argument="filepath")
        return None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that `save_freq` can be used in this `fit`.

        Raises:
            ValueError: If `save_freq` is an integer and the model is trained by `keras.Model.fit`,
                which does not call the hooks of kfit that save at a step.
        """
        self._saved_step = 0 if self.training is None else self._progress.step
        if isinstance(self.save_freq, int) and self.training is None:
            raise ValueError(
                "`save_freq` must be 'epoch' under keras.Model.fit; to save at a step, train by "
                f"kfit.Trainer, kfit.Model or kfit.fit. Received: {self.save_freq}"
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves the model at the end of an epoch, if `save_freq` is "epoch"."""
        if self.save_freq == "epoch":
            self._save({"epoch": epoch + 1}, logs or {})

    def steps_until_due(self) -> int | None:
        """Returns the number of steps until the model is saved; None if `save_freq` is "epoch"."""
        if self.save_freq == "epoch":
            return None
        return self.save_freq - self._progress.step % self.save_freq

    def is_due(self) -> bool:
        """Returns whether the model must be saved now; always False if `save_freq` is "epoch"."""
        if self.save_freq == "epoch":
            return False
        return bool(self._progress.step // self.save_freq > self._saved_step // self.save_freq)

    def on_due(self) -> None:
        """Saves the model after the current step; called if `is_due` has returned True."""
        at = self._progress
        self._saved_step = at.step
        place = {"epoch": at.epoch + 1, "batch": at.step_in_epoch, "step": at.step}
        self._save(place, self.training.logs)

    def state_dict(self) -> dict[str, Any]:
        """Returns the best value and the names of the saved files, to keep them in a restart."""
        return {
            **self._monitor.state_dict(),
            "saved": list(self._saved),
            "saved_step": self._saved_step,
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if a state from a file cannot be one that `state_dict` returned."""
        record({"best": optional(number), "saved": each(is_a(str)), "saved_step": count})(
            state, "the state of ModelCheckpoint"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the best value and the names of the saved files.

        It is called when training resumes, and when a `RollBack` returns to an earlier state. Files
        that were saved after that state are remembered, too, since they still exist.
        """
        self._monitor.load_state_dict(state)
        # After a rollback, files that this process saved after that state still exist.
        kept = [name for name in state["saved"] if self._template.names(name)]
        later = (name for name in self._saved if name not in kept and self._template.exists(name))
        self._saved = [*kept, *later]
        self._saved_step = state["saved_step"]

    @property
    def _is_chief(self) -> bool:
        """Whether this process writes the files.

        With several workers only the chief does. Under `keras.Model.fit` every process does.
        """
        return self.training is None or self.training.is_chief

    @property
    def _progress(self) -> Any:
        return self.training.progress

    def _save(self, place: dict[str, int], logs: dict[str, Any]) -> None:
        """Saves the model; with `save_best_only` only if the model is the best so far.

        If there are more than `max_to_keep` files afterwards, the oldest are deleted.

        Args:
            place: The numbers of the epoch and, if the model is saved after a step, of the batch
                and the step. They replace the fields `{epoch}`, `{batch}` and `{step}` of
                `filepath`.
            logs: The logs, whose values replace other fields of `filepath`.
        """
        if self.save_best_only and self._awaits_validation(logs):
            return
        path = self._path(place, logs)
        why = "saving" if not self.save_best_only else self._improvement(logs)
        if self.verbose and self._is_chief:
            print(f"\nEpoch {place['epoch']}: {why or 'not saving'}: {path}", flush=True)
        if why is None:
            return
        if self._is_chief:
            with write_path(path, "filepath") as aside:
                if self.save_weights_only:
                    self.model.save_weights(aside, overwrite=True)
                else:
                    self.model.save(aside, overwrite=True)
        self._forget(path)

    def _awaits_validation(self, logs: dict[str, Any]) -> bool:
        """Returns whether the monitored value is missing since this epoch had no validation.

        So it is with the argument `validation_freq` of `fit`. Under `keras.Model.fit` it is not
        known whether there are validations at all, so a warning says that nothing is saved.
        """
        if self.save_freq != "epoch" or not self.monitor.startswith("val_"):
            return False
        if any(name.startswith("val_") for name in logs):
            return False
        training: Any = self.training
        if training is None:
            warn_user(f"{self.monitor} is not in the logs of this epoch; the model is not saved.")
        return training is None or training.validation is not None

    def _improvement(self, logs: dict[str, Any]) -> str | None:
        """Compares the model with the best model so far, by the monitored value in the logs.

        If the model is better, its value becomes the best value.

        Returns:
            A text for the user that describes the improvement; None if the model is not better.

        Raises:
            ValueError: If `monitor` does not name a number in the logs.
        """
        value = logs.get(self.monitor)
        if value is None or np.ndim(value) > 0:
            meant = closest_name(self.monitor, logs)
            hint = f" Did you mean {meant!r}?" if meant else ""
            if self.monitor.startswith("val_") and not any(k.startswith("val_") for k in logs):
                hint = " Names with `val_` need `validation_data`."
            raise ValueError(
                f"`monitor` must name a number in the logs with save_best_only=True. Received: "
                f"{self.monitor!r}; the logs have {sorted(logs)}.{hint}"
            )
        self._monitor.resolve(self.model)
        if not np.isfinite(value) and self._is_chief:
            warn_user(f"{self.monitor} is {value}; the model is not saved.")
        if not self._monitor.is_better(float(value)):
            return None
        before, self._monitor.best = self.best, float(value)
        earlier = "None" if before is None else f"{before:.5f}"
        return f"{self.monitor} improved from {earlier} to {value:.5f}, saving"

    def _path(self, place: dict[str, int], logs: dict[str, Any]) -> str:
        try:
            return self.filepath.format(**{**logs, **place})
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"`filepath` may have only these fields: {sorted({**logs, **place})}. "
                f"Received: {self.filepath!r} ({error!r})"
            ) from error

    def _forget(self, path: str) -> None:
        """Records a file that was saved, and deletes the oldest files beyond `max_to_keep`.

        Args:
            path: The path of the file that was saved.
        """
        name = self._template.name_of(path)
        self._saved = [saved for saved in self._saved if saved != name] + [name]
        while self.max_to_keep is not None and len(self._saved) > self.max_to_keep:
            oldest = self._saved.pop(0)
            if self._is_chief:
                self._template.remove(oldest)
