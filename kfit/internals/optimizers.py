"""The single parts of an optimizer's update, and the optimizer's private state.

Keras has only one public method for the whole update, `apply`. It contains conditionals, such as
the one of gradient accumulation. On several replicas kfit does not call `apply`, but its parts one
by one, so that each conditional is run once for all replicas (`kfit.exactness.joint_update`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.internals.private import imported, uses

Optimizer: TypeAlias = keras.optimizers.Optimizer
_WHOLE = "`apply` is public as a whole only"

_interim: Any = imported(
    "tensorflow.__internal__.distribute.interim",
    because="the optimizer has all replicas meet by a function of this module",
)
MERGING_MODULE = _interim
"""The module of `maybe_merge_call`, with which an optimizer synchronizes all replicas."""


@uses("keras.optimizers.Optimizer._trainable_variables", because="`variables` holds all others too")
def trainable_variables(optimizer: Optimizer) -> list[keras.Variable]:
    """Returns the model variables that an optimizer was built for."""
    return list(optimizer._trainable_variables)


@uses("keras.optimizers.Optimizer._accumulated_gradients", because="`variables` has them unnamed")
def accumulated_gradients(optimizer: Optimizer) -> list[keras.Variable]:
    """Returns the variables in which an optimizer accumulates gradients.

    There is one for each model variable, used with `gradient_accumulation_steps`.
    """
    return list(optimizer._accumulated_gradients)


@uses("keras.optimizers.Optimizer._get_variable_index", because="no public method tells the place")
def index_of(optimizer: Optimizer, variable: keras.Variable) -> int:
    """Returns the index of a model variable among those that the optimizer was built for."""
    return int(optimizer._get_variable_index(variable))


@uses("keras.optimizers.Optimizer._iterations", because="`iterations` counts windows, not steps")
def step_count(optimizer: Optimizer) -> keras.Variable:
    """Returns the variable that counts an optimizer's steps.

    With `gradient_accumulation_steps` it also counts the steps without an update of the model.
    """
    return optimizer._iterations


@uses("keras.optimizers.Optimizer._check_variables_are_known", because=_WHOLE)
def require_known(optimizer: Optimizer, variables: Sequence[Any]) -> None:
    """Raises Keras' ValueError if an optimizer was not built for one of the variables."""
    optimizer._check_variables_are_known(variables)


