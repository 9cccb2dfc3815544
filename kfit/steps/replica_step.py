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

    Keras computes such a mean for the loss of the model. But for the losses of single outputs Keras
    weights a batch by its number of examples only if the batch has a static shape.

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
    """Returns the number of examples of the replica being traced, or None outside of a replica."""
    replica = current_replica()
    return None if replica is None else replica.examples


def take(model_step: ModelStep, data: Any, replica: Replica, *, jit: bool) -> Any:
    """Runs the model's step on one replica.

    With `jit` XLA compiles the step up to the gradients. The optimizer's updates follow outside of
    XLA, because there the replicas can communicate.
    """
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
    """Context in which a replica must not communicate, and its optimizer updates are postponed.

    Yields:
        A list to which each call of `optimizer.apply` is added (`Update`), instead of being made.

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
    """Makes postponed updates: calls `optimizer.apply` for each; all replicas must call it.

    Args:
        updates: The list that `by_itself` has yielded.
        gradients: For each update, the gradients to apply in place of `Update.grads`.
    """
    for update, grads in zip(updates, gradients, strict=True):
        update.optimizer.apply(grads, update.variables)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `tf.function` of `fn` that XLA compiles."""
    function: Callable[..., Any] = tf.function(fn, autograph=False, jit_compile=True)
    return function


def unpacked(element: Any, layout: BatchLayout) -> Any:
    """Returns an element in the structure that the model's step expects, such as `(x, y)`."""
    return element if layout.template is None else layout.template.pack(element)
