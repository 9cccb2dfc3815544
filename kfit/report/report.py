"""`Report`: the figures of a `fit` as text, plain values, JSON and TensorBoard's summaries."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import tensorflow as tf

from kfit.report.advice import advice_of
from kfit.report.figures import Figures
from kfit.report.text import html_table, line, table


@dataclass(frozen=True, repr=False)
class Report(Figures):
    """What took the time of a `fit`, and how much of its work counts.

    `kfit.Trainer.report` returns it. Printed, or shown by Python or a notebook, it is a table. The
    attributes are described in `Figures`, its base class.

    Example:
        >>> report = trainer.report()
        >>> print(report)
        >>> report.phases["input"] / report.seconds
    """

    @property
    def advice(self) -> list[str]:
        """What to change, as far as the figures support it; a list of sentences."""
        return advice_of(self)

    @property
    def line(self) -> str:
        """One line with the steps, the time and the largest phases."""
        return line(self)

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures as plain values by name, in nested dicts and lists."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            **found,
            "phases": dict(self.phases),
            "hooks": dict(self.hooks),
            "single_steps": list(self.single_steps),
            "step_parts": dict(self.step_parts),
            "seconds_of_training": self.seconds_of_training,
            "examples_per_second": self.examples_per_second,
            "examples_per_second_per_replica": self.examples_per_second_per_replica,
            "advice": self.advice,
        }

    def to_json(self, indent: int | None = 1) -> str:
        """Returns the figures as JSON; None becomes null.

        Args:
            indent: The number of spaces of each level; None for a single line.
        """
        return json.dumps(self.as_dict(), indent=indent)

    def write(self, writer: tf.summary.SummaryWriter, step: int | None = None) -> None:
        """Writes the figures for TensorBoard: a scalar for each number, and the report as text.

        Args:
            writer: The writer, as `tf.summary.create_file_writer` returns it.
            step: The step at which TensorBoard shows the figures; None for `total_steps`.
        """
        at = self.total_steps if step is None else step
        with writer.as_default(step=at):
            for name, value in self._scalars().items():
                tf.summary.scalar(f"kfit/{name}", value)
            tf.summary.text("kfit/report", f"```\n{self}\n```")
        writer.flush()

    def _scalars(self) -> dict[str, float]:
        found = self.as_dict()
        numbers = {f"seconds/{name}": value for name, value in self.phases.items()}
        numbers |= {f"step_parts/{name}": value for name, value in self.step_parts.items()}
        numbers |= {name: v for name, v in found.items() if isinstance(v, int | float)}
        return numbers

    def __str__(self) -> str:
        return table(self, self.advice)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self, self.advice)
