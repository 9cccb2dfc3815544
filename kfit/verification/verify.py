"""Trains a few steps of a model on one device and on R replicas, and says whether they are equal.

All runs begin with the same weights, seeds and batches:

    once, and once more, on one device          equal, unless the model is not repeatable
    on one device, all numbers shaken a little   how far rounding errors grow
    on R replicas                                the comparison

If the replicas differ by more than rounding, experiments look for the cause (`causes.py`). At the
end everything is set back as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.argument_checks import is_integer
from kfit.distribute.devices import first_devices, split_cpu
from kfit.distribute.mirrored import Mirrored
from kfit.distribute.one_device import OneDevice
from kfit.distribute.owned import owned_optimizers
from kfit.distribute.strategy import Strategy
from kfit.inputs import ReadBatches, as_batches
from kfit.verification.beginning import Beginning
from kfit.verification.causes import LayerCauses, causes_besides_layers
from kfit.verification.few_batches import Untouched, examples_of, few_batches
from kfit.verification.in_float32 import coarse_dtypes, in_float32
from kfit.verification.layer_probe import is_coarse
from kfit.verification.numbers_left import require_numbers, without_numbers
from kfit.verification.report import (
    RANDOM,
    Cause,
    Difference,
    Verdict,
    Verification,
    first_line,
    joined,
)
from kfit.verification.runs import Runs, Way, are_equal, compared
from kfit.verification.switched_off import has_training, without_draws

Ways = Callable[[Strategy], Way]


def check_replicas(replicas: Any, num_workers: int) -> None:
    """Checks the argument `replicas` of `Trainer.verify`.

    Args:
        replicas: The argument.
        num_workers: The number of workers of the trainer's strategy.

    Raises:
        ValueError: If it is not an integer of at least 2, or the trainer is part of a cluster.
    """
    if not is_integer(replicas) or replicas < 2:
        raise ValueError(f"`replicas` must be an integer of at least 2. Received: {replicas!r}")
    if num_workers > 1:
        raise ValueError(
            f"`verify` compares devices of one host, but this trainer has {num_workers} workers. "
            "Run `kfit verify script.py` without a cluster."
        )


def verify(
    model: keras.Model,
    ways: Ways,
    data: tuple[Any, Any, Any],
    *,
    replicas: int,
    steps: int,
    steps_per_epoch: int | None,
    **how: Any,
) -> Verification:
    """Compares a few training steps on one device with the same steps on replicas.

    Args:
        model: The model, compiled.
        ways: Makes a new trainer of the model on a strategy.
        data: `x`, `y` and `sample_weight`, as `fit` takes them.
        replicas: The number of replicas.
        steps: The number of steps.
        steps_per_epoch: The number of steps in an epoch; None for all the data.
        **how: Further arguments of `kfit.inputs.as_batches`, such as `batch_size`.

    Returns:
        The result. The model, its data and the random generators are as before.

    Raises:
        ValueError: If the data or the devices are wrong, kfit refuses to train the model, or no
            number is left to compare.
    """
    devices = _devices(replicas)
    untouched = Untouched(data[0], model)
    try:
        wanted = steps * _accumulated(model)
        batches = _read(data, wanted, steps=steps_per_epoch, **how)
    finally:
        untouched.give_back()
    one = ways(OneDevice(devices[0]))
    made_of = as_batches(ReadBatches(batches), strategy=one.strategy)
    one.make_variables(made_of)
    beginning = Beginning(model)
    try:
        runs = Runs(model, beginning, batches)
        with _no_advice(), _in_float32(runs, lambda: ways(one.strategy)) as notes:
            return _Examination(runs, ways, devices, ways(one.strategy), notes).result()
    finally:
        beginning.give_back()


class _Examination:
    """The experiments of one `verify`.

    Args:
        runs: The runs of the model.
        ways: Makes a new trainer of the model on a strategy.
        devices: The devices of the replicas.
        one: The trainer on one device.
        notes: Remarks about how the model is compared.
    """

    def __init__(
        self, runs: Runs, ways: Ways, devices: list[str], one: Way, notes: list[str]
    ) -> None:
        self._runs = runs
        self._ways = ways
        self._one_device, self._mirrored = one.strategy, Mirrored(devices)
        self._one = one
        self._notes = notes
        self._warnings: list[str] = []

    def result(self) -> Verification:
        """Runs the experiments, as many as are needed, and returns the result."""
        runs, one = self._runs, self._one
        base, again = runs.run(one), runs.run(one)
        require_numbers(runs, base)
        if names := without_numbers(base):
            self._notes.append(f"{joined(names)} of one device is NaN or infinite: no comparison.")
        repeated = compared(runs, base, again, ())
        if not are_equal(repeated):
            unrepeated = LayerCauses(runs, one, None)
            causes = unrepeated.causes or [_unnamed(repeated, unrepeated.problem)]
            return self._found("not repeatable", repeated, causes)
        several = self._several()
        with self._noting_warnings():
            other = runs.run(several)
        differences = compared(runs, base, other, runs.rounding(one, base))
        is_equal = are_equal(differences)
        if is_equal and not is_coarse(runs.model):
            return self._found("equal", differences, [])
        layers = LayerCauses(runs, one, several)
        if layers.problem is not None:
            self._notes.append(layers.problem)
        if is_equal and not layers.causes:
            return self._found("equal", differences, [])
        if layers.random:
            return self._without_draws(layers)
        if is_equal:
            self._notes.append(_HIDDEN)
        causes = layers.causes or self._besides_layers(differences)
        return self._found("differs", differences, causes)

    def _without_draws(self, layers: LayerCauses) -> Verification:
        """Compares again with the layers switched off that draw random numbers."""
        with without_draws(layers.random):
            one, several = self._fresh_one(), self._several()
            base = self._runs.run(one)
            other = self._runs.run(several)
            rounding = self._runs.rounding(one, base)
            differences = compared(self._runs, base, other, rounding)
            self._notes += _notes_on_draws(layers.random)
            others = [cause for cause in layers.causes if cause.kind != RANDOM]
            if are_equal(differences):
                if not others:
                    return self._found("equal but for random draws", differences, layers.causes)
                self._notes.append(_HIDDEN)
            rest = LayerCauses(self._runs, one, several).causes
            causes = rest or others or self._besides_layers(differences)
        known = {cause.name for cause in causes}
        drawing = [cause for cause in layers.causes if cause.name not in known]
        return self._found("differs", differences, [*causes, *drawing])

    def _besides_layers(self, differences: tuple[Difference, ...]) -> list[Cause]:
        ways = self._fresh_one(), self._several()
        return causes_besides_layers(self._runs, *ways, differences)

    def _fresh_one(self) -> Way:
        return self._ways(self._one_device)

    def _several(self) -> Way:
        return self._ways(self._mirrored)

    @contextmanager
    def _noting_warnings(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        texts = [str(each.message) for each in caught if each.category is UserWarning]
        self._warnings += [text for text in dict.fromkeys(texts) if text not in self._warnings]

    def _found(
        self, verdict: Verdict, differences: tuple[Difference, ...], causes: list[Cause]
    ) -> Verification:
        return Verification(
            verdict=verdict,
            model=self._runs.model.name,
            replicas=self._mirrored.num_replicas,
            batch_sizes=tuple(examples_of(batch) for batch in self._runs.batches),
            differences=differences,
            causes=tuple(causes),
            warnings=tuple(self._warnings),
            notes=tuple(self._notes),
        )


_HIDDEN = (
    "The table shows no difference, since rounding in 16 bits hides it; the outputs of the layers "
    "that are named differ by more."
)


@contextmanager
def _in_float32(runs: Runs, one: Callable[[], Way]) -> Iterator[list[str]]:
    """Context in which a model that computes in 16 bits is compared in float32, if it can be.

    What makes replicas differ does so in any dtype, and the rounding of 16 bits hides it.

    Yields:
        What the user is told of it.
    """
    names = joined(coarse_dtypes(runs.model))
    if not names:
        yield []
        return
    with in_float32(runs.model):
        problem = _problem_of(runs, one())
        if problem is None:
            yield [
                f"The model computes in {names}. It was compared in float32, whose rounding "
                "hides less."
            ]
            return
    yield [
        f"The model was compared in {names}, whose rounding hides small differences. It cannot be "
        f"run in float32: {problem}"
    ]


def _problem_of(runs: Runs, way: Way) -> str | None:
    """Returns why a model cannot be run; None if it can."""
    try:
        runs.run(way)
    except Exception as error:  # of the user's code, which may ask for a dtype
        return first_line(error)
    return None


def _notes_on_draws(layers: list[keras.Layer]) -> list[str]:
    """Says how layers that draw were switched off."""
    off = joined([layer.name for layer in layers if has_training(layer)])
    others = joined([layer.name for layer in layers if not has_training(layer)])
    notes = [f"The table was made with {off} switched off (training=False)."] if off else []
    if others:
        notes.append(f"The table was made with {others} drawing the same for all examples.")
    return notes


@contextmanager
def _no_advice() -> Iterator[None]:
    """Context in which TensorFlow does not warn that a function is traced many times."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def _unnamed(differences: tuple[Difference, ...], problem: str | None) -> Cause:
    names = joined([d.name for d in differences if not d.is_equal])
    text = f"two runs on one device differ in {names}, although all seeds are the same."
    return Cause("the training step", "not repeatable", f"{text} {problem or ''}".strip())


