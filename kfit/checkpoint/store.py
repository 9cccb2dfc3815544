"""A directory of snapshots: each appears at once and whole, and is checked before it is believed.

    backup/
        g0001-00000007-step-1200/     a snapshot: manifest.json, state.json, arrays.h5
        g0001-00000008-step-1300/
        kfit-tmp-4f0c.../             one that is being written
        kfit-trash-91ab.../           one that is being deleted
        .kfit-lock                    held by the run that writes here

A snapshot is written aside, each file synced, then the directory, and then renamed: the rename is
the commit. No file says which snapshot is the newest. Restoring looks at the names, verifies, and
takes the newest good one; it changes nothing. The generation in the name ranks before all else, so
that a task left over from before a restart cannot put its snapshot in front.

Whatever else is in the directory stays there. Only folders with names like these are deleted, only
the three files that a snapshot has, and never through a link: a file that somebody has put into a
snapshot's folder outlives it, where it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kfit.checkpoint import manifest
from kfit.checkpoint.arrays import hdf5_bytes, read_hdf5
from kfit.checkpoint.files import Files
from kfit.checkpoint.manifest import DamagedSnapshotError, FileEntry, Manifest
from kfit.checkpoint.snapshot import ARRAYS, STATE, Snapshot, join, split, to_json

_NAME = re.compile(r"g(\d{4,})-(\d{8,})-step-(\d+)")
_UUID4 = r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"
_LEFT_OVER = re.compile(rf"kfit-(tmp|trash)-{_UUID4}")
_FILES = (ARRAYS, STATE, manifest.NAME)
"""All that there is in a snapshot's folder."""
_CHUNK = 1 << 24
_HELD = 1 << 24
"""Bytes written before the system is asked to write them on."""
_SYNCED = 1 << 27
"""Bytes written before they are synced. A slow disk may take minutes to sync a large file at once,
in which nobody could tell that it gets on."""


