"""plot_history: what is drawn, of what, and that it can be read on light and dark pages."""

import csv
import io
import itertools
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import keras
import matplotlib as mpl
import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import kfit
from kfit.plots.plot_history import COLORS, INK
from tests.sweeps import only

HISTORY = {
    "accuracy": [0.5, 0.7, 0.9, 0.8],
    "loss": [4.0, 3.0, 2.0, 1.0],
    "val_accuracy": [0.4, 0.8, 0.7, 0.7],
    "val_loss": [4.0, 2.0, float("nan"), 3.0],
}


def lines(axes: Any) -> list[tuple[list[float], list[float], str]]:
    return [
        ([*map(float, line.get_xdata())], [*map(float, line.get_ydata())], line.get_linestyle())
        for line in axes.get_lines()
    ]


def titles(figure: Any) -> list[tuple[str, str]]:
    axes = [each for each in figure.axes if each.axison]
    return [(each.get_title("left"), each.get_title("right")) for each in axes]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_panel_a_metric() -> None:
    figure = kfit.plot_history(HISTORY)
    assert titles(figure) == [
        ("loss", "best val 2, epoch 2"),
        ("accuracy", "best val 0.8, epoch 2"),
    ]
    assert lines(figure.axes[1]) == [
        ([1, 2, 3, 4], HISTORY["accuracy"], "-"),
        ([1, 2, 3, 4], HISTORY["val_accuracy"], "--"),
        ([2], [0.8], "-"),  # the ring, a line of one point
    ]
    assert len({line.get_color() for line in figure.axes[1].get_lines()}) == 1
    gap = figure.axes[0].get_lines()[-1]
    assert (list(gap.get_xdata()), gap.get_marker(), gap.get_color()) == ([3], "x", INK)
    assert figure.axes[0].get_lines()[0].get_color() != figure.axes[1].get_lines()[0].get_color()
    assert legend(figure) == ["training", "validation", "best epoch", "NaN or infinity"]


def test_one_epoch_an_array_and_a_misspelled_name() -> None:
    figure = kfit.plot_history({"f1": [[0.1, 0.2]], "val_f1": [[0.2, 0.3]], "loss": [1.0]})
    loss, f1 = figure.axes
    assert loss.get_xlim() == f1.get_xlim() == (0.5, 1.5)
    assert list(loss.get_xticks()) == [1]
    assert [text.get_text() for text in f1.get_legend().get_texts()] == ["f1/0", "f1/1"]
    assert [line.get_color() for line in f1.get_lines()] == [*COLORS[:2], *COLORS[:2]]
    assert loss.get_legend() is None
    with pytest.raises(ValueError, match=r"Received: \['los'\]\. Did you mean 'loss'\?$"):
        kfit.plot_history({"loss": [1.0]}, ["los"])


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([np.float32(0.001)] * 4, ["0.001"]),  # as Keras logs a learning rate
        ([0.001, float(np.float32(0.001))], ["0.001"]),
        ([3e-7] * 4, ["3e-07"]),
        ([0.0] * 4, ["0"]),
        ([123456.0, float("nan")], ["123456"]),
    ],
)
def test_a_constant_has_one_tick(values: list[float], ticks: list[str]) -> None:
    figure = kfit.plot_history({"learning_rate": values})
    (axes,) = figure.axes
    figure.draw_without_rendering()
    assert [text.get_text() for text in axes.get_yticklabels()] == ticks
    low, high = axes.get_ylim()
    assert low < values[0] < high


def test_ticks_are_values_and_not_differences_from_one() -> None:
    figure = kfit.plot_history({"accuracy": [0.99999, 0.999991, 0.999992]})
    (axes,) = figure.axes
    figure.draw_without_rendering()
    assert axes.yaxis.get_offset_text().get_text() == ""
    assert "0.9999900" in [text.get_text() for text in axes.get_yticklabels()]


