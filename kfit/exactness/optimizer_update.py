"""The optimizer's update on several replicas, computed from gradients that are already summed.

Keras sums gradients over the replicas only after it has clipped them, checked whether they are
finite and accumulated them. So its updates differ from those of one device. Here the gradients are
summed before the optimizer gets them, in one collective (`gradient_sums.py`). If an update contains
a `tf.cond`, for example to accumulate gradients, it is run once for all replicas
(`joint_update.py`), since TensorFlow does not support this `tf.cond` inside a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.distribute.contexts import merge
from kfit.exactness.batch_kinds import has_rows_of_examples
from kfit.exactness.gradient_sums import reduced, with_none, without_none
from kfit.exactness.joint_update import accumulates_apart, apply_together, needs_all_replicas
from kfit.exactness.replica_context import (
    CannotMeetError,
    Replica,
    Update,
    check_may_meet,
    current_replica,
    current_step,
)
from kfit.exactness.scalar_estimates import estimate_of
from kfit.internals.graphs import is_within_branch
from kfit.internals.optimizers import (
    is_overwritten,
    skip_non_finite,
    step_count,
    take_finite,
    trainable_variables,
)
from kfit.internals.variables import tf_variable

Tensor = Any
Optimizer: TypeAlias = keras.optimizers.Optimizer


def scaled_loss(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `Optimizer.scale_loss`, for steps on several replicas.

    The replacement returns the replica's estimate of the global batch's loss. The gradient of a
    loss with a value for each example (`reduction=None`) is that of the sum of the values, so this
    sum is made an estimate. The gradients are multiplied by the replica's share of the examples
    when the optimizer gets them, since the step may add other terms to the loss or the gradients.

    In Keras' own step (`Step.weighs_loss`) the loss is multiplied by the share here, so that the
    gradients need not be multiplied one by one.
    """

    def scale_loss(self: Optimizer, loss: Tensor) -> Tensor:
        replica = current_replica()
        if replica is None:
            return original(self, loss)
        step = current_step()
        assert step is not None
        replica.unreduced = False
        has_values = has_values_of_examples(loss, replica)
        if has_values:
            part = loss if step.weighs_loss else replica.divided_by_share(loss)
            loss = replica.zero_if_empty(part)
        else:
            loss = estimate_of(loss, replica, "The loss of this step")
            loss = replica.weigh(loss) if step.weighs_loss else loss
        scaled = original(self, loss)
        if step.weighs_loss:
            replica.weighed[id(scaled)] = scaled
        elif has_values:
            replica.origins.estimate(scaled)
        return scaled

    return scale_loss


