"""SaveModel and Export: the trained model as a file or for serving, when training has ended."""

from __future__ import annotations

import os
from typing import Any

from kfit.checkpoint.snapshot import Snapshot
from kfit.saving import write_path
from kfit.training.callback import TrainingCallback
from kfit.user_files.replacement import Kind, check_replaceable


class SaveModel(TrainingCallback):
    """Saves the model when training has come to its end, after all other hooks.

    The file appears at once and whole; the chief writes, and no task leaves `fit` before it is
    there. It is not written where training fails, or is interrupted. A model's file that is there
    is replaced; anything else is refused, before training begins.

    Args:
        filepath: Path of the file, which ends in ".keras"; or in ".weights.h5", for the weights
            alone.
        overwrite: Whether to replace a file that is there.
        **kwargs: Further arguments of `keras.Model.save` or `save_weights`.

    Raises:
        ValueError: If `filepath` has another ending, or is there and must not be replaced.
    """

    _kind: Kind | None = "file"

    def __init__(
        self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: Any
    ) -> None:
        super().__init__()
        self.filepath = os.fspath(filepath)
        if not self.filepath.endswith((".keras", ".weights.h5", ".h5")):
            raise ValueError(
                f'`filepath` must end in ".keras" or ".weights.h5". Received: {self.filepath!r}'
            )
        if not overwrite and os.path.exists(self.filepath):
            raise ValueError(
                f"`filepath` is {self.filepath!r}, which exists: give another path, or "
                "overwrite=True to replace it."
            )
        self._options = kwargs

    def find_snapshot(self) -> Snapshot | None:
        """Looks whether what is at `filepath` may be replaced, on the chief; finds no snapshot."""
        check_replaceable(self.filepath, self._kind, argument="filepath")
        return None

    def on_fit_end(self) -> None:
        """Saves the model."""
        training = self.training
        assert training is not None
        if training.is_chief:
            self._write()

    def _write(self) -> None:
        with write_path(self.filepath, "filepath") as aside:
            if self.filepath.endswith(".weights.h5"):
                self.model.save_weights(aside, **self._options)
            else:
                self.model.save(aside, **self._options)


class Export(SaveModel):
    """Exports the model for inference when training has come to its end, as `Model.export` does.

    Like `SaveModel`, but what appears is a directory: a TensorFlow SavedModel, or what `format`
    says. A SavedModel that is there is replaced, and an empty directory; a directory with anything
    else in it is refused, before training begins, and so is the current directory.

    Args:
        filepath: Path of the directory.
        **kwargs: Further arguments of `keras.Model.export`, such as `format`.

    Raises:
        ValueError: If `filepath` is empty, or what is there must not be replaced.
    """

    def __init__(self, filepath: str | os.PathLike[str], **kwargs: Any) -> None:
        TrainingCallback.__init__(self)
        self.filepath = os.fspath(filepath)
        if not self.filepath:
            raise ValueError("`filepath` must be the path of a directory. Received: ''")
        self._options = {"verbose": False, **kwargs}
        is_saved_model = self._options.get("format", "tf_saved_model") == "tf_saved_model"
        self._kind = "directory" if is_saved_model else None

    def _write(self) -> None:
        with write_path(self.filepath, "filepath") as aside:
            self.model.export(aside, **self._options)