def test_what_a_fit_returns(tiny: Any) -> None:
    """The metrics of the model say which direction is the better one."""

    class Wrong(keras.metrics.Mean):
        _direction = "down"

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            is_wrong = keras.ops.not_equal(keras.ops.argmax(y_pred, 1), keras.ops.cast(y, "int32"))
            return super().update_state(keras.ops.cast(is_wrong, "float32"))

    model = tiny.model(metrics=[Wrong(name="wrong")])
    trainer = kfit.Trainer(model, tiny.strategy(1))
    x, y = tiny.data(40)
    options: Any = {"epochs": 4, "initial_epoch": 1, "verbose": 0, "validation_freq": 2}
    history = trainer.fit(x, y, validation_data=(x, y), **options)
    figure = kfit.plot_history(history, validation_freq=2)
    shown = {axes.get_title("left"): axes for axes in figure.axes}
    assert lines(shown["wrong"])[0][0] == [2, 3, 4]
    assert lines(shown["wrong"])[1][0] == [2, 4]
    best = np.argmin(history.history["val_wrong"])
    assert shown["wrong"].get_title("right").endswith(f"epoch {[2, 4][best]}")
    with pytest.raises(ValueError, match="`validation_freq` must be that of `fit`: 'val_"):
        kfit.plot_history(history)


@pytest.mark.long
def test_where_training_resumed(tiny: Any, tmp_path: Any) -> None:
    x, y = tiny.data(40)

    def fit(epochs: int, *callbacks: Any) -> Any:
        trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
        backup = kfit.callbacks.BackupAndRestore(tmp_path, save_freq=1)
        options: Any = {"batch_size": 10, "verbose": 0}
        return trainer.fit(x, y, epochs=epochs, callbacks=[backup, *callbacks], **options)

    def interrupt(epoch: int, step: int) -> Any:
        class Interrupts(kfit.callbacks.TrainingCallback):
            def is_due(self) -> bool:
                at = self.training.progress
                return (at.epoch, at.step_in_epoch) == (epoch, step)

            def on_due(self) -> None:
                self.training.interrupted = True

        return Interrupts()

    from kfit.checkpoint import fits

    fit(5, interrupt(1, 2))
    fits.forget()
    fit(5, interrupt(3, 1))
    fits.forget()
    history = fit(5)
    fits.forget()
    assert history.epoch == [0, 1, 2, 3, 4]
    assert history.resumed_at == [1.5, 3.25]
    figure = kfit.plot_history(history, "loss")
    dotted = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert [float(line.get_xdata()[0]) for line in dotted] == [1.5, 3.25]
    assert legend(figure) == ["training", "best epoch", "resumed"]


def test_files(tiny: Any, tmp_path: Any) -> None:
    """A CSVLogger's with epochs that were not validated, and the event files of either callback."""
    x, y = tiny.data(40)
    callbacks = [
        keras.callbacks.CSVLogger(tmp_path / "log.csv", separator=";"),
        keras.callbacks.TensorBoard(tmp_path / "keras"),
        kfit.callbacks.TensorBoard(tmp_path / "kfit", write_steps_per_second=True),
    ]
    options: Any = {"epochs": 4, "verbose": 0, "validation_freq": 2, "callbacks": callbacks}
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    history = trainer.fit(x, y, validation_data=(x, y), **options)
    expected = kfit.plot_history(history, ["loss", "accuracy"], validation_freq=2)
    for name in ("log.csv", "keras", "kfit"):
        figure = kfit.plot_history(tmp_path / name, metrics=["loss", "accuracy"])
        assert titles(figure) == titles(expected), name
        for drawn, wanted in zip(figure.axes, expected.axes, strict=True):
            for (x1, y1, style1), (x2, y2, style2) in zip(lines(drawn), lines(wanted), strict=True):
                assert (x1, style1) == (x2, style2)
                np.testing.assert_allclose(y1, y2, rtol=1e-5)
    names = [name for name, _ in titles(kfit.plot_history(tmp_path / "kfit"))]
    assert {"loss", "steps_per_second"} <= set(names)
    assert not any(name.startswith("seconds/") for name in names)


