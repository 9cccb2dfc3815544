"""Checks one life of a training when its process has ended."""

import os
import re
import time
from collections.abc import Sequence

from tests.soak.kinds import Kind
from tests.soak.processes import are_gone, open_ports
from tests.soak.records import Fault, Life, Violation
from tests.soak.said import Attempt, attempts, epochs_told

GONE_IN = 30.0
"""Seconds in which all processes of an ended run must have ended."""


def check_end(kind: Kind, life: Life, epochs: int) -> list[Violation]:
    """I10: the exit code is 0 if training has ended, and otherwise that of the fault.

    Nothing else ends a life: a failure that no fault explains is a violation, whatever a further
    start would do.
    """
    told = epochs_told(attempts(life.text)[-1].text)
    has_ended = told == [epochs] * kind.tasks
    if life.code == 0:
        if has_ended:
            return []
        return [Violation("I10", f"exit code 0, but the tasks told the ends {told} of {epochs}")]
    if life.code in life.codes:
        return []
    expected = f"expected {life.codes}" if life.codes else "no fault had ended the run"
    last = life.text.strip().splitlines()[-1:]
    return [Violation("I10", f"exit code {life.code}; {expected}; last line: {last}")]


def check_causes(kind: Kind, life: Life) -> list[Violation]:
    """I9, I10: every restart is one that a fault has caused, and names this fault.

    So an error of kfit's own is not hidden by the restart that follows it. I5: each fault that had
    the time to do so has had its effect.
    """
    found = []
    for attempt in attempts(life.text):
        faults = [fault for fault in life.faults if fault.generation == attempt.number]
        to_name = [fault for fault in faults if fault.says]
        is_named = any(re.search(fault.says, attempt.text) for fault in to_name)
        struck = "; ".join(f"{fault.name}: {', '.join(fault.tasks)}" for fault in faults)
        if attempt.was_restarted and not faults:
            cause = _causes(attempt)
            found.append(Violation("I10", f"a restart that no fault had caused: {cause}"))
        elif attempt.was_restarted and not is_named:
            found.append(Violation("I9", f"not named: {struck}; said: {_causes(attempt)}"))
        elif life.code == 0 and to_name and not is_named:
            found.append(Violation("I5", f"no effect in attempt {attempt.number}: {struck}"))
    is_preempted = any(fault.name == "preempt the run" for fault in life.faults)
    if is_preempted and life.code == 143 and "kfit: stopped by SIGTERM" not in life.text:
        found.append(Violation("I9", "`kfit run` did not say that SIGTERM had stopped it"))
    return found if kind.is_exact else [*found, *_check_sidecars(life)]


def _check_sidecars(life: Life) -> list[Violation]:
    """I10: a worker of asynchronous training is restarted alone only if a fault had hit it."""
    found = []
    for attempt in attempts(life.text):
        for name in {"worker 0", "worker 1"}:
            lines = re.findall(
                rf"^\[{name}\] kfit: .*attempt \d+ starts in.*$", attempt.text, re.MULTILINE
            )
            hits = [
                fault
                for fault in life.faults
                if fault.generation == attempt.number and name in fault.tasks
            ]
            if len(lines) > len(hits):
                found.append(Violation("I10", f"{name}: {len(hits)} faults, restarts: {lines}"))
    return found


def _causes(attempt: Attempt) -> list[str]:
    return [line for line in attempt.text.splitlines() if line.startswith("kfit: ")][-3:]


def check_resumes(lives: Sequence[Life], committed: set[int]) -> list[Violation]:
    """I1, I2: each attempt resumes from a snapshot that is whole, and from none that is too old.

    Args:
        lives: All lives so far.
        committed: The steps of all snapshots that were ever seen on the disk.
    """
    found = []
    before: tuple[Life, Attempt] | None = None
    for life in lives:
        for attempt in attempts(life.text):
            if before is not None:
                found += _check_resume(*before, life, attempt, committed)
            before = (life, attempt)
    return found


def _check_resume(
    earlier: Life, ended: Attempt, life: Life, attempt: Attempt, committed: set[int]
) -> list[Violation]:
    where = f"life {life.number}, attempt {attempt.number}"
    faults = [fault for fault in earlier.faults if fault.generation == ended.number]
    if not faults or faults[-1].newest is None:
        return []
    last, found = faults[-1], []
    assert last.newest is not None
    step = attempt.resumed_at
    first = life.first_steps.get(attempt.number)
    if step is None:
        if first is not None:
            found.append(Violation("I2", f"{where} took steps, but did not resume"))
        return found
    if step < last.newest.step:
        found.append(Violation("I2", f"{where} resumed at step {step}, older than {last.newest}"))
    if step not in committed:
        found.append(Violation("I1", f"{where} resumed at step {step}, which was never saved"))
    if first is not None and first < step:
        found.append(Violation("I1", f"{where} resumed at step {step}, but reported {first}"))
    if _loses_nothing(faults) and step < last.reached:
        found.append(
            Violation("I2", f"{where} resumed at {step}: {last.name} lost steps to {last.reached}")
        )
    if last.damaged and f"skipping a damaged snapshot: {last.damaged}" not in attempt.text:
        found.append(Violation("I9", f"{where} did not name the damaged {last.damaged}"))
    return found


def _loses_nothing(faults: Sequence[Fault]) -> bool:
    """Whether an attempt had time to save its last step: one signal, and nothing else."""
    return len(faults) == 1 and faults[0].name.startswith("preempt") and faults[0].in_fit


def check_leftovers(life: Life) -> list[Violation]:
    """I6: no process, port or file of the run's own is left when it has ended."""
    found = []
    if not are_gone(life.mark, GONE_IN):
        found.append(Violation("I6", f"processes are left after life {life.number}"))
    deadline = time.monotonic() + GONE_IN
    # A process that was killed may close its ports some milliseconds after it is gone.
    while left := [
        *(f"port {port}" for port in open_ports(life.ports)),
        *(folder for folder in life.folders if os.path.exists(folder)),
    ]:
        if time.monotonic() > deadline:
            found.append(Violation("I6", f"{left} is left after life {life.number}"))
            break
        time.sleep(0.05)
    return found


def steps_again(lives: Sequence[Life]) -> int:
    """The steps that were reported by an attempt, and done again by the next one that resumed."""
    total, reached = 0, 0
    for life in lives:
        for attempt in attempts(life.text):
            if attempt.number in life.first_steps:
                total += max(0, reached - (attempt.resumed_at or 0))
                reached = life.last_steps[attempt.number]
    return total
