"""One download a host, however many processes ask for it.

Keras owns the download and the cache; this file owns the queue before it, and what is said when it
fails. The queue is a lock on a file in the cache: the system drops it when its process ends,
however it ends, so nobody ever waits for a dead process.
"""

import contextlib
import os
import secrets
import socket
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

from filelock import FileLock

T = TypeVar("T")

_SILENCE_IS_FAILURE = 20.0  # seconds; by default urllib waits for an answer for ever
# What reading a file raises that was cut off or overwritten.
_DAMAGED = (EOFError, ValueError, zlib.error, BadGzipFile, BadZipFile)


class DownloadError(ConnectionError):
    """A data set is neither in Keras' cache nor can it be downloaded."""


@dataclass(frozen=True)
class Download:
    """Where a data set comes from and where Keras keeps it.

    Attributes:
        name: the name of the module, as in ``kfit.datasets.<name>``.
        url: the folder that Keras downloads from, ending in a slash.
        files: the names of the files in that folder.
        folder: the folder below ``<Keras home>/datasets`` that Keras keeps them in, or "".
    """

    name: str
    url: str
    files: tuple[str, ...]
    folder: str = ""

    def paths(self) -> list[Path]:
        """Returns where Keras keeps each of the files on this host."""
        return [_keras_home() / "datasets" / self.folder / name for name in self.files]


def load_once(download: Download, load: Callable[[], T]) -> T:
    """Calls ``load`` in one process of this host at a time.

    The first process downloads; the others wait for it and then read the cache. A cached file that
    turns out damaged (its download was killed) is moved aside, for somebody may have put it there,
    and downloaded again, with a warning.

    Args:
        download: what is loaded.
        load: Keras' loader: reads the cache, and downloads first what is not there.

    Returns:
        What ``load`` returns.

    Raises:
        DownloadError: when a file is not in the cache and cannot be downloaded.
    """
    with _alone(download), _answer_expected():
        try:
            return _load(download, load)
        except _DamagedError as damage:
            aside = f".damaged-{secrets.token_hex(4)}"
            warnings.warn(
                f"The cached files of {download.name!r} are damaged ({damage.__cause__!r}) and are "
                f"downloaded again: {', '.join(map(str, download.paths()))}. The old ones are "
                f"there with {aside!r} at the end of their names.",
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
    """The files are all there and cannot be read; the cause says why."""


def _load(download: Download, load: Callable[[], T]) -> T:
    """Calls ``load`` and sorts what it raises: damaged files, no download, anything else."""
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
        f"Is this host without a network? Then put by hand:\n{wanted}\n"
        "Or use `kfit.datasets.digits`: it is part of the package and needs no network."
    )


@contextlib.contextmanager
def _alone(download: Download) -> Iterator[None]:
    """Waits until no other process that shares the cache loads this data set."""
    path = _keras_home() / "datasets" / f".{download.name}.lock"
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What it falls back to, a file that is there or not, would outlive a killed process.
            stack.enter_context(FileLock(path, fallback_to_soft=False))
        except OSError as error:  # a read-only cache, or a network file system without locks
            warnings.warn(
                f"{path} cannot be locked ({error}): processes that load {download.name!r} at the "
                "same time may each download it. Set KERAS_HOME to a local folder.",
                stacklevel=5,
            )
        yield


@contextlib.contextmanager
def _answer_expected() -> Iterator[None]:
    """Lets a download from a host that does not answer fail instead of wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_IS_FAILURE if before is None else before)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _keras_home() -> Path:
    """Returns the folder ``keras.utils.get_file`` caches in; Keras itself keeps that private."""
    home = os.path.expanduser("~")
    default = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    path = os.path.expanduser(os.environ.get("KERAS_HOME", default))
    return Path(path if os.access(path, os.W_OK) else "/tmp/.keras")