def test_the_direction_is_given_or_nothing_is_marked() -> None:
    history = {"mine": [1.0, 3.0, 2.0], "f1": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]}
    assert [right for _, right in titles(kfit.plot_history(history))] == ["", ""]
    figure = kfit.plot_history(history, mode={"mine": "max"})
    assert titles(figure) == [("mine", "best 3, epoch 2"), ("f1", "")]
    assert len(figure.axes[1].get_lines()) == 2


@pytest.mark.parametrize("count", only([4], [1, 4, 7]))
def test_any_number_of_panels(count: int, tmp_path: Any) -> None:
    figure = kfit.plot_history({f"m{index}": [1.0, 2.0] for index in range(count)})
    assert len(titles(figure)) == count
    figure.savefig(tmp_path / "picture.png")


LONG = "sparse_top_k_categorical_accuracy"


@pytest.mark.parametrize(
    ("names", "size"),
    [
        (["loss"], None),
        (["loss"], (2.2, 2.2)),
        (["loss", LONG], None),
        pytest.param(["loss", "accuracy", LONG], None, marks=pytest.mark.long),
        pytest.param(["loss", "accuracy", LONG], (4, 3), marks=pytest.mark.long),
        pytest.param(["loss", "accuracy", LONG], (4, 7), marks=pytest.mark.long),
        pytest.param(["loss", "accuracy", LONG], (12, 3), marks=pytest.mark.long),
    ],
)
def test_all_text_can_be_read(names: list[str], size: Any) -> None:
    """No text is cut by the edge of the figure, and none lies on another."""
    values = [0.1 * epoch for epoch in range(1, 14)]
    history = keras.callbacks.History()
    history.history = {f"{prefix}{name}": values for name in names for prefix in ("", "val_")}
    history.epoch = list(range(13))
    history.resumed_at = [5.5]
    given = None if size is None else mpl.figure.Figure(figsize=size)
    figure = kfit.plot_history(history, mode=dict.fromkeys(names, "max"), figure=given)
    figure.savefig(io.BytesIO(), format="png")
    boxes = {}
    for axes in (each for each in figure.axes if each.axison):
        for text in (axes._left_title, axes._right_title, axes.xaxis.label):
            box = boxes[id(axes), text.get_text()] = text.get_window_extent()
            count = 1 + text.get_text().count("\n")
            box.y0 += box.height / count * (count > 1)  # the last line is shared with the best
        boxes[id(axes), "axes"] = axes.get_window_extent()
        for tick in axes.xaxis.get_major_ticks():
            if axes.get_xlim()[0] <= tick.get_loc() <= axes.get_xlim()[1]:
                boxes[id(axes), f"tick {tick.get_loc()}"] = tick.label1.get_window_extent()
    assert legend(figure) == ["training", "validation", "best epoch", "resumed"]
    boxes[0, "legend"] = figure.legends[0].get_window_extent()
    width, height = figure.get_size_inches() * figure.dpi
    for name, box in boxes.items():
        assert 0 <= box.x0 < box.x1 <= width, name
        assert 0 <= box.y0 < box.y1 <= height, name
    for one, other in itertools.combinations(boxes.items(), 2):
        inner = one[1].shrunk(0.9, 0.9), other[1].shrunk(0.9, 0.9)
        assert not inner[0].overlaps(inner[1]), (one, other)


def test_a_metric_without_numbers() -> None:
    figure = kfit.plot_history({"loss": [1.0, 2.0], "odd": [float("nan"), float("inf")]})
    says = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert says == [[], ["no numbers"]]
    assert list(figure.axes[1].get_yticks()) == []
    assert figure.axes[1].get_xlim() == (0.5, 2.5)


