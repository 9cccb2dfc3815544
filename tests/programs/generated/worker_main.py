"""What each worker runs: a list of programs, one after the other; the results go to files.

Usage: kfit run --workers 2 worker_main.py FOLDER, where `plan.json` is. A worker that was killed
runs the list again, and goes on with the program that it was killed in.
"""

import json
import os
import pickle
import random
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))

from tests.programs.generated.clock_kill import killed_after
from tests.programs.generated.place import Place
from tests.programs.generated.run import Outcome, run

ATTEMPTS = 2
BY_CLOCK = 0.5
"""The part of kills that comes at any moment."""


def main(folder: Path) -> None:
    """Runs the entries of the plan that no earlier life of this worker has run."""
    cluster = json.loads(os.environ["TF_CONFIG"])
    task, tasks = int(cluster["task"]["index"]), len(cluster["cluster"]["worker"])
    os.environ["KFIT_TEST_TASK"] = str(task)
    before = _looked_at_together(folder, task, tasks)
    for entry in json.loads((folder / "plan.json").read_text()):
        name = entry["name"]
        results = [f"{name}.result-{each}" in before for each in range(tasks)]
        failed = any(f"{name}.failed-{each}" in before for each in range(tasks))
        attempt = len([f for f in before if f.startswith(f"{name}.started-0-")])
        if all(results) or failed or attempt >= ATTEMPTS + ("cut" in entry):
            continue
        (folder / f"{name}.started-{task}-{attempt}").touch()
        place = Place(**entry["place"])
        clock: AbstractContextManager[None] = nullcontext()
        if "cut" in entry and attempt == 0:
            place, clock = _killed(entry, place, folder, task, tasks)
        own = folder / name if "cut" in entry else folder / f"{name}-{attempt}"
        with clock:
            outcome = run(entry["program"], place, own)
        if outcome.error is not None and _follows(outcome.error):
            sys.exit(1)  # its peer has failed, or was killed: both run the program again
        _write(folder / f"{name}.result-{task}", outcome)
        if outcome.error is not None:
            # What failed may have left the connection of the workers unusable: begin anew.
            (folder / f"{name}.failed-{task}").touch()
            sys.exit(1)


def _follows(error: BaseException) -> bool:
    """Whether an error is the mere consequence of what has happened to another worker."""
    about = f"{type(error).__name__}: {error}"
    return any(each in about for each in ("ExchangeError", "ChiefFailedError", "UnavailableError"))


def _looked_at_together(folder: Path, task: int, tasks: int) -> set[str]:
    """The files that are there before any worker goes on: so all decide alike."""
    before = set(os.listdir(folder))
    life = os.environ["KFIT_GENERATION"]
    (folder / f"ready-{life}-{task}").touch()
    end = time.monotonic() + 300
    while not all((folder / f"ready-{life}-{each}").exists() for each in range(tasks)):
        if time.monotonic() > end:
            sys.exit("the other workers did not come")
        time.sleep(0.1)
    return before


def _killed(
    entry: dict[str, Any], place: Place, folder: Path, task: int, tasks: int
) -> tuple[Place, AbstractContextManager[None]]:
    """The place with the event at which a worker is killed, or the clock that kills it."""
    draw = random.Random(entry["cut"])
    victim, part, by_clock = draw.randrange(tasks), draw.random(), draw.random() < BY_CLOCK
    if task != victim:
        return place, nullcontext()
    untouched = pickle.loads((folder / f"{entry['after']}.result-{task}").read_bytes())
    if by_clock:
        return place, killed_after(part * untouched["seconds"])
    cut = 1 + int(part * untouched["events"])
    return Place(**{**entry["place"], "cut": cut, "kill": True}), nullcontext()


def _write(path: Path, outcome: Outcome) -> None:
    about = vars(outcome) | {"error": None, "told": ""}
    if outcome.error is not None:
        import traceback

        about["told"] = "".join(traceback.format_exception(outcome.error))
        about["error"] = (type(outcome.error).__name__, str(outcome.error))
    part = path.with_name(path.name + ".part")
    part.write_bytes(pickle.dumps(about))
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
