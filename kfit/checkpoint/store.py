"""A directory of snapshots, which are written atomically and verified when they are read.

    backup/
        g0001-00000007-step-1200/     a snapshot: manifest.json, state.json, arrays.h5
        g0001-00000008-step-1300/
        kfit-tmp-4f0c.../             a snapshot that is being written
        kfit-trash-91ab.../           a snapshot that is being deleted
        .kfit-lock                    locked by the run that writes to the directory

A snapshot is written to a temporary folder. When each file and the folder are synced to the disk,
the folder is renamed, which commits the snapshot. No file records which snapshot is the newest.
Instead the names are sorted, and the newest snapshot that passes verification is restored. Reading
changes no file. Each file is read once, into memory: what is parsed are the bytes that were
verified, even if somebody changes the file meanwhile, for example through a hard link.

Names are sorted by the lock count first (how many times the directory had been locked). Suppose
that a task was replaced after a restart, but still runs and saves: its snapshots do not count as
newer than those of the task that has replaced it.

Other files in the directory are never deleted. Only folders with names like these are deleted, and
in them only the three files that belong to a snapshot. Symbolic links are not followed. If a user
puts another file into the folder of a snapshot, that file is kept when the snapshot is deleted.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kfit.checkpoint import snapshot_manifest
from kfit.checkpoint.files import Files
from kfit.checkpoint.hdf5_arrays import hdf5_bytes, read_hdf5
from kfit.checkpoint.schema import LARGEST
from kfit.checkpoint.snapshot import ARRAYS, STATE, Snapshot, join, split, to_json
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError, FileEntry, Manifest
from kfit.checkpoint.zero_pages import copy_without_zeros
from kfit.fault_sites import Site, reach
from kfit.heartbeat.tracebacks import for_user, made_for_user, warn_user

_NAME = re.compile(r"g(\d{4,19})-(\d{8,19})-step-(\d{1,19})")
_UUID4 = r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"
_LEFT_OVER = re.compile(rf"kfit-(tmp|trash)-{_UUID4}")
_FILES = (ARRAYS, STATE, snapshot_manifest.NAME)
"""The files in the folder of a snapshot."""
_TOLD = 5
"""The most names, or damaged snapshots, that one message tells of."""
_CHUNK = 1 << 24
_HELD = 1 << 24
"""The number of bytes after which the system is asked to write its page cache to the disk."""
_SYNCED = 1 << 27
"""The number of bytes after which a file is synced. Syncing a large file only once can take minutes
on a slow disk, without a sign of progress."""


class SnapshotName(NamedTuple):
    """The name of a snapshot, as a tuple: the newest snapshot has the greatest name.

    Attributes:
        lock_count: How many times the directory had been locked when the snapshot was written.
        serial: A number that is higher for each further snapshot in the directory.
        step: The training step after which the snapshot was taken.
    """

    lock_count: int
    serial: int
    step: int

    def __str__(self) -> str:
        return f"g{self.lock_count:04d}-{self.serial:08d}-step-{self.step}"

    @classmethod
    def parse(cls, text: str) -> SnapshotName | None:
        """Parses the name of a snapshot; returns None if `text` is not such a name."""
        match = _NAME.fullmatch(text)
        name = None if match is None else cls(*map(int, match.groups()))
        if name is None or max(name) > LARGEST:
            return None
        # Leading zeros and digits of other scripts would give one name several spellings.
        return name if str(name) == text else None


def check_name(value: Any, place: str) -> None:
    """Checks that a value from a file is the name of a snapshot."""
    if not isinstance(value, str) or SnapshotName.parse(value) is None:
        raise ValueError(f"{place} is {value!r:.50}; expected the name of a snapshot")


class NoGoodSnapshotError(RuntimeError):
    """An error that is raised if there are snapshots, but all of them are damaged."""


@made_for_user
@dataclass
class Store:
    """The snapshots in one directory, which can be written, read, verified and deleted.

    Args:
        directory: The directory; it must exist.
        keep: How many snapshots `prune` keeps, at least 2, since the newest may become damaged.
        files: The object that makes all calls to the file system; tests replace it.
        is_needed: A function that gets the name of an old snapshot, and returns whether `prune`
            must not delete this snapshot, since it will still be read. By default none is needed.
        check: A function that gets a snapshot that was read, and raises an error if the snapshot
            has another form than it must have. By default any snapshot is read.
        check_own: A function that does the same with a snapshot that is being written, so that none
            is written which `check` would refuse. By default `check`.
        key: The key that signs snapshots (`snapshot_manifest.py`); if it is empty, they are not
            signed. By default it is that of the environment.

    Attributes:
        lock_count: The first number in the names of the snapshots that `save` writes; a name with a
            higher lock count is newer. At first it is 1 more than the highest lock count in
            the directory. The caller may assign a higher number, such as that of the lock.

    Raises:
        OSError: If the directory cannot be read.
        ValueError: If `keep` is below 2, or the key of the environment is too short.
    """

    directory: str
    keep: int = 2
    files: Files = field(default_factory=Files, repr=False)
    is_needed: Callable[[SnapshotName], bool] | None = field(default=None, repr=False)
    check: Callable[[Snapshot], None] | None = field(default=None, repr=False)
    check_own: Callable[[Snapshot], None] | None = field(default=None, repr=False)
    key: bytes = field(default_factory=snapshot_manifest.backup_key, repr=False)

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError(
                "`keep` must be at least 2, so that a damaged snapshot has one to fall back to. "
                f"Received: {self.keep}"
            )
        self._root = self.files.resolve(self.directory)
        self.lock_count = _after(name.lock_count for name in self._taken())
        self._good: set[SnapshotName] = set()

    @for_user
    def names(self) -> list[SnapshotName]:
        """Returns the names of all snapshots, the oldest first, without verifying the snapshots.

        Folders that have the name of a snapshot but contain only other files are left out.
        """
        return [name for name in self._taken() if not self._is_of_others(name)]

    def save(self, snapshot: Snapshot) -> SnapshotName:
        """Writes a snapshot to the disk, and then deletes old snapshots (`prune`).

        When the method returns, the snapshot is synced to the disk.

        Args:
            snapshot: The snapshot; its `about` must contain the `step`.

        Returns:
            The name of the snapshot in the directory.

        Raises:
            OSError: If the snapshot cannot be written; the older snapshots are then unchanged. Also
                if old snapshots cannot be deleted; the new snapshot is then on the disk.
            ValueError: If the state in the snapshot contains a value that cannot be saved, or if
                the snapshot could not be read again; the message says why.
        """
        aside = self._path(f"kfit-tmp-{uuid.uuid4().hex}")
        self.files.make_directory(aside)
        reach(Site.BEFORE_DATA)
        try:
            about = {**snapshot.about, "lock_count": self.lock_count}
            self._write_files(aside, Snapshot(about, snapshot.state))
            self.files.sync_directory(aside)
            serial = _after(name.serial for name in self._taken())
            name = SnapshotName(self.lock_count, serial, int(snapshot.about["step"]))
            reach(Site.BEFORE_RENAME)
            self.files.rename(aside, self._path(str(name)))
            reach(Site.AFTER_RENAME)
            self.files.sync_directory(self._root)
        except (OSError, ValueError):
            self._discard(aside)
            raise
        self._good.add(name)
        self.prune()
        return name

    @for_user
    def newest(
        self, names: Sequence[SnapshotName] | None = None
    ) -> tuple[Snapshot | None, list[str]]:
        """Reads the newest undamaged snapshot, and lists the damaged snapshots that are newer.

        Args:
            names: The names of the snapshots to try, the best first; by default all, the newest
                first.

        Returns:
            The snapshot, or None if there are no snapshots to try; and a line with the error of
            each damaged snapshot.

        Raises:
            NoGoodSnapshotError: If there are snapshots to try, but all are damaged.
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
                f"{'; '.join(damages[:_TOLD])}{_and_more(damages)}. To train from the "
                "start, move the directory away."
            )
        return None, []

    def size(self, name: SnapshotName) -> int:
        """Returns a snapshot's size in bytes according to its manifest; 0 if that can't be read."""
        found = self._manifest(name)
        return 0 if found is None else sum(entry.size for entry in found.files.values())

    @for_user
    def about(self, name: SnapshotName) -> dict[str, Any] | None:
        """Returns a snapshot's description (`Snapshot.about`); None if its manifest cannot be read.

        Only the manifest, which contains the description, is verified here, and that the name is
        that of the description. `verify` also verifies the other files.
        """
        found = self._manifest(name)
        return None if found is None else found.about

    @for_user
    def read(self, name: SnapshotName) -> Snapshot:
        """Reads and verifies one snapshot.

        Raises:
            DamagedSnapshotError: If the snapshot's files differ from what was written, or `check`
                refuses the snapshot.
            OSError: If a file cannot be read.
        """
        found = self._listed(name)
        text, content = (self._verified(name, file, found) for file in (STATE, ARRAYS))
        with _damage(f"{ARRAYS} is not a file that kfit wrote"):
            arrays = read_hdf5(content)
        whole = _joined(found, text[:], arrays, self.check)
        return replace(whole, path=self._path(str(name)))

    @for_user
    def verify(self, name: SnapshotName) -> Manifest:
        """Compares the files of a snapshot with the sizes and checksums in its manifest.

        Returns:
            The manifest.

        Raises:
            DamagedSnapshotError: If a file is missing, changed or does not belong to a snapshot.
            OSError: If a file cannot be read.
        """
        found = self._listed(name)
        for file in found.files:
            with self._opened(name, file, found) as opened:
                _require(file, found, _hashed(opened, found.files[file].size))
        return found

    def _listed(self, name: SnapshotName) -> Manifest:
        """Reads a snapshot's manifest, and compares the names in the folder with it."""
        if not self.files.is_directory(self._path(str(name))):
            raise DamagedSnapshotError("is no directory")
        listed = set(self.files.list(self._path(str(name))))
        if snapshot_manifest.NAME not in listed:
            raise DamagedSnapshotError(f"{snapshot_manifest.NAME} is missing")
        found = self._described(name)
        if listed != set(_FILES) or set(found.files) != {ARRAYS, STATE}:
            raise DamagedSnapshotError(f"holds {_some(listed)}, lists {_some(found.files)}")
        return found

    def _described(self, name: SnapshotName) -> Manifest:
        """Reads a snapshot's manifest, and compares the snapshot's name with it."""
        found = snapshot_manifest.parse(
            self._content(name, snapshot_manifest.NAME, snapshot_manifest.LARGEST), self.key
        )
        step, count = found.about.get("step"), found.about.get("lock_count", name.lock_count)
        if step != name.step:
            raise DamagedSnapshotError(f"{snapshot_manifest.NAME} is of step {step!r:.50}")
        if count != name.lock_count:
            raise DamagedSnapshotError(f"{snapshot_manifest.NAME} is of lock count {count!r:.50}")
        return found

    def _opened(self, name: SnapshotName, file: str, found: Manifest) -> BinaryIO:
        """Opens a file of a snapshot, which must have the size that the manifest lists."""
        path = self._path(str(name), file)
        size, listed = self.files.size(path), found.files[file].size
        if size != listed:
            raise DamagedSnapshotError(f"{file} has {size} bytes; it was written with {listed}")
        return self.files.open(path)

    def _verified(self, name: SnapshotName, file: str, found: Manifest) -> mmap.mmap:
        """Reads a file of a snapshot into memory, and verifies the bytes that are there then."""
        with self._opened(name, file, found) as opened:
            # Private, so that its pages can be released one by one.
            size = found.files[file].size
            content = mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE)
            _require(file, found, _hashed(opened, size, content))
        return content

    def prune(self) -> None:
        """Deletes the snapshots that are older than the newest `keep` good snapshots.

        A snapshot is good if this `Store` has written it or read it successfully. As long as there
        are fewer than `keep` good snapshots, nothing is deleted. Two kinds of snapshots are never
        deleted: those with a higher lock count, which a process that has locked the directory later
        has written, and those for which `is_needed` returns True.
        """
        names = [name for name in self.names() if name.lock_count <= self.lock_count]
        good = [name for name in names if name in self._good]
        if len(good) >= self.keep:
            old = [name for name in names if name < good[-self.keep]]
            needed = self.is_needed
            self._delete(old if needed is None else [name for name in old if not needed(name)])

    def paths(self) -> tuple[list[str], list[str]]:
        """Returns the paths of the files of all snapshots, and the paths of their folders.

        When the whole program has ended successfully, its snapshots are not needed any more. Python
        has shut down by then, so functions of the C library delete these paths (`at_exit.py`). A
        snapshot whose folder contains other files is left out.
        """
        folders = [self._path(str(name)) for name in self.names()]
        folders = [f for f in folders if self.files.is_directory(f) and not self._foreign(f)]
        paths = [os.path.join(folder, file) for folder in folders for file in _FILES]
        return [path for path in paths if self.files.is_file(path)], folders

    def clear(self) -> None:
        """Deletes all snapshots.

        The newest snapshot is deleted last, when the others are certainly deleted from the disk. So
        if the process is killed meanwhile, no older snapshot is taken for the newest one.
        """
        names = self.names()
        self._delete(names[:-1])
        self._delete(names[-1:])

    def sweep(self) -> None:
        """Deletes the temporary folders that a killed run has left.

        These are half-written and half-deleted snapshots. A folder that contains other files is
        kept, with a warning.
        """
        for text in self.files.list(self._root):
            path = self._path(text)
            if _LEFT_OVER.fullmatch(text) and self.files.is_directory(path):
                if foreign := self._foreign(path):
                    _tell_of(path, foreign)
                else:
                    self._discard(path)

    def probe(self) -> None:
        """Writes, renames and deletes a test folder, so that errors are raised before training.

        Raises:
            OSError: If the folder cannot be written or renamed.
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
            return self._described(name)
        except (DamagedSnapshotError, OSError):
            return None

    def _write_files(self, directory: str, snapshot: Snapshot) -> None:
        values, tensors = split(snapshot.state)
        arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
        state = to_json(values)
        entries = {
            ARRAYS: self._write(os.path.join(directory, ARRAYS), hdf5_bytes(arrays)),
            STATE: self._write(os.path.join(directory, STATE), [state]),
        }
        reach(Site.BEFORE_MANIFEST)
        text = snapshot_manifest.dump(Manifest(snapshot.about, entries), self.key)
        self._require_readable(text, state, arrays)
        self._write(os.path.join(directory, snapshot_manifest.NAME), [text])

    def _require_readable(
        self, text: bytes, state: bytes, arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Reads what is written of a snapshot, except its arrays, as `read` will.

        Otherwise a loss would be noticed only when training is to be resumed.

        Args:
            text: The manifest.
            state: The content of the file with the state.
            arrays: The arrays by their names in the state.

        Raises:
            ValueError: If `read` would call the snapshot damaged.
        """
        try:
            found = snapshot_manifest.parse(text, self.key)
            _joined(found, state, arrays, self.check_own or self.check)
        except DamagedSnapshotError as error:
            raise ValueError(
                f"The snapshot of this state could not be read again, so it is not saved: {error}"
            ) from error

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
        """Deletes snapshots, each of which is first renamed atomically to a temporary name.

        So a half-deleted snapshot is never taken for a whole one. A folder that contains other
        files is not renamed, and these files are kept.
        """
        gone = []
        for name in sorted(names):
            path = self._path(str(name))
            if not self.files.is_directory(path):
                continue  # a link or a file, which kfit did not create
            if not self._foreign(path):
                gone.append(self._path(f"kfit-trash-{uuid.uuid4().hex}"))
                self.files.rename(path, gone[-1])
            else:
                gone.append(path)
            self._good.discard(name)
        if gone:
            self.files.sync_directory(self._root)
            reach(Site.DELETING)
        for path in gone:
            self._discard(path)

    def _discard(self, path: str) -> None:
        """Deletes the files of a snapshot and their folder; ignores an OSError.

        If the folder contains other files, the folder and these files are kept, with a warning. In
        this case the files of the snapshot are deleted only if a valid manifest shows that kfit
        wrote them.
        """
        try:
            foreign = self._foreign(path)
            if not foreign or self._has_manifest(path):
                for text in _FILES:  # the manifest is deleted last
                    if self.files.is_file(os.path.join(path, text)):
                        self.files.remove(os.path.join(path, text))
            if foreign:
                _tell_of(path, foreign)
            else:
                self.files.remove_directory(path)
        except OSError:
            return  # a remaining folder is not a valid snapshot, and usually has a temporary name

    def _foreign(self, path: str) -> list[str]:
        """Returns the names in a folder that do not belong to a snapshot."""
        return [
            text
            for text in self.files.list(path)
            if text not in _FILES or not self.files.is_file(os.path.join(path, text))
        ]

    def _has_manifest(self, path: str) -> bool:
        try:
            with self.files.open(os.path.join(path, snapshot_manifest.NAME)) as file:
                snapshot_manifest.parse(file.read(snapshot_manifest.LARGEST))
        except (DamagedSnapshotError, OSError):
            return False
        return True

    def _is_of_others(self, name: SnapshotName) -> bool:
        try:
            listed = self.files.list(self._path(str(name)))
        except OSError:
            return False  # reading the snapshot will raise the error
        return bool(listed) and not set(listed) & set(_FILES)

    def _taken(self) -> list[SnapshotName]:
        """Returns all names in the directory that are names of snapshots, the oldest first.

        A file, a link or a folder with other contents may have such a name. Its name is included,
        since a new snapshot cannot get the same name.
        """
        names = (SnapshotName.parse(text) for text in self.files.list(self._root))
        return sorted(name for name in names if name is not None)

    def _content(self, name: SnapshotName, file: str, largest: int | None = None) -> bytes:
        path = self._path(str(name), file)
        if largest is not None and self.files.size(path) > largest:
            raise DamagedSnapshotError(f"{file} has more than {largest} bytes")
        with self.files.open(path) as opened:
            return opened.read()

    def _path(self, *names: str) -> str:
        return os.path.join(self._root, *names)


