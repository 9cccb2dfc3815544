"""Snapshots: training state in memory, and its way to disk and back.

`state` says what training state is, `store` keeps snapshots in a directory, `writer` writes them in
the background, and `files` is the only door to the file system. `kfit.callbacks.BackupAndRestore`
uses all of it; a `Store` reads without TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfit.checkpoint.lock import DirectoryInUseError as DirectoryInUseError
    from kfit.checkpoint.manifest import DamagedSnapshotError as DamagedSnapshotError
    from kfit.checkpoint.snapshot import Snapshot as Snapshot
    from kfit.checkpoint.state import SnapshotMismatchError as SnapshotMismatchError
    from kfit.checkpoint.store import NoGoodSnapshotError as NoGoodSnapshotError
    from kfit.checkpoint.store import Store as Store

_MODULE_OF = {
    "DamagedSnapshotError": "manifest",
    "DirectoryInUseError": "lock",
    "NoGoodSnapshotError": "store",
    "Snapshot": "snapshot",
    "SnapshotMismatchError": "state",
    "Store": "store",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the lazy names too, for completion."""
    return sorted({*globals(), *__all__})
