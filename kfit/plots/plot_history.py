"""`plot_history`: draws the losses and metrics of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kfit.callbacks.monitor import Mode
from kfit.heartbeat.tracebacks import for_user
from kfit.lazy import closest_name
from kfit.plots.best_epoch import best_place
from kfit.plots.curves import Curve, Curves, curves_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kfit.plots.sizes import Sizes

COLORS = ("#2f82d0", "#d9622b", "#2a9a5b", "#a866c4", "#b58215", "#d2548a")
"""Colors of lines, each with a contrast of at least 3 to a white and to a dark background."""
INK = "#7b7b7b"
"""The color of text, with a contrast of at least 4 to a white and to a dark background."""
_FEW = 30
"""Up to this many points, each of them has a dot."""
_ROUNDING = 2.0**-22
"""Values that differ by less than this share are equal: a weight of float32 rounds so."""


@for_user
def plot_history(
    history: Any,
    metrics: Sequence[str] | None = None,
    *,
    validation_freq: int | Sequence[int] = 1,
    mode: Mapping[str, Mode] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draws the losses and metrics of a training, each in a panel of its own.

    Training is a solid line, and validation a dashed line of the same color. A ring marks the best
    epoch, by the validation if there is one, a cross on the x axis a value that is NaN or infinite,
    and a dotted line where training has resumed after a restart. Of a metric that returns an array,
    each value has a line of its own. The background is transparent, and the colors can be read on
    light and dark pages. A picture with a background is saved by `savefig("history.png",
    facecolor="white")`.

    No window is opened, and no setting of matplotlib is changed. A notebook shows the result of the
    last line of a cell. In a program, save the figure, or pass `figure=plt.figure()` and call
    `plt.show()`.

    Example:
        >>> history = trainer.fit(x, y, validation_data=(xv, yv), epochs=20)
        >>> kfit.plot_history(history).savefig("history.png")

    Args:
        history: What `fit` returned; its dict `history.history`; the path of a file of
            `keras.callbacks.CSVLogger`; or the `log_dir` of a TensorBoard callback whose x axis is
            the epoch.
        metrics: The names of the losses and metrics to draw, without `val_`; by default all.
        validation_freq: As it was given to `fit`. It is needed for a History or a dict if not every
            epoch was validated.
        mode: Whether a smaller ("min") or a larger ("max") value is better, by the name of a
            metric. By default it is "min" for losses, and what a metric itself declares. Panels
            of metrics that declare nothing have no best epoch.
        figure: An empty figure to draw into; by default a new one. Its size decides how many panels
            stand beside each other, and how large the text is.

    Returns:
        The figure.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
        ValueError: If an argument is wrong.
    """
    drawn = curves_of(history, validation_freq)
    names = _names(drawn, metrics)
    modes = _checked_modes(mode, names)
    figure, sizes = _figure(figure, len(names))
    rows = math.ceil(len(names) / sizes.columns)
    panels = figure.subplots(rows, sizes.columns, squeeze=False)
    has_best = False
    has_gaps = False
    for index, axes in enumerate(panels.flat):
        if index >= len(names):
            axes.set_axis_off()
            continue
        color = COLORS[index % len(COLORS)]
        mode_here = modes.get(names[index], "auto")
        has_best |= _draw(axes, names[index], drawn, mode_here, color, sizes)
        has_gaps |= _mark_gaps(axes, names[index], drawn, sizes)
    lines = {
        "training": True,
        "validation": any(f"val_{name}" in drawn.by_name for name in names),
        "best epoch": has_best,
        "resumed": bool(drawn.resumed_at),
        "NaN or infinity": has_gaps,
    }
    _explain(figure, [label for label, is_drawn in lines.items() if is_drawn], sizes)
    return figure


def _names(drawn: Curves, metrics: Sequence[str] | None) -> list[str]:
    """Returns the names of the panels, without "val_"."""
    known = list(dict.fromkeys(name.removeprefix("val_") for name in drawn.by_name))
    known.sort(key=lambda name: name != "loss")  # the loss first
    if metrics is None:
        return known
    chosen = [metrics] if isinstance(metrics, str) else list(metrics)
    if not chosen or not set(chosen) <= set(known):
        unknown = [name for name in chosen if name not in known]
        alike = closest_name(unknown[0], known) if unknown else None
        hint = f". Did you mean {alike!r}?" if alike else ""
        raise ValueError(f"`metrics` must be some of {known}. Received: {metrics!r}{hint}")
    return chosen


def _checked_modes(mode: Mapping[str, Mode] | None, names: Sequence[str]) -> Mapping[str, Mode]:
    modes = {} if mode is None else mode
    is_right = isinstance(modes, Mapping) and set(modes.values()) <= {"min", "max", "auto"}
    if not is_right or not set(modes) <= set(names):
        raise ValueError(
            f"`mode` must map some of {list(names)} to 'min', 'max' or 'auto'. Received: {mode!r}"
        )
    return modes


def _figure(figure: Figure | None, panels: int) -> tuple[Figure, Sizes]:
    """Returns the user's figure, or a new one, with a transparent background, and its sizes."""
    try:
        from kfit.plots.shown_figure import ShownFigure
        from kfit.plots.sizes import LEGEND, PANEL, sizes_in, usual_columns
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ModuleNotFoundError(
            "`kfit.plot_history` needs matplotlib: pip install matplotlib", name="matplotlib"
        ) from None
    is_new = figure is None
    if figure is None:
        columns = usual_columns(panels)
        size = PANEL[0] * columns, PANEL[1] * math.ceil(panels / columns) + LEGEND
        figure = ShownFigure(figsize=size)
    if figure.get_layout_engine() is None:
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    figure.set_facecolor("none")
    width, height = figure.get_size_inches()
    return figure, sizes_in(float(width), float(height), panels, is_new=is_new)