def noted_values(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `Model.compute_loss`, for steps on several replicas.

    The replacement notes whether the loss has a value for each example. The gradients of such a
    loss are right only if the step passes the loss to `scale_loss`. If the step does not, the
    optimizer's update raises an error.
    """

    def compute_loss(self: keras.Model, *args: Any, **kwargs: Any) -> Tensor:
        loss = original(self, *args, **kwargs)
        replica = current_replica()
        if replica is not None:
            replica.unreduced = has_values_of_examples(loss, replica)
        return loss

    return compute_loss


def has_values_of_examples(loss: Tensor, replica: Replica) -> bool:
    """Returns whether a loss is not reduced, but has a value for each of the replica's examples.

    The result is False if each replica computes on the whole batch: then Keras' own computation is
    right.
    """
    return not replica.has_all and has_rows_of_examples(loss, replica)


def apply(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `apply` of `Optimizer` or `MultiOptimizer`, for several replicas.

    The replacement sums the gradients over the replicas before the optimizer clips and applies
    them. It is a collective: all replicas must call it. In a part of a step that XLA compiles, it
    only records the call.
    """

    def apply_reduced(
        self: Optimizer, grads: Sequence[Tensor], trainable_variables: Any = None
    ) -> None:
        replica = current_replica()
        if replica is None or len(grads) == 0:
            return original(self, grads, trainable_variables)
        if replica.postponed is not None:
            return _postpone(self, grads, trainable_variables, replica.postponed)
        _check_not_in_branch(replica)
        if _lacks_variables(self, grads, trainable_variables):
            return original(self, grads, None)  # raises Keras' error
        variables = _prepare(self, trainable_variables)
        waits = not replica.reduced and accumulates_apart(self)
        with reduced(self, grads, variables, replica, waits=waits) as sums:
            if needs_all_replicas(self):
                apply_together(self, sums, variables, waits=waits)
            else:
                original(self, sums, variables)
        return None

    return apply_reduced


def apply_scaled(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `LossScaleOptimizer.apply`, for steps on several replicas.

    The replacement sums the gradients over the replicas before it checks them for overflow, so an
    overflow on one replica skips the update on all. It is a collective: all replicas must call it.
    In a part of a step that XLA compiles, it only records the call.
    """

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
        _check_not_in_branch(replica)
        if _lacks_variables(self, grads, trainable_variables):
            return self.inner_optimizer.apply(grads)  # raises Keras' error
        variables = _prepare(self, trainable_variables)
        with reduced(self, grads, variables, replica) as sums:
            step = current_step()
            assert step is not None
            present, where = without_none(sums)

            def everywhere(_: Any, present: list[Tensor]) -> None:
                finite = step.strategy.local_results(
                    step.on_each_replica(self.check_finite, (present,))
                )[0]

                def update(*present: Tensor) -> None:
                    take_finite(self, with_none(present, where), variables)

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


def _check_not_in_branch(replica: Replica) -> None:
    """Checks that a step calls the optimizer outside of `tf.cond` and of loops of TensorFlow.

    Args:
        replica: The replica that is being traced.

    Raises:
        CannotMeetError: If it does not.
    """
    step = current_step()
    assert step is not None
    if not replica.reduced and is_within_branch(step.graph):
        raise CannotMeetError(
            "`train_step` calls the optimizer within a `tf.cond` or a loop of TensorFlow. On "
            "several replicas they must sum their gradients together, outside of it. To update "
            "only in every n-th step, make the optimizer with `gradient_accumulation_steps=n`, and "
            "call it in each step with the gradients of this step."
        )


def no_second_sum(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of the method by which Keras' optimizers sum gradients over replicas.

    The replacement returns the gradients unchanged if kfit has already summed them. It sums them if
    it has not: so it is if the program has kept the method `apply` from before the step, and calls
    that in place of the optimizer's present one.
    """

    def all_reduce_sum_gradients(self: Optimizer, grads_and_vars: Any) -> Any:
        replica = current_replica()
        if replica is None:
            return original(self, grads_and_vars)
        pairs = list(grads_and_vars)
        if replica.reduced or not pairs:
            return pairs
        _check_linear_until_update(self)
        _check_not_in_branch(replica)
        variables = [variable for _, variable in pairs]
        _check_on_devices(self, variables)
        with reduced(self, [grad for grad, _ in pairs], variables, replica) as sums:
            return list(zip(sums, variables, strict=True))

    return all_reduce_sum_gradients


def _check_linear_until_update(optimizer: Optimizer) -> None:
    """Checks that Keras' own `apply` changes gradients only linearly before it sums them.

    Args:
        optimizer: The optimizer, whose `apply` is called as it was before the step.

    Raises:
        ValueError: If it does not, so that the sum comes too late.
    """
    clips = optimizer.clipnorm or optimizer.clipvalue or optimizer.global_clipnorm
    overwrites = any(is_overwritten(optimizer, each) for each in trainable_variables(optimizer))
    if clips or overwrites or needs_all_replicas(optimizer):
        raise ValueError(
            f"`apply` of the optimizer {optimizer.name!r} is called as it was before this call, "
            "such as by `apply = optimizer.apply` in the program. On several replicas kfit must "
            "sum the gradients before the optimizer clips or accumulates them, and cannot do so "
            "there. Override `apply` in a class of your own, and call `super().apply` in it."
        )


def built_for_all(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `Optimizer.build`, for steps on several replicas.

    The replacement raises a ValueError if a replica builds an optimizer by itself, since it cannot
    make variables that all replicas share. kfit builds an optimizer for all replicas together if a
    step calls its `apply`, but not if a method of the program's own calls `build` first.
    """

    def build(self: Optimizer, variables: Any) -> None:
        if current_replica() is not None:
            raise ValueError(
                f"The optimizer {self.name!r} is built within a step on several replicas, where it "
                "cannot make variables that they share. Build it before, for example by "
                "`optimizer.build(model.trainable_variables)` just after the model is built."
            )
        original(self, variables)

    return build


def no_meeting_by_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `ReplicaContext.merge_call`, by which code waits for all replicas.

    The replacement raises CannotMeetError in a part of a step that must run without the other
    replicas, such as one that XLA compiles.

    `all_reduce` defines the gradient of what it gets by `merge_call`. TensorFlow then searches the
    graph for variables that the result depends on: back through the steps of all other replicas,
    again for each sum and its gradient. Where no gradient passes, it does not search.
    """

    def merge_call(self: Any, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        check_may_meet()
        result, replica = original(self, merge_fn, args, kwargs), current_replica()
        if replica is None or not replica.sums:
            return result
        return tf.nest.map_structure(
            lambda part: tf.stop_gradient(part) if isinstance(part, tf.Tensor) else part, result
        )

    return merge_call


def _postpone(
    optimizer: Optimizer, grads: Sequence[Tensor], variables: Any, updates: list[Update]
) -> None:
    """Records a call of `apply`, which is made after the part of the step that XLA compiles.

    Args:
        optimizer: The optimizer.
        grads: The gradients that were passed to `apply`.
        variables: The variables that were passed to `apply`, or None.
        updates: The list of recorded calls, to which this call is appended.

    Raises:
        CannotMeetError: If the step has already recorded a call.
    """
    if updates:
        raise CannotMeetError(
            "`jit_compile=True` on several replicas takes one optimizer update a step, because the "
            "gradients are summed outside of XLA. This model's `train_step` makes several: compile "
            "it with `jit_compile=False`."
        )
    updates.append(Update(optimizer, list(grads), None if variables is None else list(variables)))


def _lacks_variables(optimizer: Optimizer, grads: Sequence[Tensor], variables: Any) -> bool:
    """Returns whether `apply` is called without variables, and the optimizer has none that fit.

    Keras raises an error then.

    Args:
        optimizer: The optimizer.
        grads: The gradients that were passed to `apply`.
        variables: The variables that were passed to `apply`, or None.
    """
    if variables is not None:
        return False
    return not optimizer.built or len(grads) != len(trainable_variables(optimizer))


def _prepare(optimizer: Optimizer, variables: Any) -> list[Any]:
    """Returns the list of variables that `Optimizer.apply` updates; builds the optimizer if needed.

    An optimizer that is not built yet is built once for all replicas, so all replicas must call the
    function.

    Args:
        optimizer: The optimizer.
        variables: The variables that were passed to `apply`. With None, the result is the list of
            variables with which the optimizer was built.

    Raises:
        ValueError: If a variable, or the optimizer, is none of the model that is trained.
    """
    variables = trainable_variables(optimizer) if variables is None else list(variables)
    _check_on_devices(optimizer, variables)
    if not optimizer.built:

        def build(strategy: Any) -> None:
            if not optimizer.built:
                with tf.init_scope(), strategy.scope():
                    optimizer.build(variables)

        merge(build, ())
    return variables


def _check_on_devices(optimizer: Optimizer, variables: list[Any]) -> None:
    """Checks that what an optimizer updates, and its own state, are on the devices of the replicas.

    kfit moves there what it finds in the attributes of the model. What only a closure or a global
    variable of the program refers to stays where it is.

    Args:
        optimizer: The optimizer.
        variables: The variables that it is about to update.

    Raises:
        ValueError: If they are not.
    """
    step = current_step()
    assert step is not None
    owned = [*variables, step_count(optimizer)] if optimizer.built else variables
    for variable in owned:
        inside = tf_variable(variable) if isinstance(variable, keras.Variable) else variable
        if step.strategy.num_replicas == 1 or step.strategy.is_placed(inside):
            continue
        if variable is step_count(optimizer):
            raise ValueError(
                f"The optimizer {optimizer.name!r} is called in a step on several replicas, but is "
                "in no attribute of the model, so that kfit has not moved it to their devices. "
                "Keep it in one, such as `model.second_optimizer = optimizer`."
            )
        raise ValueError(
            f"The optimizer {optimizer.name!r} updates {getattr(variable, 'path', variable.name)!r}"
            " in a step on several replicas, but no layer in an attribute of the model has this "
            "variable, so that kfit has not moved it to their devices. Keep the layer or model "
            "that has it in one, such as `model.discriminator = discriminator`. (A "
            "`keras.Sequential` knows no layers in attributes; subclass `keras.Model` for them.)"
        )
