"""Makes the line of Keras' progress bar fit into a terminal, with what kfit adds to it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kfit.heartbeat.terminal import cut, width_of, without_colors

_SHORTEST_BAR = 3
_BAR = re.compile("(?:\x1b\\[32m(?P<done>━+)\x1b\\[0m)?\x1b\\[37m(?P<rest>━*)\x1b\\[0m")
_BAR_AND_SPACE = re.compile(f"{_BAR.pattern} ")
# In a line without a bar (`verbose=2`) it has a dash of its own.
_TIME_OF_STEP = re.compile(r"(?: -)? \d+(?:us|ms|s)/\w+(?= - |$)")


def bar_line(
    line: str,
    extras: Sequence[str],
    columns: int,
    *,
    colors: bool = True,
    is_last: bool = False,
    is_timed: bool = True,
) -> str:
    """Returns a line of the bar with additions, as wide as the terminal at most.

    If it is too wide, the bar itself becomes shorter first. Then the time of a step is left out,
    which the examples per second tell as well, then the additions, the first one first, and then
    the bar itself. If it is still too wide, the last of Keras' metrics are left out, but the last
    state of the line is wrapped between two metrics.

    Args:
        line: The line as Keras prints it.
        extras: What is added at the end, such as "21,000 examples/s".
        columns: The greatest width; 0 for no limit.
        colors: Whether colors are kept. Without colors the part of the bar that is left is thin.
        is_last: Whether the line ends in this state.
        is_timed: Whether the time of a step is known; if not, it is left out.
    """
    finish = (lambda text: text) if colors else without_colors
    line = line if is_timed else _TIME_OF_STEP.sub("", line)
    whole = " - ".join([line, *extras])
    if not columns:
        return finish(whole)
    without_time = _TIME_OF_STEP.sub("", line)
    tries = [(line, extras), (without_time, extras)]
    tries += [
        (base, extras[n:]) for n in range(1, len(extras) + 1) for base in (line, without_time)
    ]
    for base, added in tries:
        text = " - ".join([base, *added])
        shorter = _with_shorter_bar(text, width_of(text) - columns)
        if width_of(shorter) <= columns:
            return finish(shorter)
    if is_last:
        return finish(_wrapped(_BAR_AND_SPACE.sub("", without_time), columns))
    return finish(_of_whole_metrics(_BAR_AND_SPACE.sub("", without_time), columns))


def _with_shorter_bar(text: str, excess: int) -> str:
    """Returns the line with a bar that is shorter by `excess` columns, as far as possible."""

    def shortened(bar: re.Match[str]) -> str:
        done, rest = len(bar["done"] or ""), len(bar["rest"])
        width = max(min(_SHORTEST_BAR, done + rest), done + rest - excess)
        done = done * width // max(1, done + rest)
        drawn = f"\x1b[32m{'━' * done}\x1b[0m" if done else ""
        return f"{drawn}\x1b[37m{'━' * (width - done)}\x1b[0m"

    return text if excess <= 0 else _BAR.sub(shortened, text, count=1)


def _of_whole_metrics(text: str, columns: int) -> str:
    """Returns the line without those of its last metrics for which there is no room."""
    shown, *metrics = text.split(" - ")
    for metric in metrics:
        longer = f"{shown} - {metric}"
        if width_of(longer) > columns:
            break
        shown = longer
    return cut(shown, columns)


def _wrapped(text: str, columns: int) -> str:
    """Returns the line in several lines, each with as many of the metrics as fit into it."""
    first, *metrics = text.split(" - ")
    lines = [first]
    for metric in metrics:
        longer = f"{lines[-1]} - {metric}"
        if width_of(longer) <= columns:
            lines[-1] = longer
        else:
            lines.append(f"  {metric}")
    return "\n".join(lines)
