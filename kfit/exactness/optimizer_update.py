"""The optimizer's update on several replicas: gradients are summed first, as if from one device.

Keras sums gradients over the replicas at the very end, after it has clipped them, checked whether
they are finite and accumulated them. It also uses `tf.cond` with variables that live on all
replicas, which TensorFlow does not support inside a replica: gradient accumulation and
`ema_overwrite_frequency` crash. Here the gradients are summed before the optimizer gets them, in
one collective, and each such `tf.cond` is run in the cross-replica context, once for all replicas.
With gradient accumulation the collective is in the branch that updates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.distribute.contexts import merge
from kfit.distribute.placement import adopt
from kfit.exactness.changed_gradients import check_changes, is_whole
from kfit.exactness.collectives import largest, sum_gradients
from kfit.exactness.replica_context import (
    CannotMeetError,
    Replica,
    Step,
    Update,
    check_may_meet,
    current_replica,
    current_step,
)
from kfit.exactness.scalar_estimates import estimate_of
from kfit.internals.optimizers import (
    accumulated_gradients,
    index_of,
    is_overwritten,
    overwrite_variables,
    overwrite_with_average,
    skip_non_finite,
    step_count,
    take_finite,
    trainable_variables,
    update_average,
    update_variables,
    without_empty_gradients,
)

Tensor = Any
Optimizer: TypeAlias = keras.optimizers.Optimizer


def scaled_loss(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `Optimizer.scale_loss`: multiplies the loss, instead of each gradient, by the share.

    A loss with a value for each example (`reduction=None`) is not multiplied: its gradient is that
    of the sum of its values, and these sums add up over the replicas.
    """

    def scale_loss(self: Optimizer, loss: Tensor) -> Tensor:
        replica = current_replica()
        if replica is None:
            return original(self, loss)
        replica.scaled.add(id(self))
        if has_values_of_examples(loss, replica):
            loss = replica.zero_if_empty(loss)
        else:
            loss = replica.weigh(estimate_of(loss, replica, "The loss of this step"))
        weighed = original(self, loss)
        replica.weighed[id(weighed)] = weighed
        return weighed

    return scale_loss


