"""What a worker of `kfit.launch` prints of the error that ended it."""

import sys
from pathlib import Path

import pytest

from kfit.distribute.ring import ExchangeError
from kfit.heartbeat.tracebacks import say_nothing_of
from kfit.remote import run_call
from kfit.remote.call_files import CallFiles, Settings

CLOSED = "worker 1 has closed its connection to worker 0"


def printed(
    error: Exception, folder: Path, capsys: pytest.CaptureFixture[str], *, loud: bool = True
) -> tuple[str, str]:
    """What the worker prints of an error, and the traceback that it records."""
    files = CallFiles(folder)
    files.write(Settings.of_this_process("worker 0", loud=loud, join=False), b"")
    with pytest.raises(type(error)) as raised:
        raise error
    assert run_call._note(files, "worker 0", raised.value) == 1
    [record] = files.errors()
    return capsys.readouterr().err, record.traceback


@pytest.mark.parametrize(
    "error",
    [
        ExchangeError(CLOSED),
        # As TensorFlow raises it: the error of the graph's Python code, after its traceback.
        RuntimeError(
            f"Graph execution error:\nIn line 1\nkfit.ring.ExchangeError: {CLOSED}\n\nMore"
        ),
    ],
    ids=["bare", "in a graph"],
)
def test_a_consequence_is_one_line(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, recorded = printed(error, tmp_path, capsys)
    assert shown == f"kfit: this task fails because another one has: {CLOSED}\n"
    assert recorded.startswith("Traceback")
    assert [one.is_printed for one in CallFiles(tmp_path).errors()] == [False]


def test_an_error_of_its_own_has_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, recorded = printed(KeyError("label"), tmp_path, capsys)
    assert shown.rstrip() == recorded
    assert [one.is_printed for one in CallFiles(tmp_path).errors()] == [True]
    assert "KeyError: 'label'" in recorded


def test_without_restarts_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error that `kfit.launch` raises says it all."""
    shown, recorded = printed(KeyError("label"), tmp_path, capsys, loud=False)
    assert shown == ""
    assert "KeyError" in recorded


def test_an_error_that_was_told_is_not_printed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a callback, which `fit` prints while the other tasks still train."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    error = KeyError("label")
    say_nothing_of(error)
    shown, recorded = printed(error, tmp_path, capsys)
    assert shown == ""
    assert "KeyError" in recorded
    assert [one.is_printed for one in CallFiles(tmp_path).errors()] == [True]


class WithoutMessageError(Exception):
    def __str__(self) -> str:
        return f"at {self.missing}"  # type: ignore[attr-defined]


def test_an_error_whose_message_fails_is_recorded_as_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, recorded = printed(WithoutMessageError(), tmp_path, capsys)
    assert recorded.endswith("WithoutMessageError: <exception str() failed>")


class BaseError(BaseException):
    """As a framework may raise it to stop everything."""


def test_an_error_of_any_base_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = CallFiles(tmp_path)
    files.write(Settings.of_this_process("worker 0", loud=False, join=False), b"")

    def fails(folder: str, name: str) -> int:
        raise BaseError("stop")

    monkeypatch.setattr(run_call, "_call", fails)
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    monkeypatch.setenv("KFIT_STARTED_BY", "")  # which `main` changes
    assert run_call.main(str(tmp_path), "worker 0") == 1
    [record] = files.errors()
    assert record.line == "BaseError: stop"
