"""Names the cause where a program counts on the size of its batches, and replicas get parts.

A program may contain the batch size as a number, or take `x.shape[0]` of batches of a fixed size.
On several replicas its step gets a part of each batch. TensorFlow then names an operation deep in
the graph and two shapes that do not fit, and Python a None that is no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.heartbeat.summaries import message_of
from kfit.internals.graph_checks import failed_check

_NO_NUMBER = re.compile(r"NoneType|None values|got None|convert elements of [(\[][^)\]]*None")
_TWO_SHAPES = re.compile(r"[Ss]hapes:? \[(\d+)[,\]].*? (?:vs\.?|and) \[(\d+)")
_TWO_PARTS = re.compile(r"shape\[\d\] = \[(\d+)[,\]].*? vs\. shape\[\d\] = \[(\d+)")
_PRODUCT = re.compile(r"In\[0\]: \[(\d+),(\d+)\], In\[1\]: \[(\d+),(\d+)\]")
_TWO_COUNTS = re.compile(r"tensor with (\d+) values, but the requested shape has (\d+)")
_ONE_EXAMPLE = re.compile(r"slice index (\d+) of dimension 0 out of bounds")
_FIX = (
    "Take `keras.ops.shape(x)[0]` or `tf.shape(x)[0]`, which is the number of the examples that a "
    "replica has, or train on one replica."
)


@contextmanager
def naming_none(is_fixed: bool, strategy: Strategy) -> Iterator[None]:
    """Context in which a step is traced without the size of its batch.

    Args:
        is_fixed: Whether all batches of the data have one size, which Keras' own step would see.
        strategy: kfit's wrapper of the `tf.distribute` strategy.

    Raises:
        ValueError: In place of an error that speaks of None.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if not (is_fixed and _NO_NUMBER.search(message_of(error))):
            raise
        raise ValueError(
            f"The step of `model` fails on {strategy.num_replicas} replicas, perhaps because it "
            "uses the static size of the batches, such as `x.shape[0]`. This is None on a replica, "
            f"which gets a part of each batch. {_FIX} The error was: {error}"
        ) from error


def has_fixed_size(element: Any) -> bool:
    """Returns whether the size of a batch is static.

    Args:
        element: A task's part of the batch, as it comes from the data.
    """
    parts = tf.nest.flatten(element, expand_composites=False)
    return any(part.shape.rank and part.shape[0] is not None for part in parts)


@contextmanager
def naming_size(size: Callable[[], int | None], strategy: Strategy) -> Iterator[None]:
    """Context of graph calls, in which a check of kfit may fail, or a model need a whole batch.

    Args:
        size: Returns the number of examples of a global batch; None if it is not known.
        strategy: kfit's wrapper of the `tf.distribute` strategy.

    Raises:
        ValueError: In place of TensorFlow's error, if it is that of a check of kfit, or if its
            shapes are those of a whole batch and of the part of a replica.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if failed := failed_check(error):
            raise ValueError(failed) from error
        whole, replicas = size(), strategy.num_replicas
        if whole is None or replicas == 1:
            raise
        taken = _ONE_EXAMPLE.search(error.message)
        if taken and int(taken[1]) < whole:
            raise ValueError(
                f"`model` or its step takes the part {taken[1]} of a batch of {whole} by its "
                f"number, but each of {replicas} replicas gets some of the {whole} only. kfit "
                "divides a batch along its first axis, which must be the examples. If it is "
                "another one, such as anchors and positives, move it: yield a tuple of arrays, or "
                f"transpose them. Or train on one replica. The error was: {taken[0]}"
            ) from error
        mixed = _mixed(error.message, whole, replicas)
        if not mixed:
            raise
        raise ValueError(
            f"`model` or its step counts on batches of {whole} examples, but each of {replicas} "
            f"replicas gets a part of a batch, such as {whole // replicas} examples. {_FIX} "
            f"The error was: {mixed}"
        ) from error


def _mixed(text: str, whole: int, replicas: int) -> str:
    """Returns the words of an error that compare a size of whole batches with that of a part.

    Args:
        text: The message of the error.
        whole: The number of examples of a global batch.
        replicas: The number of replicas.

    Returns:
        The words; empty if there are none.
    """
    parts = {whole // replicas, -(-whole // replicas)} - {0, whole}
    for found in (*_TWO_SHAPES.finditer(text), *_TWO_PARTS.finditer(text)):
        if any({int(found[1]), int(found[2])} == {whole, part} for part in parts):
            return found[0] + text[found.end() :].partition("\n")[0]
    for found in _PRODUCT.finditer(text):
        summed = [{int(found[a]), int(found[b])} for a in (1, 2) for b in (3, 4)]
        if any({whole, part} in summed for part in parts):
            return found[0]
    for found in _TWO_COUNTS.finditer(text):
        if any(int(found[1]) * whole == int(found[2]) * part for part in parts):
            return found[0]
    return ""
