"""Refuses examples that are in no batch, such as those of a tf.data.Dataset without `.batch`."""

from __future__ import annotations

from typing import Any

import keras

from kfit.exactness.own_code import overrides
from kfit.steps.swapped import hint_of_swap
from kfit.training.numbers_only import STEPS, inputs_of


def require_batches(model: keras.Model, spec: Any) -> None:
    """Checks that the examples have the dimension of a batch before those that the model takes.

    Only a model whose `keras.Input`s say their shapes is checked, and only if it overrides no step.
    As in Keras, an input of one number, of shape (batch, 1), may lack its last dimension.

    Args:
        model: The model.
        spec: The structure of a batch, `(x, y, sample_weight)` or its first parts, made of
            `keras.KerasTensor`s.

    Raises:
        ValueError: If a part of `x` has the shape of one example.
    """
    if any(overrides(model, step) for step in STEPS):
        return
    x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
    for name, declared, leaf in inputs_of(model, x):
        if leaf is None or leaf.shape is None or declared.shape[-1:] == (1,):
            continue
        example = tuple(declared.shape[1:])
        if len(leaf.shape) == len(example) and all(
            None in pair or pair[0] == pair[1] for pair in zip(leaf.shape, example, strict=True)
        ):
            raise ValueError(
                f"`{name}` holds single examples, where the model's input {declared.name!r} needs "
                f"batches, of shape {tuple(declared.shape)}. Received: shape {example}. "
                "Batch a tf.data.Dataset by `.batch(batch_size)`; make a batch of one example by "
                f"`{name}[None]`.{hint_of_swap(model, spec)}"
            )
