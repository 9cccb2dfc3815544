"""Draws the figure of the README from the README's own tables.

python -m benchmarks.figure          writes docs/figures/light.svg and docs/figures/dark.svg

The left part shows the table "The same numbers", the right part the table "Speed". So the figure
has no numbers of its own: run this command after a command that has changed one of the tables.
`pip install -e ".[examples]"` installs matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
README = _ROOT / "README.md"
FIGURES = _ROOT / "docs" / "figures"
WORK = {
    "Small MLP, batch 32: `fit`": "small MLP: fit",
    "The same with a callback on every batch": "fit, callback on every batch",
    "The same MLP: `evaluate`": "evaluate",
    "The same MLP: `predict`": "predict",
    "CNN of the multi-worker tutorial, batch 128, 1 process": "CNN: 1 device",
    "CNN of the multi-worker tutorial, batch 128, 2 mirrored": "CNN: 2 devices",
    "2 GB of float32": "2 GB in memory",
    "2 GB in a file": "2 GB in a file",
    "A warm call of `train_on_batch`, ms": "train_on_batch",
    "A warm call of `test_on_batch`, ms": "test_on_batch",
    "A warm call of `predict_on_batch`, ms": "predict_on_batch",
    "A warm call of `fit`, 1 step": "fit, 1 step",
    "A warm call of `fit`, 10 steps": "fit, 10 steps",
    "A warm call of `predict`": "predict, 1 batch",
    "A warm call of `evaluate`": "evaluate, 10 batches",
    "From the call of `fit`": "first step",
    "ResNet-50: processor time until its first step has ended, 1 device": "ResNet-50: first step",
    "ResNet-50: processor time until its first step has ended, 2 mirrored": "on 2 devices",
    "ResNet-50: processor time until its first step has ended, 4 mirrored": "on 4 devices",
}
"""By the first words of a row in which kfit and Keras have a time: its name in the figure."""


@dataclass(frozen=True)
class Colours:
    """The colours of a figure: of its text, and of the bars of kfit and of Keras."""

    text: str
    kfit: str
    keras: str


COLOURS = {
    "light": Colours(text="#1f2328", kfit="#0969da", keras="#afb8c1"),
    "dark": Colours(text="#e6edf3", kfit="#4493f8", keras="#656c76"),
}


def table_under(title: str, text: str) -> dict[str, dict[str, str]]:
    """The first table under a heading of the README: by its rows' first cells, by column.

    Args:
        title: The heading.
        text: The README.

    Raises:
        ValueError: If there is no such heading, or no table under it.
    """
    _, found, section = text.partition(f"\n## {title}\n")
    section = section.partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    if not found or len(lines) < 3:
        raise ValueError(f"README.md needs a section {title!r} with a table.")
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {first: dict(zip(head[1:], rest, strict=True)) for first, *rest in rows}


def differences(text: str) -> dict[str, tuple[float, float]]:
    """By case: the difference from one device on 2 replicas, with kfit and with Keras.

    Cases in which a library has no number, because it crashes, are left out.
    """
    return _numbers(table_under("The same numbers", text), "kfit, 2 replicas", "keras, 2 replicas")


def ratios(text: str) -> dict[str, float]:
    """By work: how many times as long as kfit Keras takes.

    Raises:
        KeyError: If `WORK` has no name for a row.
    """
    found = {}
    for title, (kfit, keras) in _numbers(table_under("Speed", text), "kfit", "Keras 3").items():
        names = [name for beginning, name in WORK.items() if title.startswith(beginning)]
        if len(names) != 1:
            raise KeyError(f"WORK needs one name for the row {title!r}. It has: {names}")
        found[names[0]] = keras / kfit
    return found


def _numbers(
    table: Mapping[str, Mapping[str, str]], one: str, other: str
) -> dict[str, tuple[float, float]]:
    """The rows of a table that have numbers in both columns, and the two numbers."""
    found = {}
    for title, row in table.items():
        # A cell without a number is empty, or says what failed.
        if row[one][:1].isdigit() and row[other][:1].isdigit():
            found[title] = (_number(row[one]), _number(row[other]))
    return found


def _number(cell: str) -> float:
    return float(cell.replace(",", ""))


def draw(text: str, colours: Colours, path: Path) -> None:
    """Draws the figure in one set of colours.

    Args:
        text: The README.
        colours: Of text and bars.
        path: The SVG file to write.
    """
    import matplotlib.pyplot as plt

    settings: Any = {  # matplotlib before 3.11 types them otherwise
        "svg.fonttype": "none",  # text stays text, in the reader's own font
        "svg.hashsalt": "kfit",  # the same file each time
        "font.family": "sans-serif",
        "font.size": 11,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"),
            colours.text,
        ),
    }
    with plt.rc_context(settings):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 5.4))
        _draw_differences(left, differences(text), colours)
        _draw_ratios(right, ratios(text), colours)
        figure.tight_layout(w_pad=3)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _draw_differences(axis: Any, found: Mapping[str, tuple[float, float]], its: Colours) -> None:
    smallest = 10 ** math.floor(math.log10(min(min(pair) for pair in found.values())) - 0.5)
    for row, pair in enumerate(found.values()):
        for value, name, shift in zip(pair, ("kfit", "Keras 3"), (-0.2, 0.2), strict=True):
            colour = its.kfit if name == "kfit" else its.keras
            axis.barh(row + shift, value - smallest, 0.36, left=smallest, color=colour)
            axis.text(value * 1.3, row + shift, f"{name}: {value:.0e}", va="center", fontsize=8.5)
    axis.set(xscale="log", xlim=(smallest, 100), title="Difference of 2 replicas from 1 device")
    axis.set_xlabel("largest difference of a weight (smaller is better)")
    _finish(axis, list(found))


def _draw_ratios(axis: Any, found: Mapping[str, float], its: Colours) -> None:
    for row, ratio in enumerate(found.values()):
        axis.barh(row, ratio, 0.5, color=its.kfit)
        axis.text(ratio + 0.15, row, f"{ratio:.1f}", va="center", fontsize=8.5)
    axis.axvline(1, color=its.keras, linestyle="--")
    axis.set(xlim=(0, max(found.values()) * 1.12), title="Times as fast as Keras 3")
    axis.set_xlabel("larger is better")
    _finish(axis, list(found))


def _finish(axis: Any, names: list[str]) -> None:
    """Names the rows, from the top down, and leaves out lines that say nothing."""
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def main() -> None:
    """Draws the figure for light and for dark pages."""
    text = README.read_text(encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    for name, colours in COLOURS.items():
        draw(text, colours, FIGURES / f"{name}.svg")
        print(FIGURES / f"{name}.svg")


if __name__ == "__main__":
    main()
