"""What a task notes of an error that it failed with."""

from pathlib import Path

import pytest

from kfit.heartbeat.errors import TaskError, error_path, is_consequence, read_error, write_error


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


def test_the_class_and_the_message_are_one_line() -> None:
    assert TaskError.of(ValueError("one\ntwo")).summary == "ValueError: one"
    assert len(TaskError.of(ValueError("x" * 1000)).summary) == 500
    with pytest.raises(SyntaxError) as raised:
        compile("a b", "program.py", "exec")
    assert TaskError.of(raised.value).summary.startswith("SyntaxError: ")


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
