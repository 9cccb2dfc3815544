"""The soak test (`tests/soak/`): how it judges, and a short run of it.

That a violation is seen is checked here on made-up runs, since kfit should have none.
"""

import itertools
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kfit.checkpoint.store import SnapshotName
from tests.soak import command, end_checks, life_checks
from tests.soak.damage import damage
from tests.soak.faults import FAULTS, dealt
from tests.soak.kinds import KINDS, Kind
from tests.soak.records import Fault, Life, Record, Violation
from tests.soak.table import HEADER, RULE, row
from tests.soak.training import Training

ROOT = Path(__file__).parents[1]
PRETENDS = ROOT / "tests" / "programs" / "pretends.py"
WORKERS, PS = KINDS["workers"], KINDS["ps"]
KILLED = "kfit: worker 1 was killed by SIGKILL after step 40; stopping worker 0\n"
RESTART = "kfit: attempt 2 starts in 0.3 s (restart 1 of at most 100 in a row)\n"
RESUMED = "[worker 0] kfit: going on from backup, step 30\n"
FINISHED = (
    "[worker 0] kfit: nothing to do: the first `fit` was finished in backup (step 30). To go on\n"
)
ENDED = "[worker 0] DIGEST ab EPOCHS 2\n[worker 1] DIGEST ab EPOCHS 2\n"


def life(text: str, *faults: Fault, code: int = 0, **more: Any) -> Life:
    return Life(0, "mark", 0.0, 1.0, code, text=text, faults=list(faults), **more)


def kill(**more: Any) -> Fault:
    """A kill of worker 1 in the first attempt, after a snapshot of step 30."""
    known: dict[str, Any] = {
        "says": FAULTS["kill one"].words(["worker 1"], is_early=False),
        "generation": 0,
        "reached": 40,
        "newest": SnapshotName(1, 1, 30),
    }
    return Fault("kill one", 0.0, tasks=["worker 1"], **{**known, **more})


def promises(violations: list[Violation]) -> list[str]:
    return [violation.promise for violation in violations]


def judged(one: Life, committed: set[int] = frozenset({30})) -> list[str]:  # type: ignore[assignment]
    """The promises that a life of two epochs has broken."""
    found = life_checks.check_end(WORKERS, one, 2) + life_checks.check_causes(WORKERS, one)
    return promises(found + life_checks.check_resumes([one], committed))


def test_a_restart_after_a_fault_is_no_violation() -> None:
    assert judged(life(KILLED + RESTART + RESUMED + ENDED, kill())) == []
    assert judged(life(KILLED + RESTART + FINISHED + ENDED, kill())) == []
    assert judged(life(KILLED + RESTART + FINISHED + ENDED, kill()), {20}) != []


def test_a_restart_that_no_fault_has_caused_is_not_hidden_by_its_success() -> None:
    failed = KILLED.replace("was killed by SIGKILL", "ended with exit code 1")
    assert judged(life(failed + RESTART + RESUMED + ENDED)) == ["I10"]


def test_a_restart_that_names_another_cause_than_the_fault_is_a_violation() -> None:
    failed = KILLED.replace("worker 1 was killed by SIGKILL", "worker 0 ended with exit code 1")
    assert judged(life(failed + RESTART + RESUMED + ENDED, kill())) == ["I9"]


def test_a_fault_without_effect_is_a_violation() -> None:
    assert judged(life(ENDED, kill())) == ["I5"]


@pytest.mark.parametrize(
    ("code", "codes", "text", "broken"),
    [
        (0, (), ENDED, []),
        (0, (), ENDED.splitlines()[0], ["I10"]),
        (0, (), ENDED.replace("EPOCHS 2", "EPOCHS 1"), ["I10"]),
        (1, (), ENDED, ["I10"]),
        (1, (143,), "", ["I10"]),
        (143, (143,), "", []),
    ],
)
def test_an_exit_code_is_that_of_the_end_or_of_the_fault(
    code: int, codes: tuple[int, ...], text: str, broken: list[str]
) -> None:
    assert judged(life(text, code=code, codes=codes)) == broken


def test_a_snapshot_that_is_too_old_or_was_never_there_is_a_violation() -> None:
    text = KILLED + RESTART + RESUMED + ENDED
    assert judged(life(text, kill(newest=SnapshotName(1, 2, 35)))) == ["I2"]
    assert judged(life(text, kill()), {29}) == ["I1"]
    assert judged(life(KILLED + RESTART + ENDED, kill(), first_steps={1: 1})) == ["I2"]
    assert judged(life(text, kill(), first_steps={1: 29})) == ["I1"]


