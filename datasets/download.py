"""Downloads a data set only once per host, even if several processes load it at the same time.

Keras downloads the files and caches them. This module adds a lock, so that one process downloads
while the others wait, and errors that say what to do. The lock is a file lock in the directory of
the cache. If the process that holds the lock ends for any reason, the operating system releases the
lock, so the other processes do not wait for ever.
"""

import contextlib
import os
import secrets
import socket
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

from filelock import FileLock, Timeout

T = TypeVar("T")

_SILENCE_IS_FAILURE = 20.0  # timeout in seconds; by default urllib waits for an answer for ever
# Seconds of waiting for another process after which the user is told, and after which the data set
# is loaded at the same time: the other process may be suspended. A download takes minutes at most.
_TOLD_AFTER, _LONGEST_WAIT = 5.0, 600.0
# The errors that reading a truncated or overwritten file raises.
_DAMAGED = (EOFError, ValueError, zlib.error, BadGzipFile, BadZipFile)


class DownloadError(ConnectionError):
    """An error that is raised if a data set is not in Keras' cache and cannot be downloaded."""


@dataclass(frozen=True)
class Download:
    """The source of a data set on the web, and the place where Keras caches its files.

    Attributes:
        name: The name of the data set's module, as in ``kfit.datasets.<name>``.
        url: The URL of the folder from which Keras downloads the files, ending in a slash.
        files: The names of the files in that folder.
        folder: The folder below ``<Keras home>/datasets`` in which Keras caches the files; "" if
            they are directly in ``datasets``.
    """

    name: str
    url: str
    files: tuple[str, ...]
    folder: str = ""

    def paths(self) -> list[Path]:
        """Returns the paths of the data set's files in Keras' cache, even if they do not exist."""
        return [_keras_home() / "datasets" / self.folder / name for name in self.files]


def load_locked(download: Download, load: Callable[[], T]) -> T:
    """Loads a data set through Keras, in only one process of this host at a time.

    The first process downloads the files. The other processes wait for it, and then read the files
    from Keras' cache. If a cached file is damaged, for example because its download was killed, the
    files are renamed and downloaded again, with a warning. They are not deleted, because a user may
    have put them there.

    Args:
        download: The source of the data set.
        load: Keras' function ``load_data`` of the data set. It downloads missing files, and then
            reads the cache.

    Returns:
        The result of ``load``.

    Raises:
        DownloadError: If a file is not in the cache and cannot be downloaded, or if the files are
            damaged again after the new download.
    """
    with _alone(download), _answer_expected():
        try:
            return _load(download, load)
        except _DamagedError as damage:
            aside = f".damaged-{secrets.token_hex(4)}"
            warnings.warn(
                f"The cached files of {download.name!r} are damaged ({damage.__cause__!r}) and are "
                f"downloaded again: {', '.join(map(str, download.paths()))}. The old files were "
                f"renamed; their names now end in {aside!r}.",
                stacklevel=3,
            )
            for path in download.paths():
                with contextlib.suppress(FileNotFoundError):
                    path.rename(path.with_name(path.name + aside))
        try:
            return _load(download, load)
        except _DamagedError as damage:
            raise _error(download, damage.__cause__) from damage.__cause__


class _DamagedError(Exception):
    """An error that is raised if all cached files of a data set exist, but cannot be read.

    Its ``__cause__`` is the error that reading the files raised.
    """


def _load(download: Download, load: Callable[[], T]) -> T:
    """Loads a data set through Keras, and finds out the cause if this fails.

    Args:
        download: The source of the data set.
        load: Keras' function ``load_data`` of the data set.

    Returns:
        The result of ``load``.

    Raises:
        DownloadError: If a file is missing in the cache, since it could not be downloaded.
        _DamagedError: If all files exist in the cache, but one of them is damaged.
        Exception: Any other error of ``load``.
    """
    try:
        return load()
    except Exception as error:  # Keras raises a plain Exception when a download fails
        if not all(path.exists() for path in download.paths()):
            raise _error(download, error) from error
        if isinstance(error, _DAMAGED):
            raise _DamagedError from error
        raise


def _error(download: Download, cause: BaseException | None) -> DownloadError:
    missing = [path for path in download.paths() if not path.exists()] or download.paths()
    wanted = "\n".join(f"  {download.url}{path.name}\n    -> {path}" for path in missing)
    return DownloadError(
        f"The data set {download.name!r} is not in Keras' cache and cannot be downloaded: {cause}\n"
        f"If this host has no network, download these files elsewhere and copy them:\n{wanted}\n"
        "Or use `kfit.datasets.digits`: it is part of the package and needs no network."
    )


@contextlib.contextmanager
def _alone(download: Download) -> Iterator[None]:
    """Context in which no other process of this host loads the same data set.

    It first waits until no other process does so, for some minutes at most. For this it uses a lock
    in Keras' cache. If the cache cannot be locked, or another process does not end, a warning is
    issued, and the block runs without the lock.

    Args:
        download: The source of the data set.
    """
    path = _keras_home() / "datasets" / f".{download.name}.lock"
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # FileLock's fallback counts the mere existence of a file as a lock, which would remain
            # after a process was killed.
            stack.enter_context(_acquired(FileLock(path, fallback_to_soft=False), download))
        except Timeout:
            warnings.warn(
                f"Another process has held {path} for {_LONGEST_WAIT:g} s; perhaps it is "
                f"suspended, or of another user. {download.name!r} is loaded without waiting any "
                "longer. End that process, or set KERAS_HOME to a folder of your own.",
                stacklevel=5,
            )
        except OSError as error:  # a read-only cache, or a network file system without locks
            warnings.warn(
                f"{path} cannot be locked ({error}): processes that load {download.name!r} at the "
                "same time may each download it. Set KERAS_HOME to a local folder.",
                stacklevel=5,
            )
        yield


def _acquired(lock: FileLock, download: Download) -> contextlib.AbstractContextManager[object]:
    """Waits for a lock, and tells the user if that takes long."""
    try:
        return lock.acquire(timeout=_TOLD_AFTER)
    except Timeout:
        print(
            f"kfit: waiting for another process, which loads {download.name!r} and holds "
            f"{lock.lock_file}",
            file=sys.stderr,
            flush=True,
        )
        return lock.acquire(timeout=_LONGEST_WAIT)


@contextlib.contextmanager
def _answer_expected() -> Iterator[None]:
    """Context in which a download fails if the server does not answer for some seconds.

    By default Python waits for ever. The context sets the default timeout of sockets, unless the
    program has set one.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_IS_FAILURE if before is None else before)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _keras_home() -> Path:
    """Returns the folder in which Keras caches files, usually ``~/.keras``.

    It follows the rules of ``keras.utils.get_file``, since Keras has no public function for this.
    """
    home = os.path.expanduser("~")
    default = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    path = os.path.expanduser(os.environ.get("KERAS_HOME", default))
    return Path(path if os.access(path, os.W_OK) else "/tmp/.keras")
