"""Which tracebacks a task leaves to its supervisor, and what it prints instead."""

from pathlib import Path

import pytest

from kfit.heartbeat.errors import NOT_THE_SAME
from kfit.heartbeat.unprinted import in_short, read_unprinted, unprinted_path


class ExchangeError(RuntimeError):
    """By its name that of kfit, which nothing here imports."""


def fail(error: BaseException) -> None:
    raise error


def told(heartbeat: Path, error: BaseException, **environ: str) -> str | None:
    try:
        fail(error)
    except BaseException as raised:
        return in_short(str(heartbeat), raised, raised.__traceback__, environ)


def text_of(heartbeat: Path) -> str:
    unprinted = read_unprinted(str(heartbeat))
    assert unprinted is not None
    return unprinted.text


def test_an_interrupt_is_left_to_the_supervisor(tmp_path: Path) -> None:
    assert told(tmp_path / "0-1", KeyboardInterrupt()) == ""
    unprinted = read_unprinted(str(tmp_path / "0-1"))
    assert unprinted is not None
    assert unprinted.is_interrupt
    assert unprinted.text.startswith("Traceback (most recent call last):")
    assert unprinted.text.endswith("KeyboardInterrupt")


def test_an_interrupt_that_cpp_has_replaced_is_one(tmp_path: Path) -> None:
    text = "pybind11::error_already_set: MISMATCH of original and normalized active exception types"
    assert told(tmp_path / "0-1", RuntimeError(f"{text}: ORIGINAL KeyboardInterrupt")) == ""
    unprinted = read_unprinted(str(tmp_path / "0-1"))
    assert unprinted is not None
    assert unprinted.is_interrupt
    assert told(tmp_path / "0-1", RuntimeError(f"{text}: ORIGINAL ValueError")) is None


@pytest.mark.parametrize(
    "error",
    [
        ExchangeError("worker 1 is gone"),
        RuntimeError("Graph execution error:\n\nExchangeError: worker 1 is gone\nTraceback"),
    ],
)
def test_the_consequence_of_a_peers_failure_is_one_line(tmp_path: Path, error: Exception) -> None:
    line = told(tmp_path / "0-0", error)
    assert line == "kfit: this task fails because another one has: worker 1 is gone"
    assert "in fail" in text_of(tmp_path / "0-0")


def test_workers_that_do_not_do_the_same_say_where_they_are(tmp_path: Path) -> None:
    """They do not blame each other: whose line is wrong, only the user can tell."""
    text = f"worker 1 is at another exchange than worker 0. {NOT_THE_SAME}: all must"
    line = fail.__code__.co_firstlineno + 1
    place = f"test_unprinted.py:{line}, in fail"
    assert told(tmp_path / "0-0", ExchangeError(text)) == f"kfit: failed at {place}: {text}"
    error = ExchangeError(text)
    assert in_short(str(tmp_path / "0-0"), error, None, {}) == f"kfit: failed: {text}"


def test_the_same_error_of_two_tasks_is_printed_once_in_each_attempt(tmp_path: Path) -> None:
    assert told(tmp_path / "0-1", ValueError("wrong")) is None
    assert read_unprinted(str(tmp_path / "0-1")) is None
    assert told(tmp_path / "0-0", ValueError("wrong")) == ""
    assert text_of(tmp_path / "0-0").endswith("ValueError: wrong")
    assert told(tmp_path / "0-2", ValueError("other")) == (
        "kfit: failed at the same place: ValueError: other"
    )
    assert told(tmp_path / "0-3", KeyError("wrong")) is None
    assert told(tmp_path / "1-0", ValueError("wrong")) is None


def test_everything_is_printed_if_the_user_wants_it(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt(), ExchangeError("x"), ValueError("x"), ValueError("x")):
        assert told(tmp_path / "0-0", error, TF_CPP_MIN_LOG_LEVEL="0") is None
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_recorded_is_printed(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt(), ExchangeError("x"), ValueError("x"), ValueError("x")):
        assert told(tmp_path / "gone" / "0-0", error) is None


def test_a_malformed_record_counts_as_none(tmp_path: Path) -> None:
    for text in ("", "[1]", "{}", "{"):
        Path(unprinted_path(str(tmp_path / "0-0"))).write_text(text)
        assert read_unprinted(str(tmp_path / "0-0")) is None
