"""Recognizes and deletes the files of a template such as "run/{epoch:02d}-{val_loss:.2f}.keras"."""

from __future__ import annotations

import os
import re
import stat
from string import Formatter

from kfit.user_files.ownership import ForeignFileError
from kfit.user_files.replacement import check_replaceable

_COUNTS = ("epoch", "batch", "step")
_SLASHES = re.compile(r"/(\.?/)+")
"""What separates two folders as one slash does."""


class FileTemplate:
    """A template of file paths, which recognizes the files that match it and deletes only these.

    `ModelCheckpoint` uses a template to delete old checkpoints, but no other files. Files are
    identified by their names relative to the template's folder. So if the folder is copied, names
    that were saved in one run refer to the files in the copy.

    Args:
        template: A path with fields as in `str.format`, or without fields for a single file.

    Attributes:
        folder: The folder of the template: the directory part of the path before its first field.
        has_fields: Whether the template has fields, so that it matches more than one file.
    """

    def __init__(self, template: str) -> None:
        parts = list(Formatter().parse(template))
        first = parts[0][0] if parts else ""
        self.has_fields = any(field is not None for _, field, _, _ in parts)
        self.folder = os.path.dirname(first)
        literals = [first[len(self.folder) :].lstrip("/"), *(part[0] for part in parts[1:])]
        self._pattern = re.compile(
            "".join(
                re.escape(_SLASHES.sub("/", literal))
                + ("" if field is None else _pattern_of(field, spec or ""))
                for literal, (_, field, spec, _) in zip(literals, parts, strict=True)
            )
        )

    def name_of(self, path: str) -> str:
        """Returns the name of a file relative to the template's folder.

        Args:
            path: The path of the file, which matches the template.
        """
        return os.path.relpath(path, self.folder or ".")

    def names(self, name: str) -> bool:
        """Returns whether the template can produce the path of a file with this name.

        Args:
            name: The name of the file, relative to the folder.
        """
        parts = name.split("/")
        is_inside = not os.path.isabs(name) and not {"", ".", ".."} & set(parts)
        return is_inside and bool(self._pattern.fullmatch(name))

    def exists(self, name: str) -> bool:
        """Returns whether there is a file with this name, relative to the folder."""
        return os.path.lexists(os.path.join(self.folder, name))

    def remove(self, name: str) -> bool:
        """Deletes a file if its name matches the template and kfit may replace the file.

        Links, read-only files, and files that do not look like model files although their names do
        (see `check_replaceable`), are kept.

        Args:
            name: The name of the file, relative to the folder.

        Returns:
            Whether the file was deleted.

        Raises:
            OSError: If the system does not permit the deletion.
        """
        if not self.names(name):
            return False
        *folders, last = name.split("/")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptors: list[int] = []
        try:
            check_replaceable(os.path.join(self.folder, name), "file")
            descriptors.append(os.open(os.path.realpath(self.folder or "."), flags))
            for folder in folders:
                descriptors.append(os.open(folder, flags, dir_fd=descriptors[-1]))
            mode = os.stat(last, dir_fd=descriptors[-1], follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode):
                return False
            os.unlink(last, dir_fd=descriptors[-1])
        except (ForeignFileError, FileNotFoundError, NotADirectoryError):
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True


def _pattern_of(field: str, spec: str) -> str:
    is_count = field in _COUNTS and re.fullmatch(r"0?\d*d?", spec)
    return r" *\d+" if is_count else "[^/]+"
