"""Refuses strings in data where a model, a loss or sample weights need numbers.

Keras casts the parts of a batch to the dtypes of the model and of the loss. TensorFlow cannot cast
strings, which it finds out only in the first step, and its error names no argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kfit.exactness.own_code import is_of_keras, overrides
from kfit.heartbeat.summaries import message_of
from kfit.internals.models import KerasFunctional, given_to_compile
from kfit.training.arguments import name_of_loss

_REFUSED = "dtype='string' is not a valid dtype"
"""What Keras says of a layer that computes with the dtype of its input."""
STEPS = ("train_step", "test_step", "predict_step")


def require_numbers(model: keras.Model, spec: Any, step: str) -> None:
    """Checks that a batch has no strings where the model and its loss need numbers.

    A prediction ignores all but the inputs, such as names that belong to the examples. What the
    model's own code makes of a batch is not known. So nothing is checked if the model overrides a
    step. The inputs are checked only of a model whose `keras.Input`s say their dtypes, and the
    targets only if one loss was given for all outputs.

    Args:
        model: The model.
        spec: The structure of a batch, `(x, y, sample_weight)` or its first parts, made of
            `keras.KerasTensor`s.
        step: The name of the step that gets the batch, such as "train_step".

    Raises:
        ValueError: If there are such strings.
    """
    if not any(_holds_strings(leaf) for leaf in keras.tree.flatten(spec)):
        return
    if any(overrides(model, each) for each in STEPS):
        return
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(spec)
    for name, declared, leaf in inputs_of(model, x):
        if _holds_strings(leaf) and declared.dtype != "string":
            raise ValueError(
                f"`{name}` holds strings, but the model's input {declared.name!r} has dtype "
                f"{declared.dtype}. Received: dtype string, shape {leaf.shape}. Convert numbers "
                f"that are written as text by `{name}.astype('float32')`; look words up by a "
                "keras.layers.TextVectorization or StringLookup, in the data, or in the model "
                "behind a `keras.Input(..., dtype='string')`."
            )
    if step == "predict_step":
        return
    loss = given_to_compile(model).loss
    if not overrides(model, "compute_loss") and (isinstance(loss, str) or callable(loss)):
        for leaf in filter(_holds_strings, keras.tree.flatten(y)):
            raise ValueError(
                f"`y` holds strings, but the loss {name_of_loss(loss)} compares numbers with the "
                f"model's outputs. Received: dtype string, shape {leaf.shape}. Number the classes, "
                "such as by `classes, y = np.unique(y, return_inverse=True)`."
            )
    for leaf in filter(_holds_strings, keras.tree.flatten(sample_weight)):
        raise ValueError(
            "`sample_weight` must be numbers. Received: strings (dtype string), of shape "
            f"{leaf.shape}. Convert them by `sample_weight.astype('float32')`."
        )


@contextmanager
def naming_strings(spec: Callable[[], Any]) -> Iterator[None]:
    """Context in which a model is built and traced, and a layer that refuses strings is explained.

    So the error of a model that does not say the dtypes of its inputs names the argument, too.

    Args:
        spec: A function that returns the structure of a batch, as for `require_numbers`.

    Raises:
        ValueError: In place of Keras' error, if a layer has refused strings, and `x` holds some.
    """
    try:
        yield
    except ValueError as error:
        if _REFUSED not in message_of(error):
            raise
        x, _, _ = keras.utils.unpack_x_y_sample_weight(spec())
        if not any(map(_holds_strings, keras.tree.flatten(x))):
            raise
        raise ValueError(
            "`x` holds strings (dtype string), but a layer of the model needs numbers: "
            f"{error} Convert numbers that are written as text by `x.astype('float32')`; look "
            "words up by a keras.layers.TextVectorization or StringLookup before that layer."
        ) from error


def _holds_strings(leaf: Any) -> bool:
    return leaf is not None and bool(leaf.dtype == "string")


def inputs_of(model: keras.Model, x: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields for each part of `x` what to call it, the model's input, and the part itself.

    As in Keras, a dict is matched by its keys, which may be the names of the inputs, and may have
    further keys. Nothing is yielded if the model does not say its inputs, or has a `call` of its
    own.
    """
    if not is_of_keras(type(model).call):
        return
    functional = isinstance(model, KerasFunctional)
    declared: Any = model.input if functional else getattr(model, "inputs", None)
    if isinstance(x, dict):
        if not isinstance(declared, dict):
            declared = {
                each.name: each for each in keras.tree.flatten(declared) if each is not None
            }
        for key in declared.keys() & x.keys():
            for each, leaf in zip(*map(keras.tree.flatten, (declared[key], x[key])), strict=False):
                yield f"x[{key!r}]", each, leaf
        return
    pairs = list(zip(*map(keras.tree.flatten, (declared, x)), strict=False))
    for index, (each, leaf) in enumerate(pairs):
        if each is not None:
            yield (f"x[{index}]" if len(pairs) > 1 else "x"), each, leaf
