"""Nothing grows with the number of steps, epochs and calls, nor with the place in the data."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "programs" / "growth.py"


@pytest.fixture(scope="module")
def grown() -> Any:
    """What the program prints; in a process of its own, whose memory nobody else uses."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def test_memory_does_not_grow_over_ten_thousand_executions(grown: Any) -> None:
    # The first thousands fill caches. 8,000 executions that kept a hundred bytes each would show.
    assert grown["executions"][-1] - grown["executions"][1] < 1.0, grown["executions"]


def test_a_step_costs_the_same_in_every_epoch(grown: Any) -> None:
    first, last = grown["seconds"][1:4], grown["seconds"][-3:]
    assert statistics.median(last) < 2.5 * statistics.median(first), grown["seconds"]


def test_memory_does_not_grow_over_fifty_calls(grown: Any) -> None:
    # 40 calls that kept one data set, iterator or graph each would show.
    assert grown["calls"][-1] - grown["calls"][9] < 8.0, grown["calls"]


def test_memory_does_not_grow_with_the_arrays_of_each_call(grown: Any) -> None:
    # Two rounds of three calls that kept the array that they were given would show.
    assert grown["arrays"][-1] - grown["arrays"][0] < 1.5, grown["arrays"]


def test_resuming_late_takes_no_longer_than_at_the_beginning(grown: Any) -> None:
    first, late = grown["starts"]
    assert late < 2 * first + 0.05


def test_no_thread_file_or_process_is_left_by_a_hundred_resumed_fits(grown: Any) -> None:
    assert grown["steps_of_resumed"] > 300  # each went on where the one before was cut off
    (threads, files, children), late = grown["resumed"][9], grown["resumed"][-1]
    # TensorFlow starts a few threads late. 90 trainings that left one each would show.
    assert late[0] < threads + 10, grown["resumed"]
    assert late[1:] == [files, children] == [files, 0], grown["resumed"]
