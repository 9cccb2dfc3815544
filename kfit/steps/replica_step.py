"""Runs the model's step on one replica, with the optimizer's updates outside of what XLA compiles.

Replicas cannot sum their gradients within code that XLA compiles. So if XLA compiles the step, the
calls of the optimizer are recorded while the step is traced, and made after the compiled part.
"""

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
    """Context in which the logged loss of each output of a model is a mean over examples.

    A model with several outputs logs a loss for each output, and one for the whole model. Keras
    averages the loss of the whole model over examples. But it averages the losses of the outputs
    over batches if the batch size is not static, so that a smaller last batch counts as much as a
    full one. In this context each batch counts by its number of examples.

    Args:
        model: The model, whose steps are traced in the context.
        examples: A function that returns the number of examples of the current batch, or None if it
            is not known.
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
    """Runs the model's step on one replica, and returns what the step returned.

    With `jit` XLA compiles the step up to the gradients. The optimizer's updates follow after the
    compiled part, because replicas cannot sum their gradients inside XLA.

    Args:
        model_step: The model's `train_step`, `test_step` or `predict_step`.
        data: The replica's rows of the batch, as the step expects them.
        replica: A description of the replica that is being traced.
        jit: Whether XLA compiles the step.
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
    """Context in which a replica must not communicate, and the optimizer's updates are postponed.

    It is entered around code in which no replica can wait for another, such as code that XLA
    compiles.

    Args:
        replica: A description of the replica that is being traced.

    Yields:
        A list. Each call of `optimizer.apply` is appended to this list (`Update`) instead of being
        made; `make` makes the calls later.

    Raises:
        CannotMeetError: If code in the context needs the other replicas before it calls the
            optimizer.
    """
    replica.postponed = []
    try:
        yield replica.postponed
    finally:
        replica.postponed = None


def make(updates: Sequence[Update], gradients: Sequence[Any]) -> None:
    """Makes the calls of `optimizer.apply` that `by_itself` has postponed.

    It must be called on all replicas, since the optimizer sums the gradients over them.

    Args:
        updates: The postponed calls: the list that `by_itself` has yielded.
        gradients: For each call, the gradients to pass to it. They replace the gradients in
            `updates`, which are tensors within the compiled part and cannot be used outside of it.
            The values are the same.
    """
    for update, grads in zip(updates, gradients, strict=True):
        update.optimizer.apply(grads, update.variables)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `tf.function` of `fn` that XLA compiles."""
    function: Callable[..., Any] = tf.function(fn, autograph=False, jit_compile=True)
    return function


def unpacked(element: Any, layout: BatchLayout) -> Any:
    """Returns a batch in the structure that the model's step expects, such as `(x, y)`.

    Args:
        element: The batch, or a replica's rows of it. It may be a flat tuple of tensors.
        layout: A description of the batch. Its `template` is the structure of a batch that is flat.
    """
    return element if layout.template is None else layout.template.pack(element)
