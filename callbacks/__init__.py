"""kfit's callbacks for ``fit`` on any strategy; Keras' own callbacks can be used beside them."""

from typing import TYPE_CHECKING

from kfit.lazy import lazy_names

if TYPE_CHECKING:
    from kfit.callbacks.backup_and_restore import BackupAndRestore as BackupAndRestore
    from kfit.callbacks.chief_mark import chief_only as chief_only
    from kfit.callbacks.model_checkpoint import ModelCheckpoint as ModelCheckpoint
    from kfit.callbacks.monitor import Monitor as Monitor
    from kfit.callbacks.roll_back import RollBack as RollBack
    from kfit.callbacks.save_model import Export as Export
    from kfit.callbacks.save_model import SaveModel as SaveModel
    from kfit.callbacks.tensorboard import TensorBoard as TensorBoard
    from kfit.callbacks.time_limit import TimeLimit as TimeLimit
    from kfit.training.callback import TrainingCallback as TrainingCallback
else:
    __getattr__, __dir__, __all__ = lazy_names(
        globals(),
        {
            "kfit.callbacks.backup_and_restore": ["BackupAndRestore"],
            "kfit.callbacks.chief_mark": ["chief_only"],
            "kfit.callbacks.model_checkpoint": ["ModelCheckpoint"],
            "kfit.callbacks.monitor": ["Monitor"],
            "kfit.callbacks.roll_back": ["RollBack"],
            "kfit.callbacks.save_model": ["Export", "SaveModel"],
            "kfit.callbacks.tensorboard": ["TensorBoard"],
            "kfit.callbacks.time_limit": ["TimeLimit"],
            "kfit.training.callback": ["TrainingCallback"],
        },
        others="keras.callbacks",
    )
