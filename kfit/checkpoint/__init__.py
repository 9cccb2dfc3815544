"""Snapshots: the state of a training, in memory and on disk, from which training can resume.

The module `state` lists what belongs to this state, `store` manages the snapshots in a directory,
`writer` writes them in a background thread, and `files` makes all calls to the file system.
`kfit.callbacks.BackupAndRestore` uses these modules. `Store` does not need TensorFlow, so snapshots
can be read without TensorFlow.
"""

from typing import TYPE_CHECKING

from kfit.lazy import lazy_names

if TYPE_CHECKING:
    from kfit.checkpoint.lock import DirectoryInUseError as DirectoryInUseError
    from kfit.checkpoint.snapshot import Snapshot as Snapshot
    from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError as DamagedSnapshotError
    from kfit.checkpoint.state import SnapshotMismatchError as SnapshotMismatchError
    from kfit.checkpoint.store import NoGoodSnapshotError as NoGoodSnapshotError
    from kfit.checkpoint.store import Store as Store
else:
    __getattr__, __dir__, __all__ = lazy_names(
        globals(),
        {
            "kfit.checkpoint.lock": ["DirectoryInUseError"],
            "kfit.checkpoint.snapshot_manifest": ["DamagedSnapshotError"],
            "kfit.checkpoint.snapshot": ["Snapshot"],
            "kfit.checkpoint.state": ["SnapshotMismatchError"],
            "kfit.checkpoint.store": ["NoGoodSnapshotError", "Store"],
        },
    )
