"""Checks that all workers have models of the same shapes, before variables are sent between them.

TensorFlow sends each variable from the chief to the other workers. If the models differ, it fails
with lines about its own internals, or waits for ever.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

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
    if host_collectives.is_alone:
        return
    own = [zlib.crc32(_kind(variable).encode()) for variable in variables]
    views = host_collectives.all_gather([len(own), zlib.crc32(repr(own).encode())])
    if len({tuple(view) for view in views}) == 1:
        return
    counts = [int(count) for count in views[:, 0]]
    rows = host_collectives.all_gather([*own, *[-1] * (max(counts) - len(own))])
    first = next((i for i, seen in enumerate(rows.T) if len(set(seen)) > 1), 0)
    text = "no more variables"
    if first < len(variables):
        text = f"{variables[first].path!r}, {_kind(variables[first])}"
    texts, column = host_collectives.texts(text), rows[:, first]
    other = next((i for i, seen in enumerate(column) if seen != column[0]), 0)
    shown = ", ".join(f"worker {i}: {texts[i]}" for i in (0, other))
    numbers = ""
    if counts[0] != counts[other]:
        numbers = f" Worker 0 has {counts[0]} variables, and worker {other} has {counts[other]}."
    raise ValueError(
        "`model` must be the same on every worker, with its optimizer and metrics: the workers sum "
        f"their gradients. The first variable that differs is, on {shown}.{numbers} Make the same "
        "model on all workers, by the same program with the same settings."
    )


def _kind(variable: keras.Variable) -> str:
    return f"{variable.dtype} {tuple(variable.shape)}"
