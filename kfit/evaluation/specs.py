"""`kfit.TrainSpec` and `kfit.EvalSpec`, the two specifications that `train_and_evaluate` takes."""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import tensorflow as tf

from kfit.argument_checks import check_directory, check_positive, check_seconds
from kfit.evaluation.exporters import Exporter, check_exporters
from kfit.heartbeat.tracebacks import made_for_user
from kfit.training.arguments import check_callbacks
from kfit.training.call import Callbacks
from kfit.training.chief_only import listed

InputFn = Callable[[], Any]


@made_for_user
@dataclass(frozen=True, eq=False, kw_only=True)
class TrainSpec:
    """A specification of the training in `kfit.train_and_evaluate`.

    It says what data to train on, how long to train, and where and when to write checkpoints.

    Args:
        model_dir: Directory of this training, for its checkpoints, evaluations and exports. It must
            be the same on all tasks; the chief and the evaluator must see the same files there.
        input_fn: A function without arguments that returns the data. What it returns is used as
            `x`; if it returns a tuple `(x, y)` or `(x, y, sample_weight)`, its items are used as
            these arguments. It is called only on tasks that train. Give either `input_fn` or `x`.
        x: As for `kfit.Trainer.fit`.
        y: As for `fit`.
        sample_weight: As for `fit`.
        batch_size: The global batch size, as for `fit`.
        epochs: The number of epochs after which training ends, including those of earlier runs.
        max_steps: The number of steps after which training ends, including those of earlier runs.
            At least one of `epochs` and `max_steps` must be given. If both are given, training ends
            when the first of them is reached.
        steps_per_epoch: As for `fit`.
        shuffle: As for `fit`.
        class_weight: As for `fit`.
        callbacks: Keras callbacks, as for `fit`: a list, one callback or None.
        verbose: As for `fit`.
        save_freq: When to write a checkpoint, as for `kfit.callbacks.BackupAndRestore`. At the end
            of training, a checkpoint is always written.
        keep: The number of undamaged checkpoints to keep, at least 2; older ones are deleted.
            Checkpoints that an evaluator has not evaluated yet are kept in addition.

    Raises:
        ValueError: If an argument is wrong.
    """

    model_dir: str | os.PathLike[str]
    input_fn: InputFn | None = None
    x: Any = field(default=None, repr=False)
    y: Any = field(default=None, repr=False)
    sample_weight: Any = field(default=None, repr=False)
    batch_size: int | None = None
    epochs: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    shuffle: bool | str = True
    class_weight: Mapping[int, float] | None = None
    callbacks: Callbacks | Iterable[keras.callbacks.Callback] = None
    verbose: str | int = "auto"
    save_freq: Literal["epoch", "auto"] | int | dt.timedelta = "epoch"
    keep: int = 5

    def __post_init__(self) -> None:
        check_directory("model_dir", self.model_dir)
        _check_data(self.input_fn, self.x, self.y, self.sample_weight)
        if self.epochs is None and self.max_steps is None:
            raise ValueError(
                "`epochs` or `max_steps` must be given: when to stop. Received: None for both"
            )
        _take_integers(self, "batch_size", "epochs", "max_steps", "steps_per_epoch")
        _take_callbacks(self)

    @property
    def each_callback(self) -> tuple[keras.callbacks.Callback, ...]:
        """The callbacks as a tuple."""
        return tuple(listed(self.callbacks))

    @property
    def checkpoint_dir(self) -> str:
        """The directory of the checkpoints."""
        return os.path.join(self.model_dir, "checkpoints")

    @property
    def target(self) -> dict[str, int | None]:
        """The `epochs` and the `max_steps` at which training ends, as a dict.

        The chief stores this dict in the end marker, the file that says that training is over. If
        training is run again with a later end, the evaluator sees that the dict differs, and
        ignores the end marker of the shorter training.
        """
        return {"epochs": self.epochs, "max_steps": self.max_steps}

    def last_epoch(self, x: Any) -> int:
        """Returns the number of epochs to pass to `fit` as `epochs`.

        If `epochs` was not given, the returned number is large enough for `max_steps` steps. It may
        be larger than needed, since a callback (`StopAtStep`) ends training at the exact step.

        Args:
            x: The `x` that `data` returned, from which the number of steps in an epoch is computed.
        """
        if self.epochs is not None:
            return self.epochs
        assert self.max_steps is not None
        most = keras.config.max_steps_per_epoch() or math.inf
        in_pass = _known_steps(x, self.batch_size or 32)
        in_epoch = min(self.steps_per_epoch or math.inf, most, in_pass)
        if not in_epoch or math.isinf(in_epoch):
            return self.max_steps  # an epoch has at least one step
        if math.isinf(in_pass):
            return math.ceil(self.max_steps / in_epoch)
        # An epoch ends where the data ends, so the last epoch of a pass may be shorter.
        passes, rest = divmod(self.max_steps, in_pass)
        return int(passes * math.ceil(in_pass / in_epoch) + math.ceil(rest / in_epoch))

    def data(self) -> tuple[Any, Any, Any]:
        """Returns x, y and the sample weights; calls `input_fn` for them if it was given."""
        return _data(self.input_fn, self.x, self.y, self.sample_weight)


