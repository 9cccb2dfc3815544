"""The command: trainings of several kinds under random faults, their checks, and a table."""

import argparse
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.runs import start
from tests.soak.faults import dealt
from tests.soak.kinds import KINDS, STEP_SECONDS, STEPS_PER_EPOCH, Kind, installed, options
from tests.soak.records import Record, Violation
from tests.soak.table import table
from tests.soak.training import Training

Untouched = tuple[str, Path]
"""What a training that nobody touched has printed, and the folder to which it has written."""

PLANNED = 0.35
"""The share of a training's minutes in which its steps would be done if they took no longer than
their wait. The rest is for faults, and for what a step computes: workers on an idle machine of two
cores take 0.22 s for a step that waits for 0.1 s."""

NO_WAIT = 1e-6
"""The seconds of a step of the untouched training, which computes the same without the wait."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 1 if any promise was broken."""
    given = _parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    names = given.kinds.split(",") if given.kinds else installed()
    for name in names:
        if name not in KINDS:
            raise SystemExit(f"`--kinds` has {name!r}; expected some of {','.join(KINDS)}")
    seed = given.seed or str(random.SystemRandom().randrange(10**6))
    folder = Path(given.keep or tempfile.mkdtemp(prefix="soak-")).absolute()
    print(f"seed {seed}, in {folder}", flush=True)
    seconds = 60 * given.minutes / len(names)
    untouched: dict[int, Untouched] = {}
    records = []
    for name in names:
        kind = KINDS[name]
        epochs = _epochs(kind, seconds)
        if kind.is_exact and epochs not in untouched:
            untouched[epochs] = _untouched(folder / f"untouched-{epochs}", epochs)
        records.append(_soak(kind, epochs, folder / name, given.mtbf, seed, untouched.get(epochs)))
    print(f"\n{table(records, given.mtbf)}\n")
    violations = [(record.kind, each) for record in records for each in record.violations]
    for name, violation in violations:
        print(f"{name}: VIOLATION of {violation.promise}: {violation.what}")
    faults = sum(len(record.faults) for record in records)
    print(f"seed {seed}: {faults} faults, {len(violations)} violations", flush=True)
    if violations:
        again = f"python -m tests.soak --minutes {given.minutes:g} --mtbf {given.mtbf:g}"
        print(f"kept in {folder}; again: {again} --seed {seed} --kinds {','.join(names)}")
        return 1
    if not given.keep:
        shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        help="about how long all trainings take, which have equal parts of it (default: 30)",
    )
    parser.add_argument(
        "--mtbf",
        type=float,
        default=60.0,
        metavar="S",
        help="mean seconds between two faults (default: 60)",
    )
    parser.add_argument("--seed", help="of the faults and their times; a fresh one by default")
    parser.add_argument(
        "--kinds",
        help=f"some of {','.join(KINDS)}, separated by commas; by default all that are installed",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="where everything is written, and kept")
    return parser


def _epochs(kind: Kind, seconds: float) -> int:
    """The number of epochs that take about so many seconds, faults included."""
    epoch = STEPS_PER_EPOCH * STEP_SECONDS / kind.at_once
    return max(1, round(PLANNED * seconds / epoch))


def _untouched(folder: Path, epochs: int) -> Untouched:
    """Trains without faults; returns what was printed, and the folder of what was written.

    Raises:
        SystemExit: If that fails: then nothing can be said about faults.
    """
    files, output = folder / "run", folder / "output"
    command = KINDS["workers"].command(files, *options(epochs, NO_WAIT))
    folder.mkdir(parents=True)
    code = start(command, files, output).wait()
    text = output.read_text(errors="replace")
    if code != 0:
        raise SystemExit(f"The training without faults has failed:\n{text[-5000:]}")
    print(f"untouched: {epochs} epochs of {STEPS_PER_EPOCH} steps", flush=True)
    return text, files


def _soak(
    kind: Kind,
    epochs: int,
    folder: Path,
    mtbf: float,
    seed: str,
    untouched: Untouched | None,
) -> Record:
    print(f"{kind.name}: {epochs} epochs of {STEPS_PER_EPOCH} steps", flush=True)
    seed = f"{seed}:{kind.name}"
    training = Training(
        kind,
        folder,
        epochs,
        options(epochs),
        dealt(kind.cards, mtbf, seed),
        random.Random(f"{seed}:victims"),
        lambda line: print(line, flush=True),
    )
    try:
        return training.run(untouched if kind.is_exact else None)
    except Exception as error:
        # What cannot be judged has not passed.
        training.record.violations.append(Violation("I10", f"no verdict: {error!r}"))
        return training.record
