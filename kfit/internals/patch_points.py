"""The functions of Keras and TensorFlow that kfit patches for a while, each with the reason.

Some of them are public. Overriding them in subclasses is no alternative, because users would have
to derive their layers, optimizers and metrics from kfit's classes. Most are patched while a step is
traced (`kfit.exactness.patches`).
"""

from __future__ import annotations

import keras
import tensorflow as tf

from kfit.internals.functions import FUNCTION
from kfit.internals.layers import KERAS_NUMPY
from kfit.internals.losses import LOSS_FUNCTION, LOSS_MODULE
from kfit.internals.optimizers import MERGING_MODULE
from kfit.internals.patching import Point
from kfit.internals.private import imported
from kfit.internals.randomness import DRAWING_MODULE, SEED_GENERATOR_MODULE
from kfit.internals.variables import RESOURCE_VARIABLE

_ANY_LAYER = "any layer of the user's may do it, without a class of kfit's"
_ANY_METRIC = "any metric of the user's may do it, without a class of kfit's"
_ANY_STEP = "any step, loss or layer of the user's may call it"
_ALL_AT_ONCE = "any optimizer may be the user's, and all replicas update at once"

SCALE_LOSS_BY_REPLICAS = Point(
    LOSS_MODULE, "scale_loss_for_distribution", "Keras scales by 1 / replicas here"
)
UNSCALE_LOSS_BY_REPLICAS = Point(
    LOSS_MODULE, "unscale_loss_for_distribution", "Keras scales by the replicas here"
)
REDUCE_LOSS = Point(
    LOSS_MODULE,
    "reduce_weighted_values",
    "the one place where values, weights, mask and reduction meet",
)
CALL_LOSS = Point(LOSS_FUNCTION, "call", "where a loss calls its function")
CALL_ANY_LOSS = Point(
    keras.losses.Loss, "__call__", "any loss of the user's may be called, without a class of kfit's"
)
MOMENTS = Point(
    keras.layers.BatchNormalization,
    "_moments",
    "what a synchronized layer asks the other replicas for",
)
CALL_RNN = Point(keras.layers.RNN, "call", _ANY_LAYER)
ADD_LOSS = Point(keras.Layer, "add_loss", _ANY_LAYER)
GET_OWN_LOSSES = Point(keras.Layer, "_get_own_losses", "where a layer's added losses are read")
CLEAR_LOSSES = Point(keras.Layer, "_clear_losses", "where a layer's added losses are dropped")
COMPUTE_LOSS = Point(keras.Model, "compute_loss", _ANY_STEP)
PRINT_MESSAGE = Point(
    imported("keras.src.utils.io_utils", because="the progress bar prints by it"),
    "print_msg",
    "where the progress bar prints its line, as wide as it comes",
)
MAKE_ITERATOR = Point(
    tf.data.Dataset,
    "__iter__",
    "nothing tells how many iterators a hook has made, each of which draws a seed of a `shuffle`",
)
UPDATE_MEAN = Point(keras.metrics.Mean, "update_state", _ANY_METRIC)
UPDATE_MEAN_OF_FUNCTION = Point(keras.metrics.MeanMetricWrapper, "update_state", _ANY_METRIC)
UPDATE_SUM = Point(keras.metrics.Sum, "update_state", _ANY_METRIC)
UPDATE_OTHER_METRICS = tuple(
    Point(owner, "update_state", _ANY_METRIC)
    for owner in {
        base: None
        for metric in vars(keras.metrics).values()
        if isinstance(metric, type) and issubclass(metric, keras.Metric)
        for base in metric.__mro__
        if "update_state" in vars(base)
        and base not in (keras.Metric, keras.metrics.Mean, keras.metrics.Sum)
    }
)
"""Each `update_state` that a class of Keras' metrics defines, except those of Mean and Sum."""
UPDATE_METRIC = Point(keras.Metric, "update_state", _ANY_METRIC)
RESET_METRIC = Point(keras.Metric, "reset_state", _ANY_METRIC)
RESULT_OF_METRIC = Point(keras.Metric, "result", _ANY_METRIC)
NEXT_SEED = Point(keras.random.SeedGenerator, "next", _ANY_LAYER)
GLOBAL_SEED_GENERATOR = Point(
    SEED_GENERATOR_MODULE, "global_seed_generator", "`keras.random` asks it where no seed is given"
)
DRAW_SHAPE = tuple(
    Point(DRAWING_MODULE, name, _ANY_LAYER)
    for name in ("normal", "truncated_normal", "uniform", "randint")
)
"""The functions that draw a tensor of a shape from a distribution that is the same everywhere."""
DROPOUT = Point(DRAWING_MODULE, "dropout", _ANY_LAYER)
ASSIGN = Point(keras.Variable, "assign", _ANY_STEP)
ASSIGN_ADD = Point(keras.Variable, "assign_add", _ANY_STEP)
ASSIGN_SUB = Point(keras.Variable, "assign_sub", _ANY_STEP)
DEFERRED_INITIALIZE = Point(
    keras.Variable, "_deferred_initialize", "where Keras makes the variables of layers, frozen"
)
CHANGE_TF_VARIABLE = tuple(
    Point(RESOURCE_VARIABLE, name, _ANY_STEP) for name in ("assign", "assign_add", "assign_sub")
)
"""The methods that change the value of a `tf.Variable`."""
SCALE_LOSS = Point(keras.optimizers.Optimizer, "scale_loss", _ALL_AT_ONCE)
APPLY = Point(keras.optimizers.Optimizer, "apply", _ALL_AT_ONCE)
SUM_GRADIENTS = Point(
    keras.optimizers.Optimizer,
    "_all_reduce_sum_gradients",
    "Keras' own sum over the replicas cannot be switched off",
)
SCALE_LOSS_WITH_SCALE = Point(keras.optimizers.LossScaleOptimizer, "scale_loss", _ALL_AT_ONCE)
APPLY_WITH_SCALE = Point(keras.optimizers.LossScaleOptimizer, "apply", _ALL_AT_ONCE)
TF_APPLY_WITH_SCALE = Point(
    keras.optimizers.LossScaleOptimizer,
    "_tf_apply",
    "where it has all replicas meet, and a worker at its own pace has none to meet",
)
BUILD_OPTIMIZER = Point(keras.optimizers.Optimizer, "build", _ALL_AT_ONCE)
ADD_SLOT = Point(
    keras.optimizers.Optimizer,
    "add_variable_from_reference",
    "hooks build optimizers outside of the scope, in which alone Keras can make their slots",
)
CHECK_FINITE = Point(keras.optimizers.LossScaleOptimizer, "check_finite", _ALL_AT_ONCE)
APPLY_OF_SEVERAL = (
    (Point(keras.optimizers.MultiOptimizer, "apply", _ALL_AT_ONCE),)
    if hasattr(keras.optimizers, "MultiOptimizer")  # since Keras 3.15
    else ()
)
MERGE_OF_OPTIMIZER = Point(
    MERGING_MODULE, "maybe_merge_call", "where an optimizer has all replicas meet"
)
CALL_FUNCTION = Point(FUNCTION, "__call__", _ANY_STEP)
RESTORE_LATE = Point(
    imported(
        "tensorflow.python.trackable.base.Trackable",
        because="a restored `tf.train.Checkpoint` waits in it for objects that are not made yet",
    ),
    "_handle_deferred_dependencies",
    "where an object that has just been made gets its value from a checkpoint",
)
GRADIENT = Point(tf.GradientTape, "gradient", _ANY_STEP)
GRADIENTS = Point(tf, "gradients", _ANY_STEP)
AVERAGE_LOSS = Point(tf.nn, "compute_average_loss", _ANY_STEP)
REGULARIZATION_LOSS = Point(tf.nn, "scale_regularization_loss", _ANY_STEP)
MERGE_CALL = Point(tf.distribute.ReplicaContext, "merge_call", _ANY_STEP)
ALL_REDUCE = Point(tf.distribute.ReplicaContext, "all_reduce", _ANY_STEP)
ALL_GATHER = Point(tf.distribute.ReplicaContext, "all_gather", _ANY_STEP)
TAKE_ROWS = Point(KERAS_NUMPY, "take", "what `keras.ops.take` and the Embedding layer come to")
SAVE_MODEL = Point(keras.Model, "save", "a program that does not know kfit calls it on every task")
SAVE_WEIGHTS = Point(keras.Model, "save_weights", "the same")
SAVE_CHECKPOINT = Point(
    keras.callbacks.ModelCheckpoint, "_save_model", "no public method decides without writing"
)
COLOCATE = Point(
    tf.distribute.StrategyExtended,
    "colocate_vars_with",
    "slots are made for variables in shards, which are in several places, and for those that were "
    "made on the device, but not in the strategy's scope",
)
UPDATE = Point(
    tf.distribute.StrategyExtended,
    "update",
    "variables in shards are updated where they are, which is in several places",
)
AGGREGATION = Point(
    tf.distribute.DistributedValues,
    "_aggregation",
    "TensorFlow has each `assign` of a replica wait for the others, and adds up new values where "
    "changes are to be added up",
)
"""How TensorFlow combines what replicas assign to a variable. The attribute is not public."""


def calls_of_own_losses() -> list[Point]:
    """Returns the point `__call__` of each class of losses, not of Keras, that has its own one.

    A class that is no loss may have the method, and a loss may inherit it from there (a mixin). The
    point is then the first loss that inherits it: others than losses may use the same method.
    """
    found, waiting = [], [keras.losses.Loss]
    while waiting:
        derived = waiting.pop().__subclasses__()
        waiting += derived
        found += [each for each in derived if _brings_call(each)]
    own = (each for each in dict.fromkeys(found) if not each.__module__.startswith("keras."))
    return [Point(each, "__call__", "a loss may leave out the one of Keras") for each in own]


def _brings_call(loss: type[keras.losses.Loss]) -> bool:
    """Returns whether a class of losses has its `__call__` from itself, or from no other loss."""
    for base in loss.__mro__:
        if base is not loss and issubclass(base, keras.losses.Loss):
            return False
        if "__call__" in vars(base):
            return True
    return False