class SnapshotName(NamedTuple):
    """The name of a snapshot, in the order in which snapshots were committed."""

    generation: int
    serial: int
    step: int

    def __str__(self) -> str:
        return f"g{self.generation:04d}-{self.serial:08d}-step-{self.step}"

    @classmethod
    def parse(cls, text: str) -> SnapshotName | None:
        """The name that `text` is, or None."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(*map(int, match.groups()))


class NoGoodSnapshotError(RuntimeError):
    """There are snapshots, and none of them is whole."""


@dataclass
class Store:
    """The snapshots in one directory.

    Args:
        directory: The directory; it exists.
        keep: How many good snapshots are kept, at least 2: the newest may turn out damaged.
        files: The file system.
        is_needed: Asked before a snapshot is pruned, whether somebody has still to read it; None
            where nobody does.
    """

    directory: str
    keep: int = 2
    files: Files = field(default_factory=Files)
    is_needed: Callable[[SnapshotName], bool] | None = None

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError(
                "`keep` must be at least 2, so that a damaged snapshot has one to fall back to. "
                f"Received: {self.keep}"
            )
        self._root = self.files.resolve(self.directory)
        self.generation = 1 + max((name.generation for name in self._taken()), default=0)
        self._good: set[SnapshotName] = set()

    def names(self) -> list[SnapshotName]:
        """The snapshots that are there, the oldest first; none is verified yet.

        A folder with such a name that holds other files only is none.
        """
        return [name for name in self._taken() if not self._is_of_others(name)]

    def save(self, snapshot: Snapshot) -> SnapshotName:
        """Writes a snapshot; when this returns it will survive whatever happens.

        Args:
            snapshot: The snapshot; its `about` has a `step`.

        Raises:
            OSError: If it could not be written; the older snapshots are as they were.
        """
        aside = self._path(f"kfit-tmp-{uuid.uuid4().hex}")
        self.files.make_directory(aside)
        try:
            about = {**snapshot.about, "generation": self.generation}
            self._write_files(aside, Snapshot(about, snapshot.state))
            self.files.sync_directory(aside)
            serial = 1 + max((name.serial for name in self._taken()), default=0)
            name = SnapshotName(self.generation, serial, int(snapshot.about["step"]))
            self.files.rename(aside, self._path(str(name)))
            self.files.sync_directory(self._root)
        except OSError:
            self._discard(aside)
            raise
        self._good.add(name)
        self.prune()
        return name

    def newest(
        self, names: Sequence[SnapshotName] | None = None
    ) -> tuple[Snapshot | None, list[str]]:
        """The newest good snapshot, and what is wrong with the ones that are newer.

        Args:
            names: Which to look at, the best first; None for all.

        Returns:
            The snapshot, or None when there are none at all; and a line for each damaged one.

        Raises:
            NoGoodSnapshotError: If there are snapshots, but all are damaged.
        """
        damages: list[str] = []
        for name in reversed(self.names()) if names is None else names:
            try:
                snapshot = self.read(name)
            except (DamagedSnapshotError, OSError) as error:
                damages.append(f"{name}: {error}")
                continue
            self._good.add(name)
            return snapshot, damages
        if damages:
            raise NoGoodSnapshotError(
                f"{self.directory} holds {len(damages)} snapshots, and all are damaged: "
                f"{'; '.join(damages)}. To train from the start, move the directory away."
            )
        return None, []

    def size(self, name: SnapshotName) -> int:
        """The bytes that a snapshot takes, as its manifest says; 0 where that cannot be read."""
        found = self._manifest(name)
        return 0 if found is None else sum(entry.size for entry in found.files.values())

    def about(self, name: SnapshotName) -> dict[str, Any] | None:
        """What the manifest of a snapshot says of it, or None where that cannot be read.

        It is as it was written; whether the files are, `verify` finds.
        """
        found = self._manifest(name)
        return None if found is None else found.about

    def read(self, name: SnapshotName) -> Snapshot:
        """Reads and verifies one snapshot.

        Raises:
            DamagedSnapshotError: If it is not what was written.
            OSError: If it cannot be read.
        """
        found = self.verify(name)
        values = manifest.parse_json(STATE, self._content(name, STATE))
        with self.files.open(self._path(str(name), ARRAYS)) as file:
            try:
                arrays = read_hdf5(file, found.files[ARRAYS].size)
                state = join(values, arrays)
            except (ValueError, RuntimeError, KeyError) as error:
                raise DamagedSnapshotError(f"{ARRAYS} is no file of kfit's: {error}") from error
        return Snapshot(found.about, state)

    def verify(self, name: SnapshotName) -> Manifest:
        """Reads the manifest of a snapshot and compares its files with it.

        Raises:
            DamagedSnapshotError: If something is missing, changed or does not belong there.
        """
        if not self.files.is_directory(self._path(str(name))):
            raise DamagedSnapshotError("is no directory")
        listed = set(self.files.list(self._path(str(name))))
        if manifest.NAME not in listed:
            raise DamagedSnapshotError(f"{manifest.NAME} is missing")
        found = manifest.parse(self._content(name, manifest.NAME, manifest.LARGEST))
        if listed != set(_FILES) or set(found.files) != {ARRAYS, STATE}:
            raise DamagedSnapshotError(f"holds {sorted(listed)}, lists {sorted(found.files)}")
        if found.about.get("step") != name.step:
            raise DamagedSnapshotError(f"{manifest.NAME} is of step {found.about.get('step')}")
        for file, entry in found.files.items():
            path = self._path(str(name), file)
            if self.files.size(path) != entry.size:
                raise DamagedSnapshotError(
                    f"{file} has {self.files.size(path)} bytes; it was written with {entry.size}"
                )
            if self._digest(path) != entry.sha256:
                raise DamagedSnapshotError(f"{file} does not have the SHA-256 it was written with")
        return found

    def prune(self) -> None:
        """Deletes what is older than the newest `keep` good snapshots.

        Good are those that this run has written or read back. Before there are enough of them
        nothing is deleted, and never what belongs to a later generation, or what is needed.
        """
        names = [name for name in self.names() if name.generation <= self.generation]
        good = [name for name in names if name in self._good]
        if len(good) >= self.keep:
            old = [name for name in names if name < good[-self.keep]]
            needed = self.is_needed
            self._delete(old if needed is None else [name for name in old if not needed(name)])

    def paths(self) -> tuple[list[str], list[str]]:
        """The files of all snapshots, and their folders, but for those where others have files."""
        folders = [self._path(str(name)) for name in self.names()]
        folders = [f for f in folders if self.files.is_directory(f) and not self._foreign(f)]
        paths = [os.path.join(folder, file) for folder in folders for file in _FILES]
        return [path for path in paths if self.files.is_file(path)], folders

    def clear(self) -> None:
        """Deletes all snapshots; the newest goes when the others are gone for good."""
        names = self.names()
        self._delete(names[:-1])
        self._delete(names[-1:])

    def sweep(self) -> None:
        """Deletes what a run that was killed has left half written or half deleted."""
        for text in self.files.list(self._root):
            path = self._path(text)
            if _LEFT_OVER.fullmatch(text) and self.files.is_directory(path):
                if foreign := self._foreign(path):
                    _tell_of(path, foreign)
                else:
                    self._discard(path)

    def probe(self) -> None:
        """Writes, commits and deletes something, to fail before training and not in it.

        Raises:
            OSError: If that does not work here.
        """
        aside, committed = (self._path(f"kfit-tmp-{uuid.uuid4().hex}") for _ in range(2))
        self.files.make_directory(aside)
        try:
            self._write(os.path.join(aside, STATE), [b"{}"])
            self.files.sync_directory(aside)
            self.files.rename(aside, committed)
            self.files.sync_directory(self._root)
        finally:
            self._discard(aside)
            self._discard(committed)

    def _manifest(self, name: SnapshotName) -> Manifest | None:
        try:
            return manifest.parse(self._content(name, manifest.NAME, manifest.LARGEST))
        except (DamagedSnapshotError, OSError):
            return None

    def _write_files(self, directory: str, snapshot: Snapshot) -> None:
        values, arrays = split(snapshot.state)
        entries = {
            ARRAYS: self._write(os.path.join(directory, ARRAYS), hdf5_bytes(arrays)),
            STATE: self._write(os.path.join(directory, STATE), [to_json(values)]),
        }
        text = manifest.dump(Manifest(snapshot.about, entries))
        self._write(os.path.join(directory, manifest.NAME), [text])

    def _write(self, path: str, pieces: Iterable[Any]) -> FileEntry:
        digest, size, passed_on, synced = hashlib.sha256(), 0, 0, 0
        with self.files.create(path) as file:
            for piece in pieces:
                rest = memoryview(piece)
                digest.update(rest)
                size += len(rest)
                while rest:
                    rest = rest[file.write(rest) :]
                if size - synced >= _SYNCED:
                    self.files.sync(file)
                    synced = size
                if size - passed_on >= _HELD:
                    self.files.pass_on(file)
                    passed_on = size
            self.files.sync(file)
        return FileEntry(size, digest.hexdigest())

    def _delete(self, names: Sequence[SnapshotName]) -> None:
        """Takes snapshots out of sight first, each at once, and then deletes them.

        A folder with files of others keeps its name, and them.
        """
        gone = []
        for name in sorted(names):
            path = self._path(str(name))
            if not self.files.is_directory(path):
                continue  # a link or a file: somebody else's
            if not self._foreign(path):
                gone.append(self._path(f"kfit-trash-{uuid.uuid4().hex}"))
                self.files.rename(path, gone[-1])
            else:
                gone.append(path)
            self._good.discard(name)
        if gone:
            self.files.sync_directory(self._root)
        for path in gone:
            self._discard(path)

    def _discard(self, path: str) -> None:
        """Deletes a folder with the files of a snapshot, as far as the system lets it.

        In a folder with files of others only what a manifest of kfit's vouches for.
        """
        try:
            foreign = self._foreign(path)
            if not foreign or self._has_manifest(path):
                for text in _FILES:  # the one that vouches goes last
                    if self.files.is_file(os.path.join(path, text)):
                        self.files.remove(os.path.join(path, text))
            if foreign:
                _tell_of(path, foreign)
            else:
                self.files.remove_directory(path)
        except OSError:
            return  # what is left has a name that nobody takes for a snapshot

    def _foreign(self, path: str) -> list[str]:
        """The names in a folder that no snapshot has."""
        return [
            text
            for text in self.files.list(path)
            if text not in _FILES or not self.files.is_file(os.path.join(path, text))
        ]

    def _has_manifest(self, path: str) -> bool:
        try:
            with self.files.open(os.path.join(path, manifest.NAME)) as file:
                manifest.parse(file.read(manifest.LARGEST))
        except (DamagedSnapshotError, OSError):
            return False
        return True

    def _is_of_others(self, name: SnapshotName) -> bool:
        try:
            listed = self.files.list(self._path(str(name)))
        except OSError:
            return False  # whoever reads it will say what is wrong
        return bool(listed) and not set(listed) & set(_FILES)

    def _taken(self) -> list[SnapshotName]:
        """The names of snapshots that are taken, whatever has them; the oldest first."""
        names = (SnapshotName.parse(text) for text in self.files.list(self._root))
        return sorted(name for name in names if name is not None)

    def _content(self, name: SnapshotName, file: str, largest: int | None = None) -> bytes:
        path = self._path(str(name), file)
        if largest is not None and self.files.size(path) > largest:
            raise DamagedSnapshotError(f"{file} has more than {largest} bytes")
        with self.files.open(path) as opened:
            return opened.read()

    def _digest(self, path: str) -> str:
        digest = hashlib.sha256()
        with self.files.open(path) as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
        return digest.hexdigest()

    def _path(self, *names: str) -> str:
        return os.path.join(self._root, *names)


def _tell_of(path: str, foreign: Sequence[str]) -> None:
    warnings.warn(
        f"{path} is left there: kfit did not write {', '.join(map(repr, foreign))} in it.",
        stacklevel=3,
    )