def luminance(color: Any) -> float:
    """The relative luminance of WCAG 2.2: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("page", ["#ffffff", "#1e1e1e", "#111111"])
def test_the_colors_can_be_read(page: str) -> None:
    for color, least in [*((color, 3.0) for color in COLORS), (INK, 3.9)]:
        low, high = sorted([luminance(color), luminance(page)])
        assert (high + 0.05) / (low + 0.05) >= least, (color, page)


def test_nothing_of_the_program_is_changed(tmp_path: Any) -> None:
    import matplotlib.pyplot as plt

    before = dict(mpl.rcParams), plt.get_fignums()
    kfit.plot_history(HISTORY)
    assert (dict(mpl.rcParams), plt.get_fignums()) == before
    mine = plt.figure()
    assert kfit.plot_history(HISTORY, figure=mine) is mine
    plt.close(mine)


def test_the_background_is_transparent(tmp_path: Any) -> None:
    import matplotlib.pyplot as plt

    with plt.style.context("dark_background"):
        kfit.plot_history(HISTORY).savefig(tmp_path / "picture.png")
    picture = plt.imread(tmp_path / "picture.png")
    assert picture[0, 0, 3] == 0
    assert (picture[..., 3] == 0).mean() > 0.7
    drawn = picture[picture[..., 3] == 1]
    assert not (drawn[:, :3] > 0.95).all(axis=1).any()  # none of the style's white text


@pytest.mark.parametrize("own", only([True], [False, True]))
def test_a_picture_may_have_a_background(own: bool, tmp_path: Any) -> None:
    given = mpl.figure.Figure() if own else None
    figure = kfit.plot_history(HISTORY, figure=given)
    figure.savefig(tmp_path / "white.png", facecolor="white")
    figure.savefig(tmp_path / "none.png")
    assert list(mpl.image.imread(tmp_path / "white.png")[0, 0]) == [1, 1, 1, 1]
    assert mpl.image.imread(tmp_path / "none.png")[0, 0, 3] == 0


def test_a_notebook_shows_it_once(tmp_path: Any) -> None:
    assert kfit.plot_history(HISTORY)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("history", "options", "message"),
    [
        (3, {}, "`history` must be what `fit` returned"),
        ({}, {}, "`history` has no losses or metrics"),
        ({"loss": []}, {}, "`history` has no losses or metrics"),
        (HISTORY, {"metrics": ["acc"]}, r"`metrics` must be some of \['loss', 'accuracy'\]"),
        (HISTORY, {"metrics": []}, "`metrics` must be some of"),
        (HISTORY, {"mode": {"accuracy": "up"}}, "`mode` must map some of"),
        (HISTORY, {"mode": "max"}, "`mode` must map some of"),
    ],
)
def test_wrong_arguments(history: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kfit.plot_history(history, **options)


def test_a_file_that_is_no_log(tmp_path: Any) -> None:
    with (tmp_path / "other.csv").open("w") as file:
        csv.writer(file).writerows([["a", "b"], [1, 2]])
    with pytest.raises(ValueError, match="`history` must be a file of keras"):
        kfit.plot_history(tmp_path / "other.csv")
    with pytest.raises(ValueError, match="`history` has no losses or metrics"):
        kfit.plot_history(tmp_path)


def test_without_matplotlib(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "kfit.plots.shown_figure", raising=False)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib") as raised:
        kfit.plot_history(HISTORY)
    if sys.version_info >= (3, 11):  # Python 3.10 keeps the whole traceback
        assert len(traceback.extract_tb(raised.value.__traceback__)) == 1


def test_importing_kfit_imports_no_matplotlib() -> None:
    program = "import sys, kfit; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_the_folder_is_a_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kfit.plot_history(tmp_path / "nothing.csv")


def test_what_is_no_curve_is_left_out_and_said() -> None:
    matrix = [np.eye(2)] * 4
    history = {**HISTORY, "note": ["a"] * 4, "confusion": matrix, "p$_{1}$ $": [1, None, 2, 3]}
    figure = kfit.plot_history(history)
    assert [name for name, _ in titles(figure)] == ["loss", "accuracy", "p$_{1}$ $"]
    figure.savefig(io.BytesIO())
    with pytest.warns(UserWarning, match="'rate' is not drawn: it has 2 values for 4 epochs"):
        kfit.plot_history({**HISTORY, "rate": [1.0, 2.0]})
    with pytest.raises(ValueError, match="`history` must have a list of values for each loss"):
        kfit.plot_history({"loss": 1.0, "accuracy": 0.5})
