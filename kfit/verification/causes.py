"""Finds out by experiments which parts of a model make replicas differ from one device."""

from __future__ import annotations

from types import MethodType

import keras

from kfit.exactness.own_code import overrides
from kfit.heartbeat.summaries import summary_of
from kfit.verification.layer_probe import Seen, differing, outputs_of
from kfit.verification.report import RANDOM, Cause, Difference, joined
from kfit.verification.runs import Runs, Way, are_equal, compared

_STATEFUL = (
    "its output changes from call to call on one device, although all seeds are the same. It "
    "probably draws from TensorFlow's own random operations, such as tf.random.normal, whose state "
    "can neither be set nor saved. Draw from keras.random with a keras.random.SeedGenerator."
)
_CONSTANT = (
    "it draws from NumPy's or Python's generator while the step is traced. The numbers are then "
    "constants, which are others on each replica. Draw from keras.random with a "
    "keras.random.SeedGenerator."
)
_DRAWS = (
    "it draws from keras.random. Each replica draws other numbers than one device, as documented: "
    "the models are equally good, but not equal."
)
_UNSYNCHRONIZED = (
    "each replica normalizes by the mean and variance of its own rows. "
    "BatchNormalization(synchronized=True) computes them from the whole batch."
)
_ACROSS = (
    "its output for an example depends on the other examples of the batch, of which a replica has "
    "only its own. Let the layer sum or gather over all replicas by "
    "`tf.distribute.get_replica_context().all_reduce` or `.all_gather`."
)


class LayerCauses:
    """The layers whose outputs differ, found by calling the model on one device and on replicas.

    Args:
        runs: The runs.
        one: How the model is trained on one device.
        several: How the model is trained on the replicas; None to call it twice on one device, and
            find the layers that do not repeat their outputs.

    Attributes:
        causes: A cause for each of these layers, in the order in which the layers are called.
        random: The layers among them whose draws explain why they differ.
        problem: Why the layers could not be compared, or None.
    """

    def __init__(self, runs: Runs, one: Way, several: Way | None) -> None:
        self.causes: list[Cause] = []
        self.random: list[keras.Layer] = []
        self.problem: str | None = None
        seen = Seen()
        try:
            first, second = outputs_of(runs, one, seen, times=2)
            unrepeated = differing(runs, first, second)
            other = second
            if several is not None and not unrepeated:
                [other] = outputs_of(runs, several, seen, given=first)
        except Exception as error:  # a model of the user's may be callable by its own steps only
            self.problem = (
                "The layers could not be compared one by one, because the model cannot be called "
                f"by itself: {summary_of(error)[:200]}"
            )
            return
        self._judge(seen, unrepeated or differing(runs, first, other), bool(unrepeated))

    def _judge(self, seen: Seen, keys: list[str], is_unrepeated: bool) -> None:
        # Outputs of one device are passed on unchanged, so only the first ones are named there.
        for key in keys[:1] if is_unrepeated else keys:
            layer = seen.layers[key]
            cause = _cause_of(layer, seen, is_unrepeated)
            if any(known.name == cause.name for known in self.causes):
                continue
            self.causes.append(cause)
            if cause.kind == RANDOM:
                self.random.append(layer)


def _cause_of(layer: keras.Layer, seen: Seen, is_unrepeated: bool) -> Cause:
    if is_unrepeated:
        return Cause(layer.name, "not repeatable", f"{_is(layer)}: {_STATEFUL}")
    if layer.name in seen.constant:
        return Cause(layer.name, "constant random numbers", f"{_is(layer)}: {_CONSTANT}")
    if layer.name in seen.drawing:
        return Cause(layer.name, RANDOM, f"{_is(layer)}: {_DRAWS}")
    if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized:
        return Cause(layer.name, "batch normalization", _UNSYNCHRONIZED)
    return Cause(layer.name, "looks across examples", f"{_is(layer)}: {_ACROSS}")


def causes_besides_layers(
    runs: Runs, one: Way, several: Way, differences: tuple[Difference, ...]
) -> list[Cause]:
    """Finds causes where the output of every layer is the same on one device and on replicas.

    The model's own `train_step` is replaced by that of Keras, to see whether the difference
    disappears. If it stays, or the model has no `train_step` of its own, the parts that differ
    are named.

    Args:
        runs: The runs.
        one: A fresh way to train on one device.
        several: A fresh way to train on the replicas.
        differences: The differences that are to be explained.
    """
    names = [d.name for d in differences if not d.is_equal and d.kind == "layer"]
    logs = [d.name for d in differences if not d.is_equal and d.kind == "log"]
    model = runs.model
    if not names and logs and not any(not d.is_equal for d in differences if d.kind != "log"):
        text = (
            "the weights are equal, so only what is logged differs: the metric or loss cannot be "
            "computed from what each replica computes of its rows."
        )
        return [Cause(name, "logged value", text) for name in logs]
    if overrides(model, "train_step") and _is_equal_with_keras_step(runs, one, several):
        text = (
            "with the `train_step` of Keras in its place, the numbers are equal. It probably "
            "changes values of one replica, such as gradients, in a way that is not that of the "
            "whole batch. Let the optimizer do so (`clipnorm=`, `global_clipnorm=`), or compute "
            "over all replicas."
        )
        return [Cause(f"{type(model).__name__}.train_step", "own training step", text)]
    steps = f"`{type(model).__name__}.train_step`, " if overrides(model, "train_step") else ""
    last = f" The last layer that differs is {joined(names[-1:])}." if names else ""
    text = (
        "every layer computes the same outputs, but training does not: the difference comes from "
        f"{steps}the loss, the optimizer, or the gradient of a layer behind those that differ."
        f"{last}"
    )
    return [Cause("the gradients", "gradient or loss", text)]


def _is_equal_with_keras_step(runs: Runs, one: Way, several: Way) -> bool:
    model = runs.model
    own, function = vars(model).get("train_step"), model.train_function
    object.__setattr__(model, "train_step", MethodType(keras.Model.train_step, model))
    model.train_function = None  # another step counts only from the next function on
    try:
        base = runs.run(one)
        rounding = runs.rounding(one, base)
        return are_equal(compared(runs, base, runs.run(several), rounding))
    except Exception:  # the loss or `call` may exist for the model's own step only
        return False
    finally:
        if own is None:
            object.__delattr__(model, "train_step")
        else:
            object.__setattr__(model, "train_step", own)
        model.train_function = function


def _is(layer: keras.Layer) -> str:
    return f"a {type(layer).__name__}"
