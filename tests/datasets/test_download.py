"""Downloads: one process a host, no waiting for the dead, an honest error without a network.

No test here reaches the network: Keras' loader is replaced, or the cache is filled with small files
that belong to the test.
"""

import errno
import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from kfit.datasets import download, fashion_mnist
from kfit.datasets.download import Download, DownloadError, load_locked

TINY = Download(name="tiny", url="https://example.invalid/sets/", files=("tiny.txt",))

# A process that loads TINY; its loader keeps a file as Keras does and counts real downloads.
LOADER = """
import os, sys, time
from kfit.datasets.download import Download, load_locked

tiny = Download(name="tiny", url="https://example.invalid/sets/", files=("tiny.txt",))
[path] = tiny.paths()

def load():
    if not path.exists():
        with open(path.with_name("downloads.log"), "a") as log:
            log.write(f"{os.getpid()}\\n")
        with path.open("w") as file:
            file.write("half")
            file.flush()
            print("downloading", flush=True)
            time.sleep(float(sys.argv[1]))
            file.write(" and half")
    return path.read_text()

print(load_locked(tiny, load), flush=True)
"""


@pytest.fixture
def keras_home(tmp_path, monkeypatch):
    """An empty Keras home, for this process and those it starts."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path


def start_loader(seconds):
    return subprocess.Popen(
        [sys.executable, "-c", LOADER, str(seconds)], stdout=subprocess.PIPE, text=True
    )


def test_many_processes_download_once_and_all_read_the_whole_file(keras_home):
    loaders = [start_loader(0.5) for _ in range(5)]
    outputs = [loader.communicate(timeout=60)[0].splitlines()[-1] for loader in loaders]
    assert outputs == ["half and half"] * 5
    assert len((keras_home / "datasets" / "downloads.log").read_text().split()) == 1


def test_the_lock_of_a_killed_process_blocks_nobody(keras_home):
    with start_loader(600) as loader:
        assert loader.stdout.readline() == "downloading\n"
        os.kill(loader.pid, signal.SIGKILL)
    [path] = TINY.paths()

    def load():
        text = path.read_text() if path.exists() else "half and half"
        if text == "half":
            raise EOFError("cut off")
        path.write_text(text)
        return text

    started = time.monotonic()
    with pytest.warns(UserWarning, match="'tiny' are damaged.*EOFError"):
        assert load_locked(TINY, load) == "half and half"
    [old] = path.parent.glob("tiny.txt.damaged-*")
    assert old.read_text() == "half"
    assert time.monotonic() - started < 5


def test_without_a_network_the_error_says_what_to_do(keras_home):
    def load():
        raise Exception("URL fetch failure on https://example.invalid/sets/tiny.txt: None -- gone")

    with pytest.raises(DownloadError) as caught:
        load_locked(TINY, load)
    message = str(caught.value)
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value.__cause__, Exception)
    assert "'tiny'" in message
    assert "https://example.invalid/sets/tiny.txt\n" in message
    assert str(keras_home / "datasets" / "tiny.txt") in message
    assert "`kfit.datasets.digits`" in message
    assert "URL fetch failure" in message


def test_a_file_damaged_twice_is_an_error(keras_home):
    [path] = TINY.paths()

    def load():
        path.parent.mkdir(exist_ok=True)
        path.write_text("rubbish")
        raise ValueError("hash does not match")

    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(DownloadError, match="hash does not match"),
    ):
        load_locked(TINY, load)


def test_an_error_that_is_not_of_the_download_stays_what_it_is(keras_home):
    [path] = TINY.paths()

    def load():
        path.write_text("good")
        raise MemoryError("too big")

    with pytest.raises(MemoryError, match="too big"):
        load_locked(TINY, load)
    assert path.read_text() == "good"


def test_a_silent_host_is_given_up_and_the_timeout_put_back(keras_home):
    def load():
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert socket.create_connection(server.getsockname()).gettimeout() == 20.0
        return "loaded"

    assert load_locked(TINY, load) == "loaded"
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_cache_that_cannot_be_locked_is_still_read(keras_home, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked"):
        assert load_locked(TINY, lambda: "loaded") == "loaded"


def test_a_process_that_does_not_give_the_lock_back_is_not_waited_for_for_ever(
    keras_home, monkeypatch, capsys
):
    """Nor is it waited for in silence: it may be suspended, or another user's."""
    monkeypatch.setattr(download, "_TOLD_AFTER", 0.1, raising=False)
    monkeypatch.setattr(download, "_LONGEST_WAIT", 0.2, raising=False)
    loaded = []
    with start_loader(600) as loader:
        assert loader.stdout.readline() == "downloading\n"
        loader.send_signal(signal.SIGSTOP)
        with warnings.catch_warnings(record=True) as told:
            thread = threading.Thread(
                target=lambda: loaded.append(load_locked(TINY, lambda: "loaded")), daemon=True
            )
            thread.start()
            thread.join(10)
        loader.kill()
    assert loaded == ["loaded"]
    assert "perhaps it is suspended" in str(told[0].message)
    assert "waiting for another process, which loads 'tiny'" in capsys.readouterr().err


def idx(path, array, header):
    """Writes an array in the format of MNIST's files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb") as file:
        file.write(bytes(header) + array.astype(np.uint8).tobytes())


def run_fresh(code, home, **env):
    """Runs code in a process whose Keras home is ``home``: Keras reads KERAS_HOME only once."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_HOME": str(home), "TF_CPP_MIN_LOG_LEVEL": "3", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.long
def test_files_put_where_the_error_says_are_found_by_keras(keras_home):
    for path in fashion_mnist._DOWNLOAD.paths():
        n = 3 if path.name.startswith("train") else 2
        if "labels" in path.name:
            idx(path, np.arange(n), header=8)
        else:
            idx(path, np.arange(n * 28 * 28).reshape(n, 28, 28) % 251, header=16)

    code = """
from kfit.datasets import fashion_mnist
(x, y), (x_test, y_test) = fashion_mnist.load_data()
print(x.shape, x.dtype, y.tolist(), x_test.shape, y_test.tolist(), int(x.max()))
"""
    out = run_fresh(code, keras_home)
    assert out.stdout.strip() == "(3, 28, 28) uint8 [0, 1, 2] (2, 28, 28) [0, 1] 250", out.stderr


@pytest.mark.long
def test_keras_without_a_network_fails_within_seconds(tmp_path):
    # A proxy that refuses connections is a machine without a network, on any machine.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code = """
import time
from kfit.datasets import fashion_mnist, mnist
import keras
start = time.monotonic()
for data in (mnist, fashion_mnist):
    try:
        data.load_data()
    except ConnectionError as error:
        print(type(error).__name__, str(error))
print("seconds", time.monotonic() - start)
"""
    proxy = f"http://127.0.0.1:{port}"
    out = run_fresh(code, tmp_path, https_proxy=proxy, HTTPS_PROXY=proxy, no_proxy="", NO_PROXY="")
    assert out.stdout.count("DownloadError") == 2, out.stderr
    assert str(tmp_path / "datasets" / "mnist.npz") in out.stdout
    assert str(tmp_path / "datasets" / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz") in out.stdout
    assert float(out.stdout.rsplit("seconds ", 1)[1]) < 10
