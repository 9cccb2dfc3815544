"""The directive `mermaid`: draws a `flowchart TD` as SVG while the pages are built.

Only lines of the form `a --> b` are drawn. A page needs no script for such a drawing, and its
colours are those of the theme. The nodes stand in rows, so that each arrow points down; an arrow
that crosses a row passes through a place of its own there. In each row the nodes are put in the
order of the mean place of their neighbours, which leaves few crossings (the method of Sugiyama,
Tagawa and Toda, 1981).
"""

import re
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

_ROW, _HEIGHT, _LETTER, _GAP = 84, 30, 8.2, 26


@dataclass(frozen=True)
class Node:
    """A place in a row: a box with a name, or where an arrow passes (`name` is empty)."""

    row: int
    name: str = ""
    arrow: tuple[str, str] | None = None

    @property
    def width(self) -> float:
        """The width in pixels, with the gap to the next place."""
        return (len(self.name) * _LETTER + 22 if self.name else 4) + _GAP


def read(text: str) -> list[tuple[str, str]]:
    """Reads the arrows of a drawing.

    Args:
        text: The drawing: `flowchart TD`, then a line `a --> b` for each arrow.

    Returns:
        The arrows, as pairs of names.

    Raises:
        ValueError: If a line is none of these.
    """
    first, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [re.fullmatch(r"(\w+) --> (\w+)", line) for line in lines]
    wrong = [line for line, match in zip(lines, found, strict=True) if match is None]
    if first != "flowchart TD" or wrong:
        raise ValueError(
            f"expected `flowchart TD` and lines `a --> b`. Received: {[first, *wrong]}"
        )
    return [(match[1], match[2]) for match in found if match is not None]


def rows_of(arrows: list[tuple[str, str]]) -> dict[str, int]:
    """Returns the row of each node: one below the lowest node that points to it.

    Args:
        arrows: The arrows, which form no cycle.

    Raises:
        ValueError: If the arrows form a cycle.
    """
    row = dict.fromkeys([name for arrow in arrows for name in arrow], 0)
    for _ in row:
        changed = False
        for above, below in arrows:
            if row[below] <= row[above]:
                row[below], changed = row[above] + 1, True
        if not changed:
            return row
    raise ValueError("The arrows form a cycle.")


def paths_of(arrows: list[tuple[str, str]], row: dict[str, int]) -> list[list[Node]]:
    """Returns the places that each arrow connects, from its first to its last row."""
    return [
        [
            Node(row[above], above),
            *(Node(each, arrow=(above, below)) for each in range(row[above] + 1, row[below])),
            Node(row[below], below),
        ]
        for above, below in arrows
    ]


def arranged(paths: list[list[Node]]) -> dict[Node, float]:
    """Puts the places of each row in order.

    Returns:
        The x of the middle of each place, in pixels.
    """
    links = [link for path in paths for link in pairwise(path)]
    levels: dict[int, list[Node]] = {}
    for node in dict.fromkeys(node for path in paths for node in path):
        levels.setdefault(node.row, []).append(node)
    x: dict[Node, float] = {}
    for turn in range(24):
        ends = [(b, a) for a, b in links] if turn % 2 == 0 else links
        for level in sorted(levels, reverse=turn % 2 == 1):
            near = {node: [x[b] for a, b in ends if a == node and b in x] for node in levels[level]}
            mean = {node: sum(at) / len(at) for node, at in near.items() if at}
            levels[level].sort(key=lambda node: mean.get(node, x.get(node, 0.0)))
            left = -sum(node.width for node in levels[level]) / 2
            for node in levels[level]:
                x[node], left = left + node.width / 2, left + node.width
    first = min(x[node] - node.width / 2 for node in x)
    return {node: at - first for node, at in x.items()}


def draw(text: str) -> str:
    """Draws a flowchart.

    Args:
        text: The drawing, as for `read`.

    Returns:
        The drawing as an SVG element in a `figure`.
    """
    arrows = read(text)
    paths = paths_of(arrows, rows_of(arrows))
    x = arranged(paths)
    width = max(x[node] + node.width / 2 for node in x)
    height = max(node.row for node in x) * _ROW + _HEIGHT + 4
    parts = [_curve(path, x) for path in paths] + [_box(node, x[node]) for node in x if node.name]
    label = escape("; ".join(f"{above} imports {below}" for above, below in arrows))
    return (
        f'<figure class="drawing"><svg viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def _curve(path: list[Node], x: dict[Node, float]) -> str:
    steps = [f"M {x[path[0]]:.1f} {path[0].row * _ROW + _HEIGHT}"]
    for above, below in pairwise(path):
        top, bottom = above.row * _ROW + _HEIGHT, below.row * _ROW - (7 if below.name else 0)
        middle = (top + bottom) / 2
        steps.append(
            f"C {x[above]:.1f} {middle} {x[below]:.1f} {middle} {x[below]:.1f} {bottom}"
            + ("" if below.name else f" v {_HEIGHT}")
        )
    at, tip = x[path[-1]], path[-1].row * _ROW
    head = f'<path class="arrow" d="M {at:.1f} {tip} l -4 -8 h 8 z"/>'
    return f'<path class="line" d="{" ".join(steps)}"/>{head}'


def _box(node: Node, at: float) -> str:
    width, top = node.width - _GAP, node.row * _ROW
    return (
        f'<rect class="box" x="{at - width / 2:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{_HEIGHT}" rx="5"/><text x="{at:.1f}" y="{top + 20}" font-size="14" '
        f'text-anchor="middle">{escape(node.name)}</text>'
    )


class Mermaid(Directive):
    """Draws the flowchart that is its content."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Returns the drawing as HTML."""
        return [nodes.raw("", draw("\n".join(self.content)), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive to Sphinx."""
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}
