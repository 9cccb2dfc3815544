"""The last report of a run ends with the cause."""

import signal
from typing import Any

from kfit.supervisor.run_report import Failure, report_failure, report_stop


def failure(generation: int, **more: Any) -> Failure:
    return Failure(generation, "worker 1 was killed at step 3", "Segmentation fault", **more)


def test_of_one_generation_the_cause_alone_since_the_task_has_printed_the_rest() -> None:
    said: list[str] = []
    only = failure(0, error="MemoryError", hint=" (out of memory?)")
    report_failure(said.append, [only])
    assert said == ["error: worker 1 was killed at step 3: MemoryError (out of memory?)"]


def test_of_many_generations_the_last_twenty() -> None:
    said: list[str] = []
    report_failure(said.append, [failure(index) for index in range(25)])
    assert said[:2] == ["gave up; what ended each attempt:", "  (5 earlier ones)"]
    assert said[2] == "  attempt 6: worker 1 was killed at step 3: Segmentation fault"
    assert len(said) == 2 + 20 + 1
    assert said[-1] == "error: worker 1 was killed at step 3: Segmentation fault"


def test_what_a_single_task_has_just_printed_is_not_repeated() -> None:
    for message, told in (
        ("ClusterError: a long text: (x)", " (ClusterError, above)"),
        ("keras.src.MyError: x", " (MyError, above)"),
        ("arg.py: error: unrecognized arguments: --x", " (see above)"),
        ("kfit: error: `x` is wrong", " (see above)"),
        ("", ""),
    ):
        said: list[str] = []
        printed = Failure(0, "worker 0 ended with exit code 1", message, is_just_printed=True)
        report_failure(said.append, [printed])
        assert said == [f"error: worker 0 ended with exit code 1{told}"]
    said = []
    report_failure(said.append, [failure(0), failure(1, error="OSError: x", is_just_printed=True)])
    assert said[-1] == "error: worker 1 was killed at step 3: OSError: x"


def test_what_a_task_noted_counts_more_than_what_it_wrote() -> None:
    assert str(failure(0, error="MemoryError")).endswith(": MemoryError")
    assert str(Failure(0, "could not start", "")) == "could not start"


def test_a_stop_names_its_signal() -> None:
    said: list[str] = []
    report_stop(said.append, signal.SIGTERM, "")
    report_stop(said.append, 1000, "all tasks have saved")
    report_stop(said.append, signal.SIGINT, "after step 9; saved in backup")
    assert said == [
        "stopped by SIGTERM",
        "stopped by signal 1000; all tasks have saved",
        "stopped by SIGINT after step 9; saved in backup",
    ]
