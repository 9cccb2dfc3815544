"""A report as text or HTML: a short table, and one line for the end of `fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from kfit.report.figures import OF_A_CALL, Figures

_SHOWN = 0.015
"""The share of the time from which the line names a phase."""
_LEAST = 0.0005
"""The share of the time from which the table has a row for a phase."""
_WIDTH = 26
_LEFT = 'style="text-align: left"'


class Row(NamedTuple):
    """A row of the table of a report.

    Attributes:
        name: What the row is about, such as a phase.
        text: Its figures, with units.
        share: For a time, its share of the whole time, from 0 to 1; otherwise None.
    """

    name: str
    text: str
    share: float | None = None


class Part(NamedTuple):
    """A part of the table of a report: a heading, and the rows below it."""

    heading: str
    rows: list[Row]


def line(report: Figures) -> str:
    """Returns one line with the steps, the time and the largest phases of a `fit`.

    Its "rest" is that of the table, with the phases that are too small to be named.
    """
    speed = report.examples_per_second
    rate = "" if speed is None else f" ({_number(speed)} examples/s since the first step)"
    on = f" on {report.num_replicas:,} replicas" if report.num_replicas > 1 else ""
    begin = f"kfit: {_count(report.steps, 'step')} in {_seconds(report.seconds)}{on}{rate}"
    named = {
        name: seconds / report.seconds
        for name, seconds in _phases(report).items()
        if name != "rest" and seconds >= _SHOWN * report.seconds
    }
    shares = sorted(named.items(), key=lambda item: -item[1])
    percents = [(name, round(100 * share)) for name, share in shares]
    percents.append(("rest", max(0, 100 - sum(percent for _, percent in percents))))
    return f"{begin}: " + ", ".join(f"{name} {percent} %" for name, percent in percents)


def parts(report: Figures) -> list[Part]:
    """Returns the figures of a report as the parts of a table: the whole `fit`, and one step."""
    replicas, tasks = _count(report.num_replicas, "replica"), _count(report.num_tasks, "task")
    steps = f"{_count(report.steps, 'step')} in {_seconds(report.seconds)}"
    rows = _times(_phases(report), report.seconds)
    if report.exchange_in_steps is not None:
        exchanged = _seconds(report.exchange_in_steps)
        rows.append(Row("exchange in steps", f"{exchanged}, partly while steps compute"))
    if report.examples_per_second is not None:
        speed = _number(report.examples_per_second)
        if report.num_replicas > 1:
            speed += f", {_number(report.examples_per_second_per_replica or 0.0)} a replica"
        rows.append(Row("examples/s", speed))
    if report.seconds_to_first_step is not None:
        rows.append(Row("first step after", _seconds(report.seconds_to_first_step)))
    rows.append(Row("examples", _examples(report)))
    share = f"{100 * report.goodput:.1f} % of {_seconds(report.total_seconds)}"
    count = _count(report.total_steps, "step")
    rows.append(Row("goodput", f"{share} went into {count} that count"))
    if report.restarts or report.restores:
        again = report.steps_again
        lost = "an unknown number of" if again is None else f"{again:,}"
        counts = f"{report.restarts:,}, {_count(report.restores, 'restore')}"
        rows.append(Row("restarts", f"{counts}, {lost} steps done again"))
    if report.snapshots:
        size = f"{_count(report.snapshots, 'snapshot')} of {_bytes(report.snapshot_bytes)} in all"
        wait = f"training waited {_seconds(report.snapshot_wait)} for them"
        written = f"written in {_seconds(report.snapshot_seconds)}"
        rows.append(Row("saved", f"{size}, {written}; {wait}"))
    found = [Part(f"fit: {steps}, {replicas}, {tasks}", rows)]
    if report.step_parts:
        timed = {k: v for k, v in report.step_parts.items() if k != OF_A_CALL}
        of_step = [
            row if row.share else Row(row.name, "too small to measure")
            for row in _times(timed, sum(timed.values()), least=0.0)
        ]
        if OF_A_CALL in report.step_parts:
            whole = f"{_seconds(report.step_parts[OF_A_CALL])}, shared by the steps of the call"
            of_step.append(Row(OF_A_CALL, whole))
        found.append(Part("one step:", of_step))
    return found


def table(report: Figures, advice: Sequence[str]) -> str:
    """Returns the figures of a report as a table of a few lines, with advice below it.

    Args:
        report: The figures.
        advice: What to change; a list of sentences.
    """
    lines = []
    for part in parts(report):
        lines.append(part.heading)
        for row in part.rows:
            if row.share is None:
                lines.append(f"  {row.name:<{_WIDTH}}  {row.text}")
            else:
                lines.append(f"  {row.name:<{_WIDTH}}{row.text:>9}{100 * row.share:7.1f} %")
    return "\n".join([*lines, *(f"- {sentence}" for sentence in advice)])


def html_table(report: Figures, advice: Sequence[str]) -> str:
    """Returns the same as `table` as HTML, for notebooks.

    Args:
        report: The figures.
        advice: What to change; a list of sentences.
    """
    lines = ["<table>"]
    for part in parts(report):
        lines.append(f'<tr><th colspan="3" {_LEFT}>{escape(part.heading)}</th></tr>')
        for row in part.rows:
            name = f"<td {_LEFT}>{escape(row.name)}</td>"
            if row.share is None:
                values = f'<td colspan="2" {_LEFT}>{escape(row.text)}</td>'
            else:
                values = f"<td>{escape(row.text)}</td><td>{100 * row.share:.1f} %</td>"
            lines.append(f"<tr>{name}{values}</tr>")
    lines.append("</table>")
    if advice:
        lines.append("<ul>")
        lines += [f"<li>{escape(sentence)}</li>" for sentence in advice]
        lines.append("</ul>")
    return "\n".join(lines)


def _phases(report: Figures) -> dict[str, float]:
    """Returns the seconds of each phase by the name to show.

    The phase "resuming" is only the search for a snapshot if none was found.
    """
    looked = {} if report.restores else {"resuming": "looking for a snapshot"}
    return {looked.get(name, name): seconds for name, seconds in report.phases.items()}


def _times(seconds: Mapping[str, float], whole: float, least: float = _LEAST) -> list[Row]:
    return [
        Row(name, _seconds(value), value / whole if whole else 0.0)
        for name, value in seconds.items()
        if value >= least * whole
    ]


def _examples(report: Figures) -> str:
    seen, expected = report.total_examples, report.expected_examples
    if seen is None:
        return "not counted"
    if expected is None:
        return f"{seen:,}"
    return f"{seen:,} of {expected:,}" + (", fewer than all epochs have" if seen < expected else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _seconds(value: float) -> str:
    if value >= 600:
        return f"{value / 60:,.1f} min"
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(value: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value} bytes"
