"""Callbacks for ``fit`` on any strategy; Keras' own callbacks work unchanged beside them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfit.callbacks.backup_and_restore import BackupAndRestore as BackupAndRestore
    from kfit.callbacks.model_checkpoint import ModelCheckpoint as ModelCheckpoint
    from kfit.callbacks.monitor import Monitor as Monitor
    from kfit.callbacks.roll_back import RollBack as RollBack
    from kfit.callbacks.save_model import Export as Export
    from kfit.callbacks.save_model import SaveModel as SaveModel
    from kfit.callbacks.time_limit import TimeLimit as TimeLimit
    from kfit.training.callback import TrainingCallback as TrainingCallback

_MODULE_OF = {
    "BackupAndRestore": "kfit.callbacks.backup_and_restore",
    "Export": "kfit.callbacks.save_model",
    "ModelCheckpoint": "kfit.callbacks.model_checkpoint",
    "Monitor": "kfit.callbacks.monitor",
    "RollBack": "kfit.callbacks.roll_back",
    "SaveModel": "kfit.callbacks.save_model",
    "TimeLimit": "kfit.callbacks.time_limit",
    "TrainingCallback": "kfit.training.callback",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Imports a callback at its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the lazy names too, for completion."""
    return sorted({*globals(), *__all__})
