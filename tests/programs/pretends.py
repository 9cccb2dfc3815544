"""Pretends to train under `kfit run`, without TensorFlow: for tests of the soak test itself.

Usage: pretends.py STRATEGY FOLDER ...; PAUSE is the seconds of a step, FLAW a flaw that the soak
test must see. It takes the steps of one epoch, saves, resumes, and tells its end.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from kfit.heartbeat import Heartbeat, Phase

FOLDER, FLAW = Path(sys.argv[2]), os.environ.get("FLAW", "")
STEPS, SAVE_EVERY = 150, 10
GENERATION = int(os.environ["KFIT_GENERATION"])
INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
FILES = ("arrays.h5", "manifest.json", "state.json")
CONTENT = bytes(1000)
backup = FOLDER / "backup"
told_to_stop: list[int] = []
signal.signal(signal.SIGTERM, lambda signum, _: told_to_stop.append(signum))


def resumed_at() -> int:
    """The step of the newest snapshot that is not damaged; 0 if there is none."""
    names = sorted((path.name for path in backup.glob("g*")), reverse=True)
    for name in [] if FLAW == "begins anew" else names:
        step = int(name.split("-")[-1])
        if all((backup / name / file).read_bytes() == CONTENT for file in FILES):
            if INDEX == 0:
                print(f"kfit: going on from {backup}, step {step}", flush=True)
            return step
        print(f"skipping a damaged snapshot: {name}: it is no snapshot", flush=True)
    return 0


def save(step: int) -> None:
    aside = backup / "kfit-tmp-0"
    if aside.exists():  # a killed run has left it
        aside.rename(FOLDER.parent / f"trash-{time.monotonic_ns()}")
    aside.mkdir(parents=True)
    for file in FILES:
        (aside / file).write_bytes(CONTENT)
        time.sleep(0.005)
    serial = 1 + max((int(path.name.split("-")[1]) for path in backup.glob("g*")), default=0)
    aside.rename(backup / f"g0001-{serial:08d}-step-{step}")


if INDEX == 0:
    backup.mkdir(parents=True, exist_ok=True)
heartbeat = Heartbeat.of_environment()
with heartbeat.call(Phase.STEP):
    for step in range(resumed_at() + 1, STEPS + 1):
        time.sleep(float(os.environ.get("PAUSE", "0.04")))
        if INDEX == 0:  # the tasks do not wait for each other, so only one tells its steps
            heartbeat.beat(step)
        if FLAW == "fails once" and step == 50 and GENERATION == 0 and INDEX == 1:
            raise RuntimeError("an error that a restart would hide")
        if FLAW == "stops halfway" and step == STEPS // 2:
            sys.exit(0)
        if INDEX == 0 and (step % SAVE_EVERY == 0 or told_to_stop):
            save(step)
        if told_to_stop:
            sys.exit(128 + told_to_stop[0])
if INDEX == 0:
    for name in ("best.weights.h5", "log.csv"):
        (FOLDER / name).touch()
    (FOLDER / "logs").mkdir(exist_ok=True)
    (backup / ".kfit-lock").write_text('{"ended": "run"}')
    for left in backup.glob("kfit-tmp-*"):
        left.rename(FOLDER.parent / f"trash-{time.monotonic_ns()}")
    if FLAW == "leaves a file":
        Path(os.environ["TMPDIR"], "kfit-0").touch()
    figures = {"epochs": [0], "off": [0.0], "loss": [1.0], "steps": STEPS}
    seconds = {"step_seconds": 30.0, "total_seconds": 30.0, "snapshot_bytes": 3000}
    print(f"FIGURES {json.dumps({**figures, **seconds})}", flush=True)
if FLAW == "writes on each task" and INDEX == 1:
    (FOLDER / "not-the-chief").mkdir()
print("DIGEST ab EPOCHS 1", flush=True)
