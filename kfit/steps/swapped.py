"""Recognizes inputs that were passed as targets, and targets as inputs, by their shapes."""

from __future__ import annotations

from typing import Any

import keras

Shape = tuple[int | None, ...]


def hint_of_swap(model: keras.Model, spec: Any) -> str:
    """Returns a question to add to an error, if `x` has the shape of targets, and `y` of inputs.

    Targets have the shape of an output, or hold the index of a class in place of its last axis.

    Args:
        model: The model; nothing is found if it has several inputs or outputs, or does not tell
            their shapes.
        spec: The structure of a batch that the model cannot take, made of `keras.KerasTensor`s.
    """
    x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    declared = [getattr(model, name, None) or [] for name in ("inputs", "outputs")]
    if not all(isinstance(part, keras.KerasTensor) for part in (x, y)):
        return ""
    if any(len(each) != 1 for each in declared):
        return ""
    taken, made = (tuple(each[0].shape[1:]) for each in declared)
    targets = (made, made[:-1], (*made[:-1], 1))
    is_swapped = not differ(tuple(y.shape[1:]), taken) and not all(
        differ(tuple(x.shape[1:]), each) for each in targets
    )
    return " Are `x` and `y` swapped?" if is_swapped else ""


def differ(one: Shape, other: Shape) -> bool:
    """Returns whether two shapes surely differ; None is a size that may be any."""
    if len(one) != len(other):
        return True
    return any(None not in pair and pair[0] != pair[1] for pair in zip(one, other, strict=True))