def test_a_preemption_that_loses_a_step_is_a_violation() -> None:
    told = KILLED.replace("was killed by SIGKILL", "ended with exit code 143, preempted")
    fault = kill(says=FAULTS["preempt one"].says, in_fit=True)
    fault.name = "preempt one"
    assert judged(life(told + RESTART + RESUMED + ENDED, fault)) == ["I2"]
    fault.reached = 30
    assert judged(life(told + RESTART + RESUMED + ENDED, fault)) == []


def test_a_damaged_snapshot_must_be_named() -> None:
    first = life(RESUMED, kill(says="", damaged="g0001-00000002-step-40"), code=-9, codes=(-9,))
    second = life(RESUMED + ENDED)
    assert promises(life_checks.check_resumes([first, second], {30})) == ["I9"]
    second.text += "[worker 0] UserWarning: backup: skipping a damaged snapshot: " + "".join(
        ["g0001-00000002-step-40", ": state.json is no JSON\n"]
    )
    assert life_checks.check_resumes([first, second], {30}) == []


def test_steps_done_again_are_counted() -> None:
    lives = [
        life(
            KILLED + RESTART + RESUMED, kill(), first_steps={0: 2, 1: 32}, last_steps={0: 40, 1: 50}
        ),
        life(RESUMED.replace("30", "45") + ENDED, first_steps={0: 47}, last_steps={0: 60}),
    ]
    assert life_checks.steps_again(lives) == (40 - 30) + (50 - 45)


def test_a_server_that_was_restarted_without_a_fault_is_a_violation() -> None:
    chief = ENDED.splitlines()[0].replace("worker", "chief") + "\n"
    text = "[worker 1] kfit: worker 1 was killed by SIGKILL; attempt 2 starts in 0.3 s\n" + chief
    assert life_checks.check_causes(PS, life(text, kill())) == []
    assert promises(life_checks.check_causes(PS, life(text))) == ["I10"]


def test_examples_count_once_but_for_the_batch_of_a_lost_worker() -> None:
    told = {"off": [0.0, 16.0]}
    assert promises(end_checks.check_examples(WORKERS, told, [kill()])) == ["I4"]
    assert end_checks.check_examples(PS, told, [kill()]) == []
    assert promises(end_checks.check_examples(PS, told, [])) == ["I4"]


def test_what_is_left_over_is_a_violation(tmp_path: Path) -> None:
    files, temporary = tmp_path / "run", tmp_path / "tmp"
    snapshot = files / "backup" / "g0001-00000001-step-30"
    for folder in (snapshot, files / "logs" / "train", temporary):
        folder.mkdir(parents=True)
    named = [snapshot / name for name in end_checks.SNAPSHOT]
    for path in (*named, files / "backup" / ".kfit-lock", files / "log.csv"):
        path.touch()
    (files / "best.weights.h5").touch()
    assert end_checks.check_files(files, temporary) == []
    for path, promise in (
        (files / "backup" / "kfit-tmp-1", "I6"),
        (files / "best.weights.h5.tmp", "I6"),
        (temporary / "kfit-launch-1", "I6"),
    ):
        path.touch()
        assert promises(end_checks.check_files(files, temporary)) == [promise]
        path.unlink()
    (files / "not-the-chief").mkdir()
    assert promises(end_checks.check_files(files, temporary)) == ["I7", "I6"]


def test_processes_ports_and_folders_that_are_left_are_violations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_checks, "GONE_IN", 0.1)
    one = life("", folders={str(tmp_path)})
    one.mark = os.urandom(8).hex()
    assert promises(life_checks.check_leftovers(one)) == ["I6"]
    one.folders.clear()
    assert life_checks.check_leftovers(one) == []
    program = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    program += "print(s.getsockname()[1], flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "KFIT_SOAK": one.mark},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        one.ports.add(int(process.stdout.readline()))
        assert promises(life_checks.check_leftovers(one)) == ["I6", "I6"]
        process.kill()
    assert life_checks.check_leftovers(one) == []


def test_a_seed_always_deals_the_same_faults_and_all_of_them() -> None:
    one, again, other = (
        list(itertools.islice(dealt(WORKERS.cards, 60.0, seed), 240)) for seed in ("1", "1", "2")
    )
    assert one == again != other
    deck = sum(WORKERS.cards.values())
    assert {name for _, name in one[:deck]} == set(WORKERS.cards) == set(FAULTS)
    assert 30 < sum(pause for pause, _ in one) / len(one) < 120