@uses("keras.optimizers.Optimizer._filter_empty_gradients", because=_WHOLE)
def without_empty_gradients(
    optimizer: Optimizer, grads: Sequence[Any], variables: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Returns the gradients that are not None, and the variables of these gradients.

    Keras warns of variables whose gradient is None, and raises a ValueError if all are None.
    """
    kept, theirs = optimizer._filter_empty_gradients(grads, variables)
    return list(kept), list(theirs)


@uses(
    "keras.optimizers.Optimizer._overwrite_variable_with_gradient",
    because="only the variable of float8 training knows, by another private name",
)
def is_overwritten(optimizer: Optimizer, variable: keras.Variable) -> bool:
    """Returns whether Keras overwrites a variable with its "gradient", as in float8 training.

    Such a "gradient" is the new value of the variable.
    """
    return bool(optimizer._overwrite_variable_with_gradient(variable))


@uses("keras.optimizers.Optimizer._overwrite_variables_directly_with_gradients", because=_WHOLE)
def overwrite_variables(
    optimizer: Optimizer, grads: Sequence[Any], variables: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Overwrites the variables for which a "gradient" is the new value of the variable.

    Float8 training has such variables (`is_overwritten`). With `gradient_accumulation_steps`
    Keras overwrites them only in a step that updates the model.

    Returns:
        The gradients that are left to apply, and the variables of these gradients.
    """
    rest, theirs = optimizer._overwrite_variables_directly_with_gradients(grads, variables)
    return list(rest), list(theirs)


@uses(
    "keras.optimizers.Optimizer._clip_gradients",
    "keras.optimizers.Optimizer._apply_weight_decay",
    "keras.optimizers.Optimizer._backend_update_step",
    because=_WHOLE,
)
def update_variables(optimizer: Optimizer, grads: Sequence[Any], variables: list[Any]) -> None:
    """Clips gradients, applies weight decay and updates the variables, all as Keras does."""
    clipped = optimizer._clip_gradients(list(grads))
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(clipped, variables, optimizer.learning_rate)


@uses("keras.optimizers.Optimizer._update_model_variables_moving_average", because=_WHOLE)
def update_average(optimizer: Optimizer) -> None:
    """Updates an optimizer's moving averages of the model's variables with their current values."""
    optimizer._update_model_variables_moving_average(trainable_variables(optimizer))


@uses("keras.optimizers.Optimizer._overwrite_model_variables_with_average_value", because=_WHOLE)
def overwrite_with_average(optimizer: Optimizer) -> None:
    """Overwrites the model's variables with the optimizer's moving averages of them."""
    optimizer._overwrite_model_variables_with_average_value(trainable_variables(optimizer))


@uses(
    "keras.optimizers.LossScaleOptimizer._stateful_handle_finite_grads",
    because="the public `apply` takes a conditional that one replica cannot take by itself",
)
def take_finite(
    optimizer: keras.optimizers.LossScaleOptimizer, grads: Sequence[Any], variables: Sequence[Any]
) -> None:
    """Applies gradients, all of which must be finite, and updates the optimizer's loss scale."""
    optimizer._stateful_handle_finite_grads(grads, variables)


@uses(
    "keras.optimizers.LossScaleOptimizer._stateful_handle_non_finite_grads",
    because="the public `apply` takes a conditional that one replica cannot take by itself",
)
def skip_non_finite(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Updates the loss scale of a LossScaleOptimizer after gradients that are not finite.

    The gradients are not applied.
    """
    optimizer._stateful_handle_non_finite_grads()


@uses(
    "keras.optimizers.LossScaleOptimizer._common_apply",
    because="`apply` has all replicas meet, and a worker at its own pace has none to meet",
)
def apply_alone(optimizer: type[keras.optimizers.LossScaleOptimizer]) -> Callable[..., Any]:
    """Returns the method by which a LossScaleOptimizer updates without waiting for other replicas.

    It is used in place of the method by which `apply` waits for all replicas, since asynchronous
    workers update at different times.

    Args:
        optimizer: The class LossScaleOptimizer.
    """
    method: Callable[..., Any] = optimizer._common_apply
    return method


@uses("keras.optimizers.Optimizer._var_key", because="slots are found by it, and nothing public")
def key_of(optimizer: Optimizer, variable: keras.Variable) -> Any:
    """Returns the key by which an optimizer finds its slots (such as momenta) for a variable."""
    return optimizer._var_key(variable)


@uses(
    "keras.optimizers.Optimizer._distribution_strategy",
    because="an optimizer keeps the strategy that it was made under, and can be told of no other",
)
def belong_to(optimizer: Optimizer, tf_strategy: tf.distribute.Strategy) -> None:
    """Sets the strategy that an optimizer uses.

    Keras sets the strategy only when the optimizer is made. But kfit moves a model to a strategy
    later, for the time of `fit`.
    """
    optimizer._distribution_strategy = tf_strategy


@uses(
    "keras.optimizers.Optimizer._distribution_strategy",
    because="an optimizer tells nobody which strategy it makes its slots in",
)
def strategy_of(optimizer: Optimizer) -> tf.distribute.Strategy:
    """Returns the strategy that an optimizer uses (`belong_to`)."""
    return optimizer._distribution_strategy


@uses(
    "keras.optimizers.Optimizer._learning_rate",
    because="the property `learning_rate` tells the present rate, and not the schedule",
)
def schedule_of(optimizer: Any) -> Any:
    """Returns the schedule, or other function, of an optimizer's learning rate.

    None if the learning rate is a variable.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    return None if isinstance(rate, keras.Variable) else rate


@uses(
    "keras.optimizers.Optimizer._learning_rate",
    because="the property `learning_rate` computes the rate of a schedule, which takes long",
)
def learning_rate_variable(optimizer: Any) -> keras.Variable | None:
    """Returns the variable of an optimizer's learning rate; None if it follows from a schedule.

    Args:
        optimizer: The optimizer. If it wraps another one, as a LossScaleOptimizer does, the rate is
            that of the wrapped one. None if the model has none.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if isinstance(rate, keras.Variable) else None
