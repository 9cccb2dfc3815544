"""Reads the points that TensorBoard shows of a training, each as often as it was written."""

from pathlib import Path
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A point of a curve.

    Attributes:
        run: The folder, "train" or "validation".
        tag: The name of the curve.
        step: The step of the point.
    """

    run: str
    tag: str
    step: int


def points(logs: Path) -> list[tuple[Point, Any]]:
    """All points in the event files of a log directory, with their values, sorted."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found = []
    for file in sorted(logs.glob("*/events.out.tfevents.*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                point = Point(file.parent.name, value.tag, event.step)
                found.append((point, make_ndarray(value.tensor).tolist()))
    return sorted(found, key=lambda each: each[0])


def is_of_the_report(point: Point) -> bool:
    """Whether a curve has times or restarts of the training, which differ from run to run."""
    return point.tag.startswith("kfit/")
