"""The folder of a launch, as both of its ends see it."""

from dataclasses import replace
from pathlib import Path

from kfit.remote.call_files import CallFiles, ErrorRecord, Settings

RAISED = ErrorRecord("worker 1", 0, 2.0, "ValueError: wrong", "ValueError: wrong", "Traceback ...")


def test_what_one_end_puts_down_the_other_one_reads(tmp_path: Path) -> None:
    settings = Settings.of_this_process("worker 0", loud=True, join=True)
    CallFiles(tmp_path).write(settings, b"call")
    other = CallFiles(str(tmp_path))
    assert other.settings() == settings
    assert other.call() == b"call"
    assert other.result() is None
    other.put_result(b"result")
    assert CallFiles(tmp_path).result() == b"result"
    for _ in range(2):
        other.forget_result()
        assert CallFiles(tmp_path).result() is None
    assert CallFiles(tmp_path).argv("worker 1")[-2:] == (str(tmp_path), "worker 1")


def test_the_first_error_that_is_no_consequence_comes_first(tmp_path: Path) -> None:
    call_files = CallFiles(tmp_path)
    first = replace(RAISED, task="worker 0", time=1.0, is_consequence=True)
    later = replace(RAISED, task="chief 0", time=3.0)
    for raised in (later, first, RAISED, replace(RAISED, generation=1)):
        call_files.put_error(raised)
    assert call_files.errors(0) == [RAISED, later, first]
    assert len(call_files.errors()) == 4


def test_what_a_killed_task_had_half_written_is_passed_over(tmp_path: Path) -> None:
    call_files = CallFiles(tmp_path)
    call_files.put_error(RAISED)
    (tmp_path / "failure-0-worker-2.json").write_text('{"task": "wor')
    (tmp_path / "failure-0-worker-3.json").write_text("{}")
    assert call_files.errors() == [RAISED]
