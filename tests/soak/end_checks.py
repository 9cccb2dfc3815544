"""Checks what a training leaves when it has ended."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.runs import BACKUP, digests
from tests.soak.kinds import BATCH_SIZE, STEP_SECONDS, STEPS_PER_EPOCH, Kind
from tests.soak.points import is_of_the_report, points
from tests.soak.records import Fault, Record, Violation
from tests.soak.said import figures

FILES = {BACKUP, "best.weights.h5", "log.csv", "logs"}
"""What the program writes, which is all that may be in its folder."""

SNAPSHOT = {"arrays.h5", "manifest.json", "state.json"}

OF_TENSORFLOW = re.compile(r"__autograph_generated_file\w+\.py|__pycache__")
"""What TensorFlow leaves in the temporary folder when a process is killed."""


def check_bits(text: str, folder: Path, expected_text: str, expected: Path) -> list[Violation]:
    """I3, I8: the training has ended with the bits of one that nobody touched.

    Args:
        text: What its last life has printed.
        folder: What it has written.
        expected_text: What the untouched training has printed.
        expected: What that one has written.
    """
    found = []
    if len(wanted := set(digests(expected_text))) != 1:
        found.append(Violation("I3", f"the untouched training has the digests {wanted}"))
    if set(digests(text)) != wanted:
        found.append(Violation("I3", f"the digests are {digests(text)}; expected {wanted}"))
    if (folder / "log.csv").read_bytes() != (expected / "log.csv").read_bytes():
        found.append(Violation("I8", "log.csv differs from that of the untouched training"))
    arrays, others = (_arrays(each / "best.weights.h5") for each in (folder, expected))
    if arrays.keys() != others.keys() or any(
        not np.array_equal(arrays[name], others[name]) for name in arrays
    ):
        found.append(Violation("I3", "best.weights.h5 differs from the untouched training's"))
    curves, others_curves = (
        [each for each in points(path / "logs") if not is_of_the_report(each[0])]
        for path in (folder, expected)
    )
    if curves != others_curves:
        counted, wanted_counts = (
            Counter(point for point, _ in each) for each in (curves, others_curves)
        )
        more, less = counted - wanted_counts, wanted_counts - counted
        what = f"more: {list(more)[:3]}, fewer: {list(less)[:3]}, or other values"
        found.append(Violation("I8", f"TensorBoard's points are not the untouched one's: {what}"))
    return found


def _arrays(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


def check_steps(kind: Kind, told: dict[str, Any], epochs: int) -> list[Violation]:
    """I8: the history has each epoch once, and every step was counted."""
    found = []
    if told["epochs"] != list(range(epochs)):
        found.append(Violation("I8", f"the history has the epochs {told['epochs']}"))
    steps = epochs * STEPS_PER_EPOCH
    if told["steps"] != steps:
        found.append(Violation("I8", f"{told['steps']} steps count; expected {steps}"))
    if not all(math.isfinite(loss) for loss in told["loss"]):
        found.append(Violation("I3", f"the losses are {told['loss']}"))
    least = 0.95 * steps * STEP_SECONDS / kind.at_once
    if not least <= told["step_seconds"] <= told["total_seconds"]:
        seconds = f"{told['step_seconds']} of {told['total_seconds']} s"
        found.append(Violation("I10", f"the report says {seconds} in steps; at least {least} s"))
    return found


def check_examples(kind: Kind, told: dict[str, Any], faults: Sequence[Fault]) -> list[Violation]:
    """I4: each example was seen once an epoch.

    The batch that a lost worker of asynchronous training had begun may count twice, or not at all.
    """
    hits = [name for fault in faults for name in fault.tasks if name.startswith("worker")]
    most = 0 if kind.is_exact else len(hits) * BATCH_SIZE
    total = sum(told["off"])
    if total <= most:
        return []
    return [Violation("I4", f"examples too often or not at all: {told['off']}; at most {most}")]


def check_files(folder: Path, temporary: Path) -> list[Violation]:
    """I6, I7, I8: only the chief has written, nothing is left over, no point is there twice."""
    found = []
    if (folder / "not-the-chief").exists():
        found.append(Violation("I7", "a task that is not the chief has written"))
    if more := {path.name for path in folder.iterdir()} ^ FILES:
        found.append(Violation("I6", f"{folder} should hold {FILES}; too many or missing: {more}"))
    if left := [path.name for path in temporary.iterdir() if not _is_known(path)]:
        found.append(Violation("I6", f"temporary files are left: {left}"))
    for path in (folder / BACKUP).iterdir():
        is_whole = path.is_dir() and {each.name for each in path.iterdir()} == SNAPSHOT
        if path.name != ".kfit-lock" and not (path.name.startswith("g") and is_whole):
            found.append(Violation("I6", f"{path} is left"))
    counts = Counter(point for point, _ in points(folder / "logs"))
    if twice := [point for point, count in counts.items() if count > 1]:
        found.append(Violation("I8", f"TensorBoard has points twice: {twice[:3]}"))
    return found


def _is_known(path: Path) -> bool:
    return OF_TENSORFLOW.fullmatch(path.name) is not None


def check_lock(folder: Path) -> list[Violation]:
    """I10: the directory of the backup says that training has ended."""
    lock = json.loads((folder / BACKUP / ".kfit-lock").read_text())
    return [] if lock["ended"] else [Violation("I10", "the backup does not say that it has ended")]


def take_figures(record: Record, text: str) -> dict[str, Any]:
    """Copies the figures that the chief has printed to the record; returns all of them."""
    told = figures(text)
    record.steps = told["steps"]
    record.step_seconds = told["step_seconds"]
    record.own_goodput = told["step_seconds"] / told["total_seconds"]
    record.snapshot_bytes = told["snapshot_bytes"]
    return told
