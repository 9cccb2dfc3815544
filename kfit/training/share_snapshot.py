"""Sends the chief's snapshot to every task, so that no shared file system is needed."""

from __future__ import annotations

from kfit.checkpoint.hdf5_arrays import hdf5_bytes, read_hdf5
from kfit.checkpoint.snapshot import Snapshot, join, split, to_json
from kfit.checkpoint.snapshot_manifest import decoded
from kfit.distribute.strategy import Strategy


def share_snapshot(snapshot: Snapshot | None, strategy: Strategy) -> Snapshot | None:
    """Returns the snapshot that the chief has found, on every task; None if there is none.

    It is a collective: all tasks must call it.

    Args:
        snapshot: What the chief has found; None on the other tasks.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy, which sends the
            snapshot.
    """
    found = strategy.is_chief and snapshot is not None
    if strategy.num_workers == 1 or not strategy.host_collectives.any_true(found):
        return snapshot
    content = [b"", b""]
    if strategy.is_chief and snapshot is not None:
        values, arrays = split(snapshot.state)
        content = [to_json([snapshot.about, snapshot.path, values]), b"".join(hdf5_bytes(arrays))]
    text, packed = (strategy.host_collectives.content(part) for part in content)
    about, path, values = decoded("the chief's snapshot", text)
    return Snapshot(about, join(values, read_hdf5(packed)), path)