def _after(numbers: Iterable[int]) -> int:
    """Returns the number after the greatest one.

    No snapshot could have the number after the greatest of all, which only a stranger gives to a
    folder. So that one does not count.
    """
    return 1 + max((number for number in numbers if number < LARGEST), default=0)


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """A context in which every error means that a file is damaged.

    A file that a stranger has made may lead to errors of any class in the libraries that read it,
    and none of them may keep training from the snapshot before.

    Args:
        what: What the error shows, for the message.
    """
    try:
        yield
    except MemoryError:
        raise  # says nothing of the file, whose arrays are not larger than itself
    except Exception as error:
        raise DamagedSnapshotError(f"{what}: {error}") from error


def _joined(
    found: Manifest,
    text: bytes,
    arrays: Mapping[str, np.ndarray],
    check: Callable[[Snapshot], None] | None,
) -> Snapshot:
    """Returns the snapshot that has a manifest, a text of its state, and arrays.

    Raises:
        DamagedSnapshotError: If they do not fit together, or `check` refuses the snapshot.
    """
    values = snapshot_manifest.decoded(STATE, text)
    with _damage(f"{STATE} does not fit {ARRAYS}"):
        snapshot = Snapshot(found.about, join(values, arrays))
    if check is not None:
        with _damage(f"{STATE} is no state of a training"):
            check(snapshot)
    return snapshot


def _hashed(file: BinaryIO, size: int, content: mmap.mmap | None = None) -> str:
    """Returns the SHA-256 of a file, and may read the file into memory.

    Args:
        file: The file.
        size: Its size in bytes. If it has grown meanwhile, the rest is not looked at.
        content: The memory to read the file into, which holds zeros; None to only hash it.
    """
    digest, position = hashlib.sha256(), 0
    while position < size and (piece := file.read(min(_CHUNK, size - position))):
        digest.update(piece)
        if content is not None:
            copy_without_zeros(piece, content, position)
        position += len(piece)
    return digest.hexdigest()


def _require(file: str, found: Manifest, sha256: str) -> None:
    if sha256 != found.files[file].sha256:
        raise DamagedSnapshotError(f"{file} does not have the SHA-256 it was written with")


def _some(names: Collection[str]) -> str:
    """Returns the first names for a message; a stranger may have made many, and long ones."""
    return ", ".join(f"{name!r:.50}" for name in sorted(names)[:_TOLD]) + _and_more(names)


def _and_more(found: Collection[str]) -> str:
    return f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""


def _tell_of(path: str, foreign: Sequence[str]) -> None:
    warn_user(f"{path} is left there: it contains {_some(foreign)}, which kfit did not write.")
