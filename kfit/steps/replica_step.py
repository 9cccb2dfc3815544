"""One replica's part of a step: the model's own step on its rows, and what follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.losses import weighed_by
from kfit.exactness.replica_context import Replica, Update, current_replica
from kfit.inputs import BatchLayout
from kfit.internals import patch_points as points
from kfit.internals.models import compiled_loss
from kfit.internals.patching import patched

Tensor = Any
ModelStep = Callable[[Any], Any]


@contextmanager
def losses_of_outputs_by_examples(
    model: keras.Model, examples: Callable[[], Tensor | None]
) -> Iterator[None]:
    """Within it the logged loss of each output is a mean over examples, as that of the model is.

    Keras weighs a batch by its examples there only when its static shape tells their number.
    """
    compiled = compiled_loss(model)
    with ExitStack() as stack:
        for tracker in [] if compiled is None else compiled.metrics:
            stack.enter_context(patched(points.UPDATE_METRIC, weighed_by(examples), of=tracker))
        yield


def own_examples() -> Tensor | None:
    """How many examples the replica that is being traced has."""
    replica = current_replica()
    return None if replica is None else replica.examples


def take(model_step: ModelStep, data: Any, replica: Replica, *, jit: bool) -> Any:
    """Takes the model's step; with `jit` XLA compiles it up to the gradients."""
    if not jit:
        return model_step(data)

    def up_to_gradients(data: Any) -> tuple[Any, Any]:
        replica.origins.begin()
        outputs = model_step(replica.origins.own(data))
        return outputs, [update.grads for update in updates]

    with by_itself(replica) as updates:
        outputs, gradients = compiled(up_to_gradients)(data)
    make(updates, gradients)
    return outputs


@contextmanager
def by_itself(replica: Replica) -> Iterator[list[Update]]:
    """Within it the replica meets no other one: its updates are listed instead of being made.

    Raises:
        CannotMeetError: If something asks for the other replicas before the optimizer does.
    """
    replica.postponed = []
    try:
        yield replica.postponed
    finally:
        replica.postponed = None


def make(updates: Sequence[Update], gradients: Sequence[Any]) -> None:
    """Makes the updates that were listed, with these gradients, where the replicas meet."""
    for update, grads in zip(updates, gradients, strict=True):
        update.optimizer.apply(grads, update.variables)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled by XLA."""
    function: Callable[..., Any] = tf.function(fn, autograph=False, jit_compile=True)
    return function


def unpacked(element: Any, layout: BatchLayout) -> Any:
    """The element as the model's step expects it."""
    return element if layout.template is None else layout.template.pack(element)