def noted_values(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `Model.compute_loss`: records whether the loss has a value for each example.

    If so, its gradients are right only if the step passes it to `scale_loss`.
    """

    def compute_loss(self: keras.Model, *args: Any, **kwargs: Any) -> Tensor:
        loss = original(self, *args, **kwargs)
        replica = current_replica()
        if replica is not None:
            replica.unreduced = has_values_of_examples(loss, replica)
        return loss

    return compute_loss


def has_values_of_examples(loss: Tensor, replica: Replica) -> bool:
    """Whether a loss is not reduced, but has values of this replica's own examples."""
    return not replica.has_all and tf.TensorShape(getattr(loss, "shape", ())).rank != 0


def apply(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `apply` of `Optimizer` and `MultiOptimizer`: sums gradients first. A collective."""

    def apply_reduced(
        self: Optimizer, grads: Sequence[Tensor], trainable_variables: Any = None
    ) -> None:
        replica = current_replica()
        if replica is None or len(grads) == 0:
            return original(self, grads, trainable_variables)
        if replica.postponed is not None:
            return _postpone(self, grads, trainable_variables, replica.postponed)
        variables = _prepare(self, trainable_variables)
        waits = not replica.reduced and _accumulates_apart(self)
        with _reduced(self, grads, variables, replica, waits=waits) as sums:
            if _needs_all_replicas(self):
                _apply_together(self, sums, variables, waits=waits)
            else:
                original(self, sums, variables)
        return None

    return apply_reduced


def apply_scaled(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `LossScaleOptimizer.apply`: an overflow on any replica skips the update on all."""

    def apply_reduced(
        self: keras.optimizers.LossScaleOptimizer,
        grads: Sequence[Tensor],
        trainable_variables: Any = None,
    ) -> None:
        replica = current_replica()
        if replica is None or len(grads) == 0:
            return original(self, grads, trainable_variables)
        if replica.postponed is not None:
            return _postpone(self, grads, trainable_variables, replica.postponed)
        variables = _prepare(self, trainable_variables)
        with _reduced(self, grads, variables, replica) as sums:
            step = current_step()
            assert step is not None
            present, where = _without_none(sums)

            def everywhere(_: Any, present: list[Tensor]) -> None:
                finite = step.strategy.local_results(
                    step.on_each_replica(self.check_finite, (present,))
                )[0]

                def update(*present: Tensor) -> None:
                    take_finite(self, _with_none(present, where), variables)

                def take() -> Tensor:
                    step.on_each_replica(update, tuple(present))
                    return tf.constant(True)

                def skip() -> Tensor:
                    skip_non_finite(self)
                    return tf.constant(False)

                tf.cond(finite, take, skip)

            merge(everywhere, (present,))
        return None

    return apply_reduced


def no_second_sum(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' own sum over the replicas: returns the gradients, which are summed already."""

    def all_reduce_sum_gradients(self: Optimizer, grads_and_vars: Any) -> Any:
        if current_replica() is None:
            return original(self, grads_and_vars)
        return list(grads_and_vars)

    return all_reduce_sum_gradients


def no_meeting_by_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `merge_call`: raises CannotMeetError inside a part of a step that XLA compiles."""

    def merge_call(self: Any, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        check_may_meet()
        return original(self, merge_fn, args, kwargs)

    return merge_call


def _postpone(
    optimizer: Optimizer, grads: Sequence[Tensor], variables: Any, updates: list[Update]
) -> None:
    """Records an update, to be made after the compiled part of the step."""
    if updates:
        raise CannotMeetError(
            "`jit_compile=True` on several replicas takes one optimizer update a step, because the "
            "gradients are summed outside of XLA. This model's `train_step` makes several: compile "
            "it with `jit_compile=False`."
        )
    updates.append(Update(optimizer, list(grads), None if variables is None else list(variables)))


def _prepare(optimizer: Optimizer, variables: Any) -> list[Any]:
    """Returns the variables to update; builds the optimizer on all replicas if it is not built."""
    if variables is None:
        return trainable_variables(optimizer)
    variables = list(variables)
    if not optimizer.built:

        def build(strategy: Any) -> None:
            if not optimizer.built:
                with tf.init_scope(), strategy.scope():
                    adopt(optimizer, variables, strategy)
                    optimizer.build(variables)

        merge(build, ())
    return variables


@contextmanager
def _reduced(
    optimizer: Optimizer,
    grads: Sequence[Tensor],
    variables: Sequence[Any],
    replica: Replica,
    *,
    waits: bool = False,
) -> Iterator[Any]:
    """Context with the gradients of the global batch's loss, summed over the replicas.

    Inner optimizers that call `apply` inside it do not sum again.

    Args:
        optimizer: The optimizer.
        grads: This replica's gradients; items may be None.
        variables: The variables of the gradients.
        replica: The replica that is being traced.
        waits: Whether dense gradients are summed only at the end of an accumulation window.

    Yields:
        The gradients. With `waits` the dense ones are this replica's own, weighted by the share.
    """
    if replica.reduced:
        yield list(grads)
        return
    values = _values_of_all(optimizer, grads, variables)
    weighed = [None if i in values else grad for i, grad in enumerate(grads)]
    present, where = _without_none(weighed)
    _warn_of_dense_rows(optimizer, present)
    if not replica.has_all:
        check_changes(present, replica)
    late = [waits and _may_wait(grad) for grad in present]
    sums = _sums(present, _of_share(optimizer, present, replica), late, replica)
    replica.reduced = True
    try:
        yield [values.get(i, grad) for i, grad in enumerate(_with_none(sums, where))]
    finally:
        replica.reduced = False


def _sums(
    grads: list[Tensor], parts: list[Tensor], late: list[bool], replica: Replica
) -> list[Tensor]:
    """Sums the gradients over the replicas, but for those that are late or summed already.

    Args:
        grads: The replica's gradients.
        parts: The same gradients, weighted by the share.
        late: Which of them are to be summed later; their parts are returned.
        replica: The replica that is being traced.
    """
    whole = [is_whole(grad, replica) for grad in grads]
    due = [
        part
        for part, is_late, has_all in zip(parts, late, whole, strict=True)
        if not is_late and not has_all
    ]
    summed = iter(sum_gradients(due) if due else [])
    return [
        part if is_late else grad if has_all else next(summed)
        for grad, part, is_late, has_all in zip(grads, parts, late, whole, strict=True)
    ]


def _values_of_all(
    optimizer: Optimizer, grads: Sequence[Tensor], variables: Sequence[Any]
) -> dict[int, Tensor]:
    """The new values of variables that Keras overwrites with their "gradients", by index.

    In float8 training these are the largest absolute values seen, and scales computed from them.
    The maximum over the replicas is the value for the global batch. A collective if there are any.
    """
    own = {
        i: grad
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
        if grad is not None and is_overwritten(optimizer, variable)
    }
    return dict(zip(own, largest(list(own.values())), strict=True)) if own else {}


def _warn_of_dense_rows(optimizer: Optimizer, present: Sequence[Tensor]) -> None:
    """Warns if a sparse gradient is summed as a dense one, and that changes the update."""
    step = current_step()
    assert step is not None
    strategy = step.strategy
    dense = [g for g in present if isinstance(g, tf.IndexedSlices) and not strategy.keeps_rows(g)]
    if strategy.num_replicas == 1 or not dense or _adds_up_rows_first(optimizer):
        return
    reason, way_out = (
        ("a TPU sums no other", "")
        if strategy.static_shapes
        else (
            "its number of rows is another in each step, and TensorFlow's collectives between "
            "these workers take one shape",
            ", or examples of one length",
        )
    )
    warnings.warn(
        f"The gradient of an embedding is summed as a dense one here, since {reason}. On one "
        f"device Keras' {type(optimizer).__name__} squares and clips the rows of a batch before "
        "those of one word are added up, so that the numbers differ where a batch has a word more "
        "than once. Take `gradient_accumulation_steps`, or keras.optimizers.SGD without "
        f"clipping{way_out}.",
        stacklevel=2,
    )


def _adds_up_rows_first(optimizer: Optimizer) -> bool:
    """Whether an optimizer gives the same result for a sparse gradient and the equal dense one.

    It does if it sums the rows of each index before any nonlinear operation, or is linear.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    clips = inner.clipnorm or inner.clipvalue or inner.global_clipnorm
    is_linear = type(inner) is keras.optimizers.SGD and not clips
    return bool(inner.gradient_accumulation_steps or is_linear)


def _of_share(optimizer: Optimizer, present: list[Tensor], replica: Replica) -> list[Tensor]:
    """The gradients weighted by the share: their sum over replicas is that of the global loss."""
    if replica.tape_sums:
        # Early sums are equal on all replicas; weighted by the shares they add up to themselves.
        return [replica.weigh(grad) for grad in present]
    if id(optimizer) in replica.scaled:
        return [replica.zero_if_empty(grad) for grad in present]
    if replica.unreduced:
        raise ValueError(
            "`train_step` takes gradients of a loss with a value for each example "
            "(`reduction=None`). On several replicas it is ambiguous whether their sum or their "
            "mean is meant. Take the gradients of `self.optimizer.scale_loss(loss)`, as Keras' own "
            "step does, or compile the model with a reduction."
        )
    return [replica.weigh(grad) for grad in present]


def _may_wait(grad: Tensor) -> bool:
    """Whether a gradient is dense: accumulating a sparse one would make it dense."""
    return not isinstance(grad, tf.IndexedSlices)


def _needs_all_replicas(optimizer: Optimizer) -> bool:
    """Whether the update has a conditional with variables that live on all replicas."""
    return bool(
        optimizer.gradient_accumulation_steps
        or (optimizer.use_ema and optimizer.ema_overwrite_frequency)
    )


def _accumulates_apart(optimizer: Optimizer) -> bool:
    """Whether each replica accumulates its own gradients, which are summed once per window.

    That is not so if variables are overwritten with their gradients (float8).
    """
    step = current_step()
    assert step is not None
    return bool(
        optimizer.gradient_accumulation_steps
        and step.accumulation is not None
        and not any(
            is_overwritten(optimizer, variable) for variable in trainable_variables(optimizer)
        )
    )


def _apply_together(
    optimizer: Optimizer, grads: list[Tensor], variables: list[Any], *, waits: bool
) -> None:
    """`Optimizer.apply` with its conditionals run once, in the cross-replica context.

    Follows `BaseOptimizer.apply` and `_backend_apply_gradients` of Keras 3.
    """
    step = current_step()
    assert step is not None
    grads, variables = without_empty_gradients(optimizer, grads, variables)
    grads, variables = overwrite_variables(optimizer, grads, variables)
    if optimizer.loss_scale_factor is not None:
        grads = [grad / optimizer.loss_scale_factor for grad in grads]
    window = optimizer.gradient_accumulation_steps

    def everywhere(_: Any, grads: list[Tensor]) -> None:
        if window:
            _accumulate_or_update(optimizer, step, grads, variables, window, waits)
        else:
            step.on_each_replica(lambda *g: update_variables(optimizer, g, variables), tuple(grads))
        if optimizer.use_ema:
            step.on_each_replica(lambda: update_average(optimizer))
            _maybe_overwrite_with_average(optimizer)
        step.on_each_replica(lambda: _finish(optimizer, variables))

    merge(everywhere, (list(grads),))


def _accumulate_or_update(
    optimizer: Optimizer,
    step: Step,
    grads: list[Tensor],
    variables: list[Any],
    window: int,
    waits: bool,
) -> None:
    places = [index_of(optimizer, variable) for variable in variables]
    accumulated = accumulated_gradients(optimizer)
    totals = [accumulated[place] for place in places]
    parts: dict[int, tf.Variable] = {}
    if waits:
        assert step.accumulation is not None
        for i, grad in enumerate(grads):
            if _may_wait(step.strategy.local_results(grad)[0]):
                parts[i] = step.accumulation.part(optimizer, places[i])

    def update(*grads: Tensor) -> None:
        sums = dict(enumerate(grads))
        late = sum_gradients([part + grads[i] for i, part in parts.items()])
        sums.update(zip(parts, late, strict=True))
        for part in parts.values():
            part.assign(tf.zeros_like(part))
        means = [(sums[i] + total) / window for i, total in enumerate(totals)]
        update_variables(optimizer, means, variables)
        for total in totals:
            total.assign(tf.zeros_like(total))

    def accumulate(*grads: Tensor) -> None:
        for i, (grad, total) in enumerate(zip(grads, totals, strict=True)):
            if i in parts:
                parts[i].assign_add(grad)
            else:
                total.assign(grad + total)

    def branch(fn: Callable[..., None]) -> Callable[[], Tensor]:
        def taken() -> Tensor:
            step.on_each_replica(fn, tuple(grads))
            return tf.constant(True)

        return taken

    due = (tf.convert_to_tensor(step_count(optimizer)) + 1) % window == 0
    tf.cond(due, branch(update), branch(accumulate))


def _maybe_overwrite_with_average(optimizer: Optimizer) -> None:
    every = optimizer.ema_overwrite_frequency
    if not every:
        return

    def overwrite() -> Tensor:
        overwrite_with_average(optimizer)
        return tf.constant(True)

    due = (tf.convert_to_tensor(optimizer.iterations) + 1) % every == 0
    tf.cond(due, overwrite, lambda: tf.constant(False))


def _finish(optimizer: Optimizer, variables: list[Any]) -> None:
    for variable in variables:
        if variable.constraint is not None:
            variable.assign(variable.constraint(variable))
    step_count(optimizer).assign_add(1)


def _without_none(grads: Sequence[Tensor]) -> tuple[list[Tensor], list[bool]]:
    return [g for g in grads if g is not None], [g is not None for g in grads]


def _with_none(present: Sequence[Tensor], where: list[bool]) -> list[Tensor]:
    rest = iter(present)
    return [next(rest) if here else None for here in where]
