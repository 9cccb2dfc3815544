"""Checks that all workers have models of the same shapes, before variables are sent between them.

TensorFlow sends each variable from the chief to the other workers. If the models differ, it fails
with lines about its own internals, or waits for ever.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from kfit.distribute.host_collectives import HostCollectives


def require_same_variables(
    variables: Sequence[keras.Variable], host_collectives: HostCollectives
) -> None:
    """Raises an error if the workers are about to send different variables to each other.

    Only shapes and dtypes are compared. Names may differ: Keras counts the layers of a process, and
    a worker may have made other models before.

    It is a collective: all workers must call it.

    Args:
        variables: The variables of this worker, in the order in which they will be sent.
        host_collectives: The means by which the workers exchange small values.

    Raises:
        ValueError: On all workers, if the variables differ. The message names the first difference.
    """
    kinds = [_kind(variable) for variable in variables]
    shown = [f"{variable.path!r}, {kind}" for variable, kind in zip(variables, kinds, strict=True)]
    _require_same(kinds, shown, "variable", host_collectives)


def require_same_settings(settings: Mapping[str, Any], host_collectives: HostCollectives) -> None:
    """Raises an error if the workers are about to build different models.

    A model that is not built has no variables yet, and makes them in the scope of the strategy,
    where each of them is sent.

    It is a collective: all workers must call it.

    Args:
        settings: The settings of the layers of this worker's model, by name.
        host_collectives: The means by which the workers exchange small values.

    Raises:
        ValueError: On all workers, if the settings differ. The message names the first difference.
    """
    shown = [f"{name} = {value!r:.80}" for name, value in settings.items()]
    _require_same(shown, shown, "setting", host_collectives)


def _require_same(
    own: Sequence[str], shown: Sequence[str], what: str, host_collectives: HostCollectives
) -> None:
    """Raises an error on all workers if their texts differ.

    Args:
        own: The texts of this worker that are compared, in order.
        shown: How the message shows each of them.
        what: What each of them describes, for the message.
        host_collectives: The means by which the workers exchange small values.
    """
    if host_collectives.is_alone:
        return
    hashes = [zlib.crc32(text.encode()) for text in own]
    views = host_collectives.all_gather([len(own), zlib.crc32(repr(hashes).encode())])
    if len({tuple(view) for view in views}) == 1:
        return
    counts = [int(count) for count in views[:, 0]]
    rows = host_collectives.all_gather([*hashes, *[-1] * (max(counts) - len(own))])
    first = next((i for i, seen in enumerate(rows.T) if len(set(seen)) > 1), 0)
    texts = host_collectives.texts(shown[first] if first < len(own) else f"no more {what}s")
    column = rows[:, first]
    other = next((i for i, seen in enumerate(column) if seen != column[0]), 0)
    differs = ", ".join(f"worker {i}: {texts[i]}" for i in (0, other))
    numbers = ""
    if counts[0] != counts[other]:
        numbers = f" Worker 0 has {counts[0]} {what}s, and worker {other} has {counts[other]}."
    raise ValueError(
        "`model` must be the same on every worker, with its optimizer and metrics: the workers sum "
        f"their gradients. The first {what} that differs is, on {differs}.{numbers} Make the same "
        "model on all workers, by the same program with the same settings."
    )


def _kind(variable: keras.Variable) -> str:
    return f"{variable.dtype} {tuple(variable.shape)}"
