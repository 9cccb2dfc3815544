"""Measures what takes the time of an epoch."""

from __future__ import annotations

from collections.abc import Mapping

CURVES = "seconds/"
"""What the names of the curves begin with, so that TensorBoard shows them side by side."""
PARTS = ("input", "steps", "exchange", "validation", "saving", "callbacks", "tracing")
"""The phases of a report that have a curve of their own; all others are the rest."""


class EpochTimes:
    """The seconds of each part of the epochs of one `fit`.

    An epoch is measured from the end of the epoch before, and the first one from the call of `fit`.
    So what follows the end of an epoch, such as the save there, counts for the next one.
    """

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def end(self, phases: Mapping[str, float]) -> dict[str, float]:
        """Ends an epoch.

        Args:
            phases: The seconds of each phase of this `fit` until now, as in a report.

        Returns:
            The seconds of each of `PARTS`, and of the "rest"; the sum is the time of the epoch.
        """
        spent = {name: seconds - self._before.get(name, 0.0) for name, seconds in phases.items()}
        self._before = dict(phases)
        parts = {name: spent.pop(name) for name in PARTS}
        return {**parts, "rest": sum(spent.values())}