def test_damage_changes_one_file(tmp_path: Path) -> None:
    draw = random.Random(5)
    for number in range(20):
        snapshot = tmp_path / str(number)
        snapshot.mkdir()
        for name in end_checks.SNAPSHOT:
            (snapshot / name).write_bytes(bytes(range(200)))
        damage(snapshot, draw)
        files = list(snapshot.iterdir())
        assert sum(file.read_bytes() != bytes(range(200)) for file in files) == 1


def test_a_violation_decides_the_exit_code_and_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Record] = []
    monkeypatch.setattr(command, "_untouched", lambda folder, epochs: ("", folder))
    monkeypatch.setattr(command, "_soak", lambda kind, *_: made[0])
    arguments = ["--kinds", "workers", "--seed", "7", "--keep", str(tmp_path)]
    made.append(Record("workers"))
    assert command.main(arguments) == 0
    made[0] = Record("workers", violations=[Violation("I3", "the digests are not equal")])
    assert command.main(arguments) == 1
    printed = capsys.readouterr().out
    assert "workers: VIOLATION of I3: the digests are not equal" in printed
    assert f"kept in {tmp_path}; again: python -m tests.soak" in printed
    assert "--seed 7 --kinds workers" in printed


def test_what_cannot_be_judged_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, untouched: Any) -> Record:
        raise FileNotFoundError("log.csv")

    monkeypatch.setattr(command.Training, "run", fails)
    record = command._soak(WORKERS, 2, tmp_path, 60.0, "1", None)
    assert "log.csv" in record.violations[0].what


def test_the_rows_have_the_cells_of_the_header() -> None:
    assert (
        row(Record("workers"), 60.0).count(" | ") == HEADER.count(" | ") == RULE.count("---|") - 1
    )


CARDS = {name: 1 for name in FAULTS if name not in ("suspend one", "preempt one")}
"""All faults but two: a suspended task takes ten seconds to be found, and after a preemption of one
task all must stop after the same step, which tasks that only pretend to train do not."""


NEVER = 1e6


@dataclass(frozen=True)
class Pretends(Kind):
    """Trains by `programs/pretends.py`, which needs no TensorFlow."""

    def command(self, folder: Path, *options: str) -> list[str]:
        run = ["--workers", "2", "--max-restarts", "100", "--no-join"]
        return [
            *(sys.executable, "-m", "kfit", "run", *run),
            *(str(PRETENDS), self.strategy, str(folder)),
        ]


def pretended(folder: Path, *faults: tuple[float, str]) -> Record:
    """Trains with some faults: the seconds until each, and its name."""
    kind = Pretends("workers", "multi_worker", tasks=2, at_once=1, cards=CARDS)
    coming = itertools.chain(faults, itertools.repeat((NEVER, "kill one")))
    return Training(kind, folder, 1, [], coming, random.Random(1), print).run(None)


@pytest.mark.long
def test_real_faults_of_a_training_without_flaw_violate_nothing(tmp_path: Path) -> None:
    record = pretended(tmp_path, *itertools.islice(dealt(CARDS, 1.5, "1"), len(CARDS)))
    assert record.violations == []
    assert {fault.name for fault in record.faults} == set(CARDS)
    assert record.steps_again > 0
    assert any(fault.recovered is not None for fault in record.faults)


@pytest.mark.parametrize(
    ("flaw", "promise"),
    [
        ("fails once", "I10"),
        ("stops halfway", "I10"),
        ("leaves a file", "I6"),
        ("writes on each task", "I7"),
    ],
)
def test_a_flaw_is_seen(
    flaw: str, promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAW", flaw)
    # Who fails at its 50th step must reach it before the other one ends, though it starts late.
    monkeypatch.setenv("PAUSE", "0.02" if flaw == "fails once" else "0.003")
    assert promise in promises(pretended(tmp_path).violations)


def test_beginning_anew_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAW", "begins anew")
    record = pretended(tmp_path, (0.5, "damage a snapshot"))
    assert promises(record.violations) == ["I2"]


@pytest.mark.parametrize(
    "kind", ["workers", *(pytest.param(each, marks=pytest.mark.long) for each in ("ps", "ray"))]
)
def test_a_training_survives_random_faults_of_two_minutes(kind: str) -> None:
    """The steps take half a minute, and the starts after the faults another one.

    With this seed two faults come soon, and the next one late: where starts take long, a fault
    every few seconds would never let the training end.
    """
    options = ["--minutes", "0.5", "--mtbf", "60", "--kinds", kind, "--seed", "23589"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    found = re.search(r"(\d+) faults, 0 violations", done.stdout)
    assert found is not None
    assert int(found[1]) >= 1  # where all starts are slow, only one comes in time
