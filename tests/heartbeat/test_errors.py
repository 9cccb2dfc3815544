"""What a task notes of an error that it failed with."""

from pathlib import Path

import pytest

from kfit.heartbeat.errors import (
    TaskError,
    error_path,
    is_consequence,
    is_surely_consequence,
    read_error,
    reason_of,
    write_error,
)


class PeerFailedError(RuntimeError):
    """By its name that of kfit, which nothing here imports."""


class OfOurOwnError(PeerFailedError):
    """One that is made from it."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PeerFailedError("worker 1"), True),
        (OfOurOwnError("worker 1"), True),
        (RuntimeError("ExchangeError: worker 1 is gone"), True),
        (RuntimeError("Collective ops is aborted by: ..."), True),
        (ValueError("`x` is wrong"), False),
        (ConnectionResetError(), False),
    ],
)
def test_which_errors_another_tasks_failure_is_behind(error: Exception, expected: bool) -> None:
    assert is_consequence(error) == expected
    assert TaskError.of(error).is_consequence == expected


class UnavailableError(Exception):
    """By its name that of TensorFlow."""


def test_an_error_that_a_lost_file_server_may_have_caused_is_no_sure_consequence() -> None:
    assert is_consequence(UnavailableError("gs://data: try again"))
    assert not is_surely_consequence(UnavailableError("gs://data: try again"))
    assert is_surely_consequence(UnavailableError("Collective ops is aborted by: x"))
    assert is_surely_consequence(PeerFailedError("worker 1"))
    assert not is_surely_consequence(ValueError("`x` is wrong"))


def test_the_reason_of_a_consequence_is_one_line() -> None:
    error = UnavailableError("Graph execution error:\n\nExchangeError: worker 1 is gone\nTrace")
    assert reason_of(error) == "worker 1 is gone"
    assert reason_of(UnavailableError("Connection reset by peer\nx")).endswith(
        "UnavailableError: Connection reset by peer"
    )


def test_the_class_and_the_message_are_one_line() -> None:
    assert TaskError.of(ValueError("one\ntwo")).summary == "ValueError: one"
    assert len(TaskError.of(ValueError("x" * 1000)).summary) == 500
    words = TaskError.of(ValueError("word " * 1000)).summary
    assert len(words) <= 500
    assert words.endswith(" word ...")
    with pytest.raises(SyntaxError) as raised:
        compile("a b", "program.py", "exec")
    assert TaskError.of(raised.value).summary.startswith("SyntaxError: ")


class SnapshotMismatchError(ValueError):
    """By its name that of kfit."""


def test_which_errors_a_restart_cannot_mend() -> None:
    assert TaskError.of(SnapshotMismatchError("other layers")).is_permanent
    assert TaskError.of(IndentationError("unexpected indent")).is_permanent
    assert not TaskError.of(ValueError("`x` is wrong")).is_permanent


def test_the_last_error_is_read_and_nothing_else(tmp_path: Path) -> None:
    heartbeat = str(tmp_path / "heartbeat")
    assert read_error(heartbeat) is None
    for summary in ("first", "last"):
        write_error(heartbeat, TaskError(1.5, summary, False))
    assert read_error(heartbeat) == TaskError(1.5, "last", False)
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.error"]
    for text in ("", "[1]", '{"time": 1.0}', "{"):
        Path(error_path(heartbeat)).write_text(text)
        assert read_error(heartbeat) is None
    write_error(str(tmp_path / "gone" / "heartbeat"), TaskError(1.5, "late", False))
