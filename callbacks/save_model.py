"""`SaveModel` and `Export`: callbacks that save or export the model at the end of training."""

from __future__ import annotations

import os
from typing import Any

from kfit.checkpoint.snapshot import Snapshot
from kfit.saving import write_path
from kfit.training.callback import TrainingCallback
from kfit.user_files.replacement import Kind, check_replaceable


class SaveModel(TrainingCallback):
    """A callback that saves the model at the end of training, after the hooks of all callbacks.

    With several workers the chief writes the file, and no worker returns from `fit` before the file
    exists. The file is not written if training fails or is interrupted. An existing model file is
    replaced atomically. If anything else exists at the path, an error is raised before training
    begins.

    Args:
        filepath: The path of the file. It ends in ".keras" or ".h5", or in ".weights.h5" to save
            only the weights.
        overwrite: Whether an existing file may be replaced.
        **kwargs: Further arguments of `keras.Model.save` or `save_weights`.

    Raises:
        ValueError: If `filepath` has none of these endings, or exists and must not be replaced.
    """

    _needs_kfit = True
    _kind: Kind | None = "file"

    def __init__(
        self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: Any
    ) -> None:
        super().__init__()
        self.filepath = os.fspath(filepath)
        if not self.filepath.endswith((".keras", ".weights.h5", ".h5")):
            raise ValueError(
                '`filepath` must end in ".keras", ".h5" or ".weights.h5". '
                f"Received: {self.filepath!r}"
            )
        if not overwrite and os.path.exists(self.filepath):
            raise ValueError(
                f"`filepath` is {self.filepath!r}, which exists: give another path, or "
                "overwrite=True to replace it."
            )
        self._options = kwargs

    def find_snapshot(self) -> Snapshot | None:
        """Checks that what exists at `filepath` may be replaced; always returns None.

        It is called only on the chief, before training begins. The check is made in this hook since
        it is the first one; there is no snapshot to find.

        Raises:
            ForeignFileError: If the existing file or directory must not be replaced.
        """
        check_replaceable(self.filepath, self._kind, argument="filepath")
        return None

    def on_fit_end(self) -> None:
        """Saves the model on the chief; does nothing on the other workers."""
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
    """A callback that exports the model for inference at the end of training.

    It works like `SaveModel`, but calls `keras.Model.export`. By default this writes a directory, a
    TensorFlow SavedModel; the argument `format` chooses another format. An existing SavedModel or
    empty directory is replaced. For a directory with other contents, and for the current directory,
    an error is raised before training begins.

    Args:
        filepath: The path to export to.
        **kwargs: Further arguments of `keras.Model.export`, such as `format`.

    Raises:
        ValueError: If `filepath` is empty, or exists and must not be replaced.
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
