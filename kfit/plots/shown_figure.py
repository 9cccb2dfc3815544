"""A figure that notebooks show. Importing this module imports matplotlib."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that a notebook shows if it is the result of a cell.

    Notebooks show only figures of matplotlib.pyplot by themselves. Those they show even if they are
    not the result of a cell, so a figure that a function returns would appear twice.
    """

    def _repr_png_(self) -> bytes:
        """Returns the picture, for IPython."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()

    def savefig(self, fname: Any, *, transparent: bool | None = None, **kwargs: Any) -> None:
        """Saves the picture, by default without a background, whatever the style of matplotlib."""
        super().savefig(fname, transparent=transparent, **{"facecolor": "auto", **kwargs})
