"""What fits into a figure: the number of columns, the size of text, and where it is wrapped.

Importing this module imports matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

PANEL = (4.4, 3.2)
"""The width and the height of a panel of a new figure, in inches."""
LEGEND = 0.4
"""The height of the legend, in inches."""
_FULL = (3.0, 2.2)
"""In a panel of this width and height, in inches, text has its full size."""
_SMALLEST = 0.6
"""What text is multiplied by in the smallest panels."""
_BESIDE = 0.85
"""The width of a panel, in inches, that is not the axes': the labels of the y axis, and margins."""
_POINTS = 72
"""The points of an inch."""
_HANDLE = 5.2
"""The width of an entry in a legend without its text, in font sizes: the line, and gaps."""


@dataclass
class Sizes:
    """The sizes in a figure.

    Attributes:
        columns: The number of panels beside each other.
        width: The width of a panel, in inches.
        scale: What the sizes of text are multiplied by: 1, or less in a small panel.
    """

    columns: int
    width: float
    scale: float

    def points(self, size: float) -> float:
        """Returns a font size, given the one of a panel with room enough."""
        return size * self.scale

    @property
    def ticks(self) -> int:
        """The largest number of ticks on the x axis."""
        return max(2, min(8, int(2 * self.width / self.scale)))

    def title(self, name: str, beside: str) -> str:
        """Returns the title of a panel, in as many lines as it needs.

        Args:
            name: The name of the metric.
            beside: What stands to the right of the last line. If there is no room for it, the last
                line is left empty.
        """
        room = (self.width - _BESIDE * self.scale) * _POINTS

        def fits(text: str) -> bool:
            return text_width(text, self.points(12), bold=True) <= room

        *lines, last = lines_that_fit(name, fits)
        taken = text_width(f"{last}  ", self.points(12), bold=True)
        is_free = not beside or taken + text_width(beside, self.points(10)) <= room
        return "\n".join([*lines, last] if is_free else [*lines, last, ""])

    def legend_columns(self, labels: list[str]) -> int:
        """Returns how many entries of a legend stand beside each other in the figure."""
        size = self.points(10)
        widest = max(text_width(label, size) for label in labels) + _HANDLE * size
        most = max(1, int(self.width * self.columns * _POINTS / widest))
        rows = math.ceil(len(labels) / most)
        return math.ceil(len(labels) / rows)


def usual_columns(panels: int) -> int:
    """Returns the number of columns of a new figure."""
    return panels if panels <= 3 else 2 if panels == 4 else 3


def sizes_in(width: float, height: float, panels: int, *, is_new: bool) -> Sizes:
    """Returns the sizes in a figure.

    Args:
        width: The width of the figure, in inches.
        height: Its height.
        panels: The number of panels.
        is_new: Whether the figure has the size that panels need. In any other, the number of
            columns is the one with which the panels are the least too small.
    """

    def panel(columns: int) -> tuple[float, float]:
        return width / columns, (height - LEGEND) / math.ceil(panels / columns)

    def room(columns: int) -> float:
        return min(has / wants for has, wants in zip(panel(columns), PANEL, strict=True))

    columns = usual_columns(panels) if is_new else max(range(1, panels + 1), key=room)
    full = min(has / wants for has, wants in zip(panel(columns), _FULL, strict=True))
    return Sizes(columns, width / columns, max(_SMALLEST, min(1.0, full)))


def lines_that_fit(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Breaks a text into lines, after underscores and the like if a line has one.

    Args:
        text: The text.
        fits: Says whether a text is short enough for a line.
    """
    lines = []
    while not fits(text) and len(text) > 1:
        most = max((end for end in range(1, len(text)) if fits(text[:end])), default=1)
        end = max(text.rfind(mark, 0, most) for mark in "_- /") + 1 or most
        lines.append(text[:end])
        text = text[end:]
    return [*lines, text]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Returns the width of a line of text, in points."""
    font = FontProperties(weight="bold" if bold else "normal")
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().width) if text else 0.0