@made_for_user
@dataclass(frozen=True, eq=False, kw_only=True)
class EvalSpec:
    """A specification of the evaluations in `kfit.train_and_evaluate`.

    It says what data to evaluate each checkpoint on, how often to evaluate, and what to export.

    Args:
        input_fn: A function without arguments that returns the data. What it returns is used as
            `x`; if it returns a tuple `(x, y)` or `(x, y, sample_weight)`, its items are used as
            these arguments. It is called for each evaluation. Give either `input_fn` or `x`.
        x: As for `kfit.Trainer.evaluate`.
        y: As for `evaluate`.
        sample_weight: As for `evaluate`.
        batch_size: The global batch size, as for `evaluate`.
        steps: The number of steps in an evaluation; None for all the data.
        name: A name that distinguishes several evaluations of one training. With a name the results
            are written to `model_dir/eval_<name>` instead of `model_dir/eval`, and the exported
            models to `model_dir/export_<name>` instead of `model_dir/export`.
        callbacks: Keras callbacks, as for `evaluate`: a list, one callback or None.
        exporters: One or several exporters that get each evaluated model, such as
            `kfit.BestExporter`. No two of these may have the same name.
        start_delay_secs: Seconds that an evaluator waits before its first evaluation.
        throttle_secs: The minimum number of seconds between the starts of two evaluations. An
            evaluator evaluates the checkpoints that were written in the meantime afterwards; tasks
            that evaluate between their training steps skip these checkpoints. The last checkpoint
            is evaluated without delay.
        newest_only: Whether an evaluator evaluates only the newest checkpoint and skips older ones.
            The tasks that train then keep no checkpoints for the evaluator.
        idle_timeout_secs: Seconds without a new checkpoint after which an evaluator raises
            TrainingIdleError, if training has not ended. With None the evaluator waits for ever,
            and prints a message now and then.
        evaluator: Whether a separate task evaluates. If it is False, the tasks that train evaluate
            between their steps. None means True if the cluster lists an evaluator, else False.
        verbose: 1 prints a line for each evaluation, 0 is silent.

    Raises:
        ValueError: If an argument is wrong.
    """

    input_fn: InputFn | None = None
    x: Any = field(default=None, repr=False)
    y: Any = field(default=None, repr=False)
    sample_weight: Any = field(default=None, repr=False)
    batch_size: int | None = None
    steps: int | None = None
    name: str | None = None
    callbacks: Callbacks | Iterable[keras.callbacks.Callback] = None
    exporters: Exporter | Iterable[Exporter] | None = None
    start_delay_secs: float = 0.0
    throttle_secs: float = 0.0
    newest_only: bool = False
    idle_timeout_secs: float | None = None
    evaluator: bool | None = None
    verbose: int = 1

    def __post_init__(self) -> None:
        _check_data(self.input_fn, self.x, self.y, self.sample_weight)
        _take_integers(self, "batch_size", "steps")
        _take_callbacks(self)
        if isinstance(self.x, Iterator) and self.steps is None:
            raise ValueError(
                "`x` is read in each evaluation, but a generator only once. Give a function that "
                "makes it as `input_fn`, data that can be read again, or a generator that does not "
                f"end with `steps`. Received: {self.x!r}"
            )
        if self.name is not None and not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(
                "`name` must be a part of a directory's name: letters, digits, '_', '.' and '-'. "
                f"Received: {self.name!r}"
            )
        if not isinstance(self.exporters, Exporter):
            _set(self, exporters=_each_of("exporters", self.exporters))
        check_exporters(self.each_exporter)
        check_seconds("start_delay_secs", self.start_delay_secs)
        check_seconds("throttle_secs", self.throttle_secs)
        if self.idle_timeout_secs is not None:
            check_seconds(
                "idle_timeout_secs", self.idle_timeout_secs, above_zero=True, others=", or None"
            )

    @property
    def each_exporter(self) -> tuple[Exporter, ...]:
        """The exporters as a tuple."""
        exporters = self.exporters or ()
        return (exporters,) if isinstance(exporters, Exporter) else tuple(exporters)

    @property
    def each_callback(self) -> tuple[keras.callbacks.Callback, ...]:
        """The callbacks as a tuple."""
        return tuple(listed(self.callbacks))

    def directory(self, model_dir: str | os.PathLike[str]) -> str:
        """Returns the directory to which the results are written.

        It is `model_dir/eval` or, for a specification with a name, `model_dir/eval_<name>`.

        Args:
            model_dir: The directory of the training.
        """
        return os.path.join(model_dir, "eval" if self.name is None else f"eval_{self.name}")

    def export_directory(self, model_dir: str | os.PathLike[str]) -> str:
        """Returns the directory to which the exporters write models.

        It is `model_dir/export` or, for a specification with a name, `model_dir/export_<name>`.

        Args:
            model_dir: The directory of the training.
        """
        return os.path.join(model_dir, "export" if self.name is None else f"export_{self.name}")

    def data(self) -> tuple[Any, Any, Any]:
        """Returns x, y and the sample weights; calls `input_fn` for them if it was given."""
        return _data(self.input_fn, self.x, self.y, self.sample_weight)


