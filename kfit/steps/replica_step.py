"""One replica's part of a step: runs the model's step on its rows, then the optimizer's updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.metric_sums import weighed_by
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
    """Context in which the logged loss of each output is a mean over examples.

    Keras does so for the loss of the model. For the losses of single outputs it weights a batch by
    its number of examples only if the batch has a static shape.

    Args:
        model: The model.
        examples: Returns the number of examples of the current batch; None if it is not known.
    """
    compiled = compiled_loss(model)
    with ExitStack() as stack:
        for tracker in [] if compiled is None else compiled.metrics:
            stack.enter_context(patched(points.UPDATE_METRIC, weighed_by(examples), of=tracker))
        yield


def own_examples() -> Tensor | None:
    """Number of examples of the replica that is being traced; None outside of a replica."""
    replica = current_replica()
    return None if replica is None else replica.examples


def take(model_step: ModelStep, data: Any, replica: Replica, *, jit: bool) -> Any:
    """Runs the model's step; with `jit` XLA compiles it up to the gradients."""
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
    """Context in which a replica must not communicate; its optimizer updates are postponed.

    Yields:
        A list that receives the calls of `optimizer.apply` instead of their being made.

    Raises:
        CannotMeetError: If something in the block needs the other replicas before the optimizer
            does.
    """
    replica.postponed = []
    try:
        yield replica.postponed
    finally:
        replica.postponed = None


def make(updates: Sequence[Update], gradients: Sequence[Any]) -> None:
    """Calls `optimizer.apply` for each postponed update, with these gradients, on all replicas."""
    for update, grads in zip(updates, gradients, strict=True):
        update.optimizer.apply(grads, update.variables)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function compiled by XLA."""
    function: Callable[..., Any] = tf.function(fn, autograph=False, jit_compile=True)
    return function


def unpacked(element: Any, layout: BatchLayout) -> Any:
    """Packs the flat tensors of an element into the structure that the model's step expects."""
    return element if layout.template is None else layout.template.pack(element)
