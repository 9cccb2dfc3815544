"""Measures how long the parts of a training step take: `fit(..., profile=True)`.

The parts are measured after the last step of a training, by graphs that take the same batch again
and again: one runs the forward pass, one also the backward pass, and so on. The difference of two
of them is the time of a part. Each graph call runs many steps, so that its own overhead does not
count; that overhead is measured by calls of one step. At the end all variables and random
generators get back the values that they had before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from kfit.checkpoint import state
from kfit.checkpoint.state import Part
from kfit.distribute.strategy import Strategy
from kfit.exactness.own_code import overrides
from kfit.heartbeat import Heartbeat
from kfit.inputs import Segment
from kfit.report.figures import OF_A_CALL
from kfit.steps.execution import Execution

_ROUNDS = 5
"""Each graph is timed so often, in turns; the shortest time counts."""
_SECONDS = 0.3
"""About how long one graph call takes."""
_MOST_STEPS = 300


def parts_of_step(
    model: keras.Model, strategy: Strategy, batch: Segment, heartbeat: Heartbeat
) -> dict[str, float]:
    """Measures how long the parts of a training step take, on one batch.

    It is a collective: all tasks must call it, within a `fit`. The model and the global random
    generators are the same afterwards.

    Args:
        model: The compiled model, whose variables are on the strategy's devices.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
        batch: A segment of one step, whose element is a global batch.
        heartbeat: Reports to the supervisor that graphs are traced.

    Returns:
        The seconds of each part, by name. If the model defines its own `train_step`, or XLA
        compiles its step, the step has only one part, "whole step".
    """
    with _undone(model, strategy):
        timed = {
            name: _Timed(model, step, strategy, batch, heartbeat)
            for name, step in _steps_of(model).items()
        }
        steps = _agreed(strategy, timed["whole"].fitting_steps())
        for _ in range(_ROUNDS):
            for each in timed.values():
                each.time(steps)
        for each in timed.values():
            each.settle()
    return _differences({name: each.seconds for name, each in timed.items()}, timed["whole"])


def _steps_of(model: keras.Model) -> dict[str, Callable[[Any], Any]]:
    """Returns functions of a batch that each take a part of a step, by name; the last takes all."""
    if overrides(model, "train_step") or model.jit_compile:
        return {"whole": model.train_step}

    def loss_of(data: Any) -> tuple[Any, Any]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weights, training=True)
        return loss, (x, y, outputs, weights)

    def forward(data: Any) -> None:
        _computed(model, [loss_of(data)[0]])

    def metrics(data: Any) -> None:
        loss, (x, y, outputs, weights) = loss_of(data)
        model.compute_metrics(x, y, outputs, sample_weight=weights)
        _computed(model, [loss])

    def backward(data: Any) -> None:
        with tf.GradientTape() as tape:
            loss = model.optimizer.scale_loss(loss_of(data)[0])
        found = tape.gradient(loss, [each.value for each in model.trainable_weights])
        _computed(model, [loss, *(each for each in found if each is not None)])

    return {
        "forward": forward,
        "metrics": metrics,
        "backward": backward,
        "whole": model.train_step,
    }


def _computed(model: keras.Model, tensors: Sequence[Any]) -> None:
    """Makes the graph compute tensors, although nothing uses them.

    Args:
        model: The model, whose optimizer is built.
        tensors: The tensors.
    """
    with tf.control_dependencies(tf.nest.flatten(list(tensors), expand_composites=True)):
        # TensorFlow leaves out what nothing uses, but never an assertion. This one always holds.
        steps = tf.convert_to_tensor(model.optimizer.iterations)
        tf.debugging.Assert(steps >= 0, [steps])


class _Timed:
    """A graph of a part of a step, and the shortest time that a step of it took.

    Attributes:
        seconds: The shortest time of a step in a graph call of many steps.
        alone: The shortest time of a graph call of one step.
        exchange: The seconds of exchanges between tasks in such a step; None if not measured.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Any], Any],
        strategy: Strategy,
        batch: Segment,
        heartbeat: Heartbeat,
    ) -> None:
        self._execution = Execution(
            model, step, strategy, default_step=True, train=False, heartbeat=heartbeat
        )
        again = tf.data.Dataset.from_tensors(batch.element).repeat()
        layout = replace(batch.layout, endless=True)
        self._segment = Segment(layout, None, iterator=iter(again))
        self._strategy = strategy
        self.seconds = self.alone = float("inf")
        self.exchange: float | None = None
        self._run(2)  # traces the graph

    def fitting_steps(self) -> int:
        """Returns how many steps take about `_SECONDS`."""
        one = min(self._run(1), self._run(1))
        return max(2, min(_MOST_STEPS, int(_SECONDS / max(one, 1e-6))))

    def time(self, steps: int) -> None:
        """Times a graph call of many steps, and one of a single step."""
        before = self._strategy.seconds_of_exchanges
        seconds = self._run(steps) / steps
        after = self._strategy.seconds_of_exchanges
        if seconds < self.seconds and before is not None and after is not None:
            self.exchange = (after - before) / steps
        self.seconds = min(seconds, self.seconds)
        self.alone = min(self._run(1), self.alone)

    def settle(self) -> None:
        """Sums gradients that replicas have accumulated apart; a collective."""
        self._execution.settle()

    def _run(self, steps: int) -> float:
        began = time.perf_counter()
        logs = self._execution.run(self._segment, steps).logs
        for value in logs.values():
            float(value)  # waits until the steps have ended
        return time.perf_counter() - began


def _differences(seconds: dict[str, float], whole: _Timed) -> dict[str, float]:
    """Returns the times of the parts of a step, which add up to that of the whole step."""
    overhead = max(0.0, whole.alone - whole.seconds)
    if len(seconds) == 1:
        return {"whole step": whole.seconds, OF_A_CALL: overhead}
    forward = min(seconds["forward"], whole.seconds)
    backward = max(0.0, seconds["backward"] - forward)
    metrics = max(0.0, seconds["metrics"] - forward)
    rest = max(0.0, whole.seconds - forward - backward - metrics)
    exchange = min(whole.exchange or 0.0, rest)
    parts = {"forward pass": forward, "backward pass": backward, "metrics": metrics}
    if exchange:
        parts["exchange"] = exchange
    return {**parts, "optimizer update": rest - exchange, OF_A_CALL: overhead}


def _agreed(strategy: Strategy, steps: int) -> int:
    """Returns the chief's number of steps on all tasks, since they must take equally many."""
    return int(strategy.host_collectives.all_gather([steps])[0, 0])


@contextmanager
def _undone(model: keras.Model, strategy: Strategy) -> Iterator[None]:
    """Context after which the model's variables and the random generators are as before it."""
    variables = state.take_variables(model, strategy)
    random = state.take_random(strategy)
    try:
        yield
    finally:
        parts: tuple[Part, ...] = ("model", "optimizer", "metrics")
        state.give_variables(model, variables, parts, strategy)
        state.give_random(random, strategy)