def _set(spec: Any, **values: Any) -> None:
    """Sets fields of a frozen specification, while it is being made."""
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def _take_integers(spec: Any, *names: str) -> None:
    """Checks fields that are positive integers or None; NumPy's become `int`s, as JSON needs."""
    check_positive(**{name: getattr(spec, name) for name in names})
    given = {name: getattr(spec, name) for name in names}
    _set(spec, **{name: int(value) for name, value in given.items() if value is not None})


def _take_callbacks(spec: Any) -> None:
    """Checks the callbacks of a specification; what can be read only once is read here."""
    if isinstance(spec.callbacks, Iterator):
        _set(spec, callbacks=tuple(spec.callbacks))
    check_callbacks(spec.callbacks)


def _each_of(argument: str, values: Any) -> tuple[Any, ...]:
    """Returns the items of an argument, which may be readable only once; none for None."""
    try:
        return () if values is None else tuple(values)
    except TypeError:
        return (values,)


def _check_data(input_fn: Any, x: Any, y: Any, sample_weight: Any) -> None:
    if input_fn is None and x is None:
        raise ValueError("`input_fn` or `x` must be given: the data. Received: None for both")
    if input_fn is not None and any(part is not None for part in (x, y, sample_weight)):
        raise ValueError("Give either `input_fn` or `x`, `y` and `sample_weight`, but not both.")
    if input_fn is not None and not callable(input_fn):
        raise ValueError(
            f"`input_fn` must be a function without arguments; give data as `x`. Received: "
            f"{input_fn!r}"
        )


def _data(input_fn: InputFn | None, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    if input_fn is None:
        return x, y, sample_weight
    made = input_fn()
    if isinstance(made, tuple):
        return keras.utils.unpack_x_y_sample_weight(made)
    return made, None, None


def _known_steps(x: Any, batch_size: int) -> float:
    """Returns the number of steps in one pass (one reading of all the data); 0 if it is unknown.

    `TrainSpec.last_epoch` computes from this number how many epochs are needed. The result is
    infinity if there is no second pass: if the data never ends, or is read only once, as a
    generator is.

    Args:
        x: Arrays, a `tf.data.Dataset`, a PyDataset, or another kind of data.
        batch_size: The number of examples in a step; it is only used for arrays.
    """
    if isinstance(x, tf.data.Dataset):
        steps = int(x.cardinality())
        if steps == tf.data.INFINITE_CARDINALITY:
            return math.inf
        return max(0, steps)
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches or math.inf
    examples = {leaf.shape[0] for leaf in keras.tree.flatten(x) if getattr(leaf, "shape", ())}
    return -(-max(examples) // batch_size) if examples and max(examples) else math.inf