def _read(data: tuple[Any, Any, Any], wanted: int, **how: Any) -> list[Any]:
    batches = as_batches(*data, strategy=OneDevice(), **how)
    try:
        return few_batches(batches, wanted)
    finally:
        batches.close()


def _accumulated(model: keras.Model) -> int:
    """Returns after how many steps the optimizers update the weights."""
    numbers = [getattr(o, "gradient_accumulation_steps", None) for o in owned_optimizers(model)]
    return max((number or 1 for number in numbers), default=1)


def _devices(replicas: int) -> list[str]:
    """Returns the devices of the replicas: GPUs if there are enough, otherwise parts of the CPU.

    Raises:
        ValueError: If TensorFlow has already initialized the CPU as fewer devices.
    """
    if len(tf.config.list_physical_devices("GPU")) >= replicas:
        return first_devices(replicas, "replicas")
    try:
        split_cpu(replicas, "replicas")
    except ValueError:
        raise ValueError(
            f"`replicas={replicas}` needs as many devices, and TensorFlow has already started with "
            "fewer. Run `kfit verify script.py`, which starts a process of its own; or start the "
            f"program by `kfit run --cpus {replicas}`; or call "
            f"`kfit.distribute.Mirrored({replicas})` before the first model is made."
        ) from None
    return [f"CPU:{index}" for index in range(replicas)]
