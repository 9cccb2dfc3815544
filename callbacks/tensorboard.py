"""`TensorBoard`: a callback that writes what TensorBoard shows of a training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from kfit.argument_checks import is_integer
from kfit.callbacks.epoch_times import CURVES, EpochTimes
from kfit.callbacks.event_writers import EventWriters
from kfit.callbacks.model_readings import learning_rates, steps_taken, weights_by_path
from kfit.callbacks.profiled_steps import ProfiledSteps
from kfit.callbacks.training_speed import TrainingSpeed
from kfit.checkpoint.event_files import EventFiles
from kfit.checkpoint.written_files import check_events
from kfit.heartbeat.tracebacks import warn_user
from kfit.saving import is_chief, is_evaluator
from kfit.training.callback import Reason, TrainingCallback


class TensorBoard(TrainingCallback):
    """A callback that writes what TensorBoard shows of a training.

    It takes the arguments of `keras.callbacks.TensorBoard`, and writes the same curves under the
    same names: `epoch_loss` of the runs `train` and `validation`, `batch_loss`,
    `evaluation_loss_vs_iterations`, the learning rate, histograms and images of the weights, and
    the graph of the layers. Unlike Keras' callback:

    - `update_freq=n` lets training take n steps in one graph call.
    - The x axis of the curves of steps goes on in a further `fit` of the same model.
    - `fit` goes on after a restart without writing any point twice. For this the callback
      BackupAndRestore is needed.
    - With several workers the chief writes, and all workers need the callback.

    Files that other programs or other runs have written to `log_dir` are left as they are. It does
    not write the summaries that a model's own code makes by `tf.summary`, and no embeddings; use
    Keras' callback for these.

    Example:
        >>> board = kfit.callbacks.TensorBoard("logs/run1", histogram_freq=1, update_freq=100)
        >>> trainer.fit(x, y, validation_data=(xv, yv), callbacks=[board])

    Args:
        log_dir: The directory for the files. Give each run one of its own, such as "logs/run1", and
            start TensorBoard with the directory above them (`tensorboard --logdir logs`).
        histogram_freq: Write histograms of the weights after every so many epochs, beginning with
            the first one; 0 for none.
        write_graph: Whether to write the graph of the layers. Sequential and functional models have
            one.
        write_images: Whether to write the weights as images too, together with their histograms.
        write_steps_per_second: Whether to write the speed of training: `steps_per_second`,
            `step_milliseconds` and `examples_per_second`, without the time of validations. Also
            what took the time of each epoch: `epoch_seconds/input`, `epoch_seconds/steps` and so
            on, which the page "Custom Scalars" of TensorBoard draws in one plot.
        update_freq: "epoch" to write the loss and the metrics after each epoch. An integer n to
            write them after every n steps as well, together with the learning rate and the speed.
            "batch" means 1.
        profile_batch: The step to profile, or a pair of the first and the last one, counted from 1
            in each `fit`; 0 for none. The profile page of TensorBoard needs `pip install xprof`.
        x_axis: Whether the curves that have a point for each epoch, and the histograms, are drawn
            over the number of the "epoch", from 0, as in Keras, or over the number of the "step".

    Raises:
        ValueError: If an argument is wrong.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: Literal["epoch", "batch"] | int = "epoch",
        profile_batch: int | str | tuple[int, int] = 0,
        *,
        x_axis: Literal["epoch", "step"] = "epoch",
    ) -> None:
        super().__init__()
        if not is_integer(histogram_freq) or histogram_freq < 0:
            raise ValueError(
                "`histogram_freq` must be a number of epochs, or 0 for no histograms. Received: "
                f"{histogram_freq!r}"
            )
        if x_axis not in ("epoch", "step"):
            raise ValueError(f'`x_axis` must be "epoch" or "step". Received: {x_axis!r}')
        if write_images and not histogram_freq:
            raise ValueError(
                "`write_images` writes images together with the histograms, so `histogram_freq` "
                "must be at least 1. Received: 0"
            )
        self.log_dir = os.fspath(log_dir)
        self.histogram_freq = int(histogram_freq)
        self.write_graph = write_graph
        self.write_images = write_images
        self.write_steps_per_second = write_steps_per_second
        self.update_freq = _checked_update_freq(update_freq)
        self.x_axis = x_axis
        self._profile = ProfiledSteps(profile_batch)
        self._writers = EventWriters(EventFiles(self.log_dir))
        self._epoch_speed, self._update_speed = TrainingSpeed(), TrainingSpeed()
        self._epoch_times = EpochTimes()
        self._steps_before = 0
        self._written_step = 0
        self._lacks_graph = write_graph
        self._lacks_plot = write_steps_per_second

    @property
    def takes_part(self) -> bool:
        """Whether the callback must be called between steps, and so be there on every task."""
        return self.update_freq != "epoch" or bool(self._profile)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins new event files, and checks that the arguments can be used in this `fit`.

        Raises:
            ValueError: If the model is trained by `keras.Model.fit`, which does not call the hooks
                that some of the arguments need.
        """
        if not self.training and (names := self._needing_kfit()):
            raise ValueError(
                f"{', '.join(names)} can't be used under keras.Model.fit. Train by kfit.Trainer, "
                "kfit.Model or kfit.fit, or use keras.callbacks.TensorBoard."
            )
        self._writers.close()
        self._writers = EventWriters(EventFiles(self.log_dir))
        self._lacks_graph = self.write_graph
        self._lacks_plot = self.write_steps_per_second
        self._epoch_times = EpochTimes()
        self._steps_before = steps_taken(self.model.optimizer)
        self._profile.begin()
        self._begin_updates()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins to measure the speed of the epoch."""
        self._epoch_speed.begin(self._step)
        self._update_speed.begin(self._step)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops measuring the speed of the epoch, if the epoch is validated."""
        self._epoch_speed.pause()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the results of an evaluation over the optimizer's number of iterations."""
        iterations = getattr(self.model.optimizer, "iterations", None)
        if self._is_chief and iterations is not None and logs:
            values = {f"evaluation_{name}_vs_iterations": value for name, value in logs.items()}
            self._writers.scalars("validation", int(iterations), values)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the losses and metrics of an epoch and, if they are due, the histograms."""
        self._epoch_speed.pause()
        place = epoch if self.x_axis == "epoch" else self._step
        has_histograms = self.histogram_freq > 0 and epoch % self.histogram_freq == 0
        strategy = None if self.training is None else self.training.strategy
        weights = weights_by_path(self.model, strategy) if has_histograms else {}  # on all tasks
        if not self._is_chief:
            return
        self._write_graph_once()
        train = {k: v for k, v in (logs or {}).items() if not k.startswith("val_")}
        validation = {k[4:]: v for k, v in (logs or {}).items() if k.startswith("val_")}
        train |= learning_rates(self.model.optimizer) | self._speed(self._epoch_speed)
        train |= self._seconds_of_epoch()
        self._writers.scalars("train", place, _named("epoch", train))
        self._writers.scalars("validation", place, _named("epoch", validation))
        if weights:
            self._writers.histograms(place, weights, images=self.write_images)

    def steps_until_due(self) -> int | None:
        """Returns the number of steps until something must be written or profiled."""
        waits = [self._profile.steps_until_due(self._fit_step)]
        if self.update_freq != "epoch":
            waits.append(self.update_freq - self._step % self.update_freq)
        return min((steps for steps in waits if steps is not None), default=None)

    def is_due(self) -> bool:
        """Returns whether something must be written or profiled now."""
        return self._is_update_due or self._profile.is_due(self._fit_step)

    def on_due(self) -> None:
        """Writes the losses and metrics after the current step, if this is due."""
        if self._is_update_due and self._is_chief:
            self._write_graph_once()
            values = self.training.logs | learning_rates(self.model.optimizer)
            values |= self._speed(self._update_speed)
            self._writers.scalars("train", self._step, _named("batch", values))
        if self._is_update_due:
            self._begin_updates()

    def on_save_point(self, reason: Reason) -> None:
        """Starts and stops the profiler, as the last thing before the next step."""
        if self._profile and self._is_chief and reason in ("begin", "step"):
            self._profile.visit(self._fit_step, self._writers.files.folder("train"))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the event files."""
        self._profile.end()
        self._writers.close()

    def on_fit_exit(self, succeeded: bool) -> None:
        """Stops the profiler and closes the event files, if `fit` was interrupted or has failed."""
        self.on_train_end()

    def state_dict(self) -> dict[str, Any]:
        """Returns the sizes of the event files, and the numbers of steps, to resume training.

        The names are those in the state of Keras' TensorBoard, so that either of the two callbacks
        goes on where the other was interrupted.
        """
        files = self._writers.files
        return {
            "mark": files.mark,
            "files": files.sizes(),
            "has_graph": not self._lacks_graph,
            "has_plot": not self._lacks_plot,
            "steps_before": self._steps_before,
            "train_batch": self._step,
            "test_batch": 0,
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if a state from a file cannot be one that `state_dict` returned."""
        check_events(state, "the state of TensorBoard")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with the event files of the training that resumes, as they were at its snapshot.

        The chief removes what was written after the snapshot, since it will be written again.
        """
        self._steps_before = state.get("steps_before", 0)
        self._begin_updates()
        self._epoch_speed.begin(self._step)
        if not self._is_chief:
            return
        self._writers.close()
        if "://" in self.log_dir:
            warn_user(
                f"`log_dir` is {self.log_dir!r}, where files can't be truncated: TensorBoard may "
                "show points after the snapshot twice."
            )
        began, files = self._writers.files, EventFiles(self.log_dir, state["mark"])
        if began.mark != files.mark:
            began.rewind({})  # what this `fit` wrote before it resumed
        files.rewind(state["files"])
        self._writers = EventWriters(files)
        has_graph = state.get("has_graph", True) and bool(files.paths())
        self._lacks_graph = self.write_graph and not has_graph
        has_plot = state.get("has_plot", False) and bool(files.paths())
        self._lacks_plot = self.write_steps_per_second and not has_plot

    @property
    def _is_chief(self) -> bool:
        """Whether this process writes the files: the chief does, and an evaluator its own."""
        return is_chief() or is_evaluator() if self.training is None else self.training.is_chief

    @property
    def _fit_step(self) -> int:
        """The number of steps that this `fit` has taken; 0 under `keras.Model.fit`."""
        return 0 if self.training is None else self.training.progress.step

    @property
    def _step(self) -> int:
        """The number of steps that the model was trained for, over all calls of `fit`."""
        return self._steps_before + self._fit_step

    @property
    def _is_update_due(self) -> bool:
        if self.update_freq == "epoch":
            return False
        return self._step // self.update_freq > self._written_step // self.update_freq

    def _begin_updates(self) -> None:
        """Has the next update follow in `update_freq` steps."""
        self._written_step = self._step
        self._update_speed.begin(self._step)

    def _needing_kfit(self) -> list[str]:
        """Returns the arguments that were given and work under kfit's `fit` alone."""
        given = {
            "`update_freq` with a number of steps": self.update_freq != "epoch",
            "`profile_batch`": bool(self._profile),
            "`write_steps_per_second`": self.write_steps_per_second,
            "`x_axis='step'`": self.x_axis == "step",
        }
        return [name for name, is_given in given.items() if is_given]

    def _speed(self, measured: TrainingSpeed) -> dict[str, float]:
        """Returns the speed of training by name; {} unless the user wants it written."""
        if not self.write_steps_per_second or self.training is None:
            return {}
        return measured.numbers(self._step, self.training.batches.batch_size)

    def _seconds_of_epoch(self) -> dict[str, float]:
        """Returns what took the time of the epoch, by name; {} unless the user wants it written.

        The first time, it also has TensorBoard draw these curves in one plot.
        """
        if not self.write_steps_per_second or self.training is None:
            return {}
        if self._lacks_plot:
            self._lacks_plot = False
            self._writers.plot("seconds of an epoch", f"epoch_{CURVES}")
        seconds = self._epoch_times.end(self.training.call.account.report().phases)
        return {CURVES + part: value for part, value in seconds.items()}

    def _write_graph_once(self) -> None:
        if self._lacks_graph:
            self._lacks_graph = False
            self._writers.graph(self.model)


def _checked_update_freq(update_freq: Any) -> Any:
    """Returns "epoch" or a number of steps.

    Raises:
        ValueError: If `update_freq` is neither of them, nor "batch".
    """
    if isinstance(update_freq, str) and update_freq in ("epoch", "batch"):
        return 1 if update_freq == "batch" else update_freq
    if is_integer(update_freq) and update_freq >= 1:
        return int(update_freq)
    raise ValueError(
        '`update_freq` must be "epoch", "batch" or a number of steps of at least 1. Received: '
        f"{update_freq!r}"
    )


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in values.items()}
