"""The tables of the benchmark in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.contests import CONTESTS, Contest, Target
from benchmarks.turns import Measured, Results


def contest_table(contest: Contest, results: Results) -> str:
    """The figures of a contest, with a row for each contestant."""
    lines = [
        f"**{contest.title}**",
        "",
        f"| | {contest.unit} | least to most | peak memory, MB |",
        "|---|---|---|---|",
    ]
    for name, turns in results.items():
        values = [turn.value * contest.scale for turn in turns]
        memory = statistics.median(turn.memory for turn in turns)
        middle, least, most = statistics.median(values), min(values), max(values)
        lines.append(
            f"| {name} | {_told(middle)} | {_told(least)} to {_told(most)} | {memory:.0f} |"
        )
    return "\n".join([*lines, ""])


def short_table(measured: Measured) -> str:
    """The medians of all contests of speed, with a column for each library."""
    libraries = list(dict.fromkeys(_library(name) for r in measured.values() for name in r))
    libraries.sort(key=lambda library: library != "kfit")
    lines = [f"| | {' | '.join(libraries)} |", "|---" * (1 + len(libraries)) + "|"]
    for key, results in measured.items():
        contest = CONTESTS[key]
        if contest.is_of_memory:
            continue
        for devices in dict.fromkeys(_devices(name) for name in results):
            figures = {
                _library(name): _told(contest.scale * statistics.median(t.value for t in turns))
                for name, turns in results.items()
                if _devices(name) == devices
            }
            title = ", ".join(filter(None, (contest.title, devices, contest.unit)))
            cells = (figures.get(library, "") for library in libraries)
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def target_table(targets: Sequence[Target], measured: Measured) -> str:
    """The targets and the measured figures."""
    lines = ["| work | figure | target | came to | |", "|---|---|---|---|---|"]
    for target in targets:
        if target.contest not in measured:
            continue
        value = _value(target, measured)
        bound = f"at most {target.most:g}" if target.most else f"at least {target.least:g}"
        met = value <= target.most if target.most else value >= (target.least or 0)
        unit = CONTESTS[target.contest].unit
        what = f"{target.over} / {target.under}" if target.under else f"{target.over}, {unit}"
        if target.figure == "memory":
            what += ", peak memory"
        title = CONTESTS[target.contest].title
        lines.append(f"| {title} | {what} | {bound} | {value:.2f} | {'' if met else 'missed'} |")
    return "\n".join([*lines, ""])


def _value(target: Target, measured: Measured) -> float:
    """The figure of a target: the ratio of the two medians, or the median of `over`."""

    def median(name: str) -> float:
        turns = measured[target.contest][name]
        return statistics.median(getattr(turn, target.figure) for turn in turns)

    return median(target.over) / (median(target.under) if target.under else 1)


def _told(figure: float) -> str:
    """A figure with three significant digits."""
    return f"{figure:.3g}" if figure < 1000 else f"{float(f'{figure:.3g}'):,.0f}"


def _library(contestant: str) -> str:
    return contestant.partition(", ")[0]


def _devices(contestant: str) -> str:
    return contestant.partition(", ")[2]
