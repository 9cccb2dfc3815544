"""The result of `Trainer.verify`: a verdict, the causes, and a table of differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["equal", "equal but for random draws", "differs", "not repeatable"]

RANDOM = "random numbers"
"""The kind of a cause that draws other numbers on each replica."""


@dataclass(frozen=True)
class Difference:
    """How far one device and R replicas differ in one part of the training.

    Attributes:
        name: A layer, "optimizer", or a value that `fit` logs, such as "loss".
        kind: What the part is: "layer", "optimizer" or "log".
        difference: The largest difference, relative to the largest value of the variable (or to the
            logged value) on one device.
        rounding: The largest such difference that rounding explains.
    """

    name: str
    kind: Literal["layer", "optimizer", "log"]
    difference: float
    rounding: float

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains the difference. NaN on one side only is never equal."""
        return self.difference <= self.rounding


@dataclass(frozen=True)
class Cause:
    """A part of the model that makes replicas compute something else than one device.

    Attributes:
        name: The name of the layer, metric or method.
        kind: The kind of the cause, such as "batch normalization" or "random numbers".
        text: What the part does, and what to change.
    """

    name: str
    kind: str
    text: str


@dataclass(frozen=True, repr=False)
class Verification:
    """What `Trainer.verify` has found. Printing it shows the verdict, the causes and the table.

    Attributes:
        verdict: "equal" (up to rounding); "equal but for random draws": so it is after layers such
            as Dropout were switched off, which draw other numbers on each replica; "differs"; or
            "not repeatable": one device gives two results from the same beginning.
        model: The name of the model.
        replicas: The number of replicas that were compared with one device.
        batch_sizes: The number of examples in each batch that was trained on.
        differences: The differences, by layer, optimizer and log.
        causes: The parts of the model that explain the differences, as far as they were found.
        warnings: The warnings that kfit gave when the model trained on the replicas.
        notes: Remarks about what was tried.
    """

    verdict: Verdict
    model: str
    replicas: int
    batch_sizes: tuple[int, ...]
    differences: tuple[Difference, ...]
    causes: tuple[Cause, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether one device and the replicas are equal, as far as kfit promises it."""
        return self.verdict in ("equal", "equal but for random draws")

    def __bool__(self) -> bool:
        return self.is_equal

    def as_dict(self) -> dict[str, Any]:
        """Returns the result as values that JSON can encode."""
        lists = {"differences", "causes", "warnings", "notes", "batch_sizes"}
        found = {k: list(v) if k in lists else v for k, v in asdict(self).items()}
        for entry, difference in zip(found["differences"], self.differences, strict=True):
            # JSON has no infinity and no NaN.
            entry["difference"] = _finite(difference.difference)
            entry["rounding"] = _finite(difference.rounding)
            entry["equal"] = difference.is_equal
        return {"equal": self.is_equal, **found}

    def __str__(self) -> str:
        lines = [f"{self._verdict_line()}."]
        if len(self.causes) == 1:
            lines.append(f"Cause: {_of(self.causes[0])}")
        elif self.causes:
            lines += ["Causes:", *(f"  - {_of(cause)}" for cause in self.causes)]
        lines += ["", *self._table()]
        for title, texts in (("kfit warns:", self.warnings), ("Notes:", self.notes)):
            if texts:
                lines += ["", title, *(f"  - {text}" for text in texts)]
        return "\n".join(lines)

    __repr__ = __str__

    def summary(self) -> str:
        """Returns the verdict in one line, with the names of what causes a difference."""
        # The table is made without random draws, so that another cause explains it alone.
        causes = [cause for cause in self.causes if cause.kind != RANDOM] or self.causes
        names = ", ".join(dict.fromkeys(repr(cause.name) for cause in causes))
        because = f", because of {names}" if names and not self.is_equal else ""
        return f"{self._verdict_line()}{because}."

    def _verdict_line(self) -> str:
        steps = f"{len(self.batch_sizes)} steps on {self.replicas} replicas"
        worst = max((d.difference for d in self.differences), default=0.0)
        if self.verdict == "equal":
            return (
                f"EQUAL: {steps} give the same numbers as on one device, up to rounding "
                f"({worst:.1e})"
            )
        if self.verdict == "equal but for random draws":
            return (
                f"EQUAL BUT FOR RANDOM DRAWS: {steps} give the same numbers as on one device, up "
                f"to rounding ({worst:.1e}), if the random layers draw nothing"
            )
        if self.verdict == "differs":
            return f"DIFFERS: {steps} give other numbers than on one device, by up to {worst:.1e}"
        return "NOT REPEATABLE: one device gives two results from the same beginning"

    def _table(self) -> list[str]:
        rows = [("", "difference", "allowed", "")]
        for found in self.differences:
            shown = (f"{found.difference:.1e}", f"{found.rounding:.1e}")
            rows.append((_label(found), *shown, "equal" if found.is_equal else "DIFFERS"))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return [
            f"  {name:<{widths[0]}}  {one:>{widths[1]}}  {two:>{widths[2]}}  {equal}".rstrip()
            for name, one, two, equal in rows
        ]


def printable(text: str) -> str:
    """Returns a text without control characters; a name may come from a file of the user's."""
    return text if text.isprintable() else repr(text)


def first_line(error: BaseException) -> str:
    """Returns the class and the first line of an error."""
    line = printable((str(error).splitlines() or [""])[0][:200])
    return f"{type(error).__name__}: {line}".removesuffix(": ")


def joined(names: Sequence[str]) -> str:
    """Returns names as text: "'a', 'b' and 'c'"."""
    quoted = [repr(name) for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _label(found: Difference) -> str:
    kind = "logs: " if found.kind == "log" else ""
    return f"{kind}{printable(found.name)}"


def _of(cause: Cause) -> str:
    return f"{printable(cause.name)} ({cause.kind}): {cause.text}"


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