def _draw(axes: Axes, name: str, drawn: Curves, mode: Mode, color: str, sizes: Sizes) -> bool:
    """Draws the panel of a metric, and returns whether it marks a best epoch."""
    _style(axes, sizes)
    curves = {key: drawn.by_name[key] for key in (name, f"val_{name}") if key in drawn.by_name}
    for key, curve in curves.items():
        columns = curve.y.T if curve.y.ndim == 2 else [curve.y]
        for index, values in enumerate(columns):
            axes.plot(
                curve.x,
                values,
                color=color if len(columns) == 1 else COLORS[index % len(COLORS)],
                linestyle="--" if key.startswith("val_") else "-",
                marker="o" if len(curve.x) <= _FEW else None,
                markersize=sizes.points(3),
                linewidth=1.8,
                label=f"{name}/{index}" if len(columns) > 1 and key == name else None,
            )
    if axes.get_legend_handles_labels()[1]:  # of a metric that returns an array
        axes.legend(frameon=False, labelcolor=INK, fontsize=sizes.points(10))
    places = np.concatenate([curve.x for curve in curves.values()])
    if places.min() == places.max():
        axes.set_xlim(float(places[0]) - 0.5, float(places[0]) + 0.5)
        axes.set_xticks([int(places[0])])
    for place in drawn.resumed_at:
        axes.axvline(place, color=INK, linestyle=":", linewidth=1.4)
    key, judged = list(curves.items())[-1]  # the validation, if there is one
    best = best_place(key, judged.y, drawn.model, mode)
    says = "" if best is None else _mark_best(axes, key, judged, best, color, sizes)
    title = sizes.title(name, says)
    named: dict[str, Any] = {"fontweight": "bold", "parse_math": False}  # a name may have a "$"
    axes.set_title(title, loc="left", color=INK, fontsize=sizes.points(12), **named)
    axes.set_title(says, loc="right", color=INK, fontsize=sizes.points(10))
    numbers = np.concatenate([curve.y[np.isfinite(curve.y)] for curve in curves.values()])
    if not numbers.size:
        _say_empty(axes, judged, sizes)
    elif np.ptp(numbers) <= _ROUNDING * np.abs(numbers).max():
        _say_constant(axes, float(numbers[0]))
    return best is not None


def _mark_gaps(axes: Axes, name: str, drawn: Curves, sizes: Sizes) -> bool:
    """Marks on the x axis where values are NaN or infinite, and returns whether there are any."""
    places: list[float] = []
    for key in (name, f"val_{name}"):
        curve = drawn.by_name.get(key)
        if curve is not None:
            is_number = np.isfinite(curve.y.reshape(len(curve.y), -1)).all(axis=1)
            places += [float(place) for place in curve.x[~is_number]]
    if places:
        cross: dict[str, Any] = {"linestyle": "", "marker": "x", "clip_on": False}
        on_axis = axes.get_xaxis_transform()
        size = sizes.points(6)
        axes.plot(
            places, [0.0] * len(places), color=INK, transform=on_axis, markersize=size, **cross
        )
    return bool(places)


def _mark_best(axes: Axes, name: str, curve: Curve, best: int, color: str, sizes: Sizes) -> str:
    """Draws a ring around the best value, and returns the text that names it."""
    x, y = curve.x[best], curve.y[best]
    ring: dict[str, Any] = {"marker": "o", "fillstyle": "none", "markeredgewidth": 1.8}
    axes.plot([x], [y], color=color, markersize=sizes.points(10), clip_on=False, **ring)
    of = " val" if name.startswith("val_") else ""
    return f"best{of} {y:.4g}, epoch {x}"


def _say_empty(axes: Axes, curve: Curve, sizes: Sizes) -> None:
    """Says in a panel that all its values are NaN or infinite."""
    axes.set_xlim(float(curve.x[0]) - 0.5, float(curve.x[-1]) + 0.5)
    axes.set_yticks([])
    middle: dict[str, Any] = {"ha": "center", "va": "center", "transform": axes.transAxes}
    axes.text(0.5, 0.5, "no numbers", color=INK, fontsize=sizes.points(12), **middle)


def _say_constant(axes: Axes, value: float) -> None:
    """Shows one value on the y axis, such as that of a learning rate, with the line through it."""
    half = abs(value) / 2 or 1.0
    axes.set_ylim(value - half, value + half)
    axes.set_yticks([value], [f"{value:.6g}"])


def _style(axes: Axes, sizes: Sizes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.patch.set_alpha(0.0)
    axes.grid(visible=True, color=INK, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=sizes.ticks))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlabel("epoch", color=INK, fontsize=sizes.points(10))
    axes.tick_params(colors=INK, labelsize=sizes.points(10))
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def _explain(figure: Figure, labels: list[str], sizes: Sizes) -> None:
    """Adds the legend, which is the same for all panels."""
    from matplotlib.lines import Line2D

    lines: dict[str, dict[str, Any]] = {
        "training": {"linestyle": "-"},
        "validation": {"linestyle": "--"},
        "best epoch": {"linestyle": "", "marker": "o", "fillstyle": "none", "markersize": 8},
        "resumed": {"linestyle": ":"},
        "NaN or infinity": {"linestyle": "", "marker": "x", "markersize": 8},
    }
    figure.legend(
        handles=[Line2D([], [], color=INK, label=label, **lines[label]) for label in labels],
        loc="outside lower center",
        ncols=sizes.legend_columns(labels),
        frameon=False,
        labelcolor=INK,
        fontsize=sizes.points(10),
    )
