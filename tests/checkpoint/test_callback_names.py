"""Each callback finds its state, also if others of its class were added or moved."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import pytest

import kfit
from kfit.checkpoint.callback_names import assigned, marks_of, named

Callbacks = Sequence[keras.callbacks.Callback]


def saved(*callbacks: keras.callbacks.Callback) -> list[dict[str, Any]]:
    return [{"callback": one.name, "marks": marks_of(one.callback)} for one in named(callbacks)]


def best(monitor: str, path: str = "best.keras") -> keras.callbacks.Callback:
    return keras.callbacks.ModelCheckpoint(path, monitor=monitor, save_best_only=True)


def ours(path: str, mode: Literal["min", "max"]) -> keras.callbacks.Callback:
    return kfit.callbacks.ModelCheckpoint(path, "f1", save_best_only=True, mode=mode)


def log(path: str) -> keras.callbacks.Callback:
    return keras.callbacks.CSVLogger(path)


def stop(monitor: str, mode: str = "auto") -> keras.callbacks.Callback:
    return keras.callbacks.EarlyStopping(monitor, mode=mode)


def decided(callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
    """Returns a callback that knows that its mode "auto" means "min", as after the first epoch."""
    vars(callback)["monitor_op"] = keras.ops.less
    return callback


# The callbacks that were saved, those that resume, and for each of these which one it was.
CASES: dict[str, tuple[Callbacks, Callbacks, list[int | None]]] = {
    "the_same": ([best("loss"), log("a")], [best("loss"), log("a")], [0, 1]),
    "one_before": ([best("loss")], [best("accuracy", "b.keras"), best("loss")], [None, 0]),
    "turned_round": ([log("a"), log("b")], [log("b"), log("a")], [1, 0]),
    "one_gone": ([log("a"), log("b")], [log("b")], [1]),
    "moved": ([best("loss", "a/b.keras")], [best("loss", "c/b.keras")], [0]),
    "one_moved": ([log("a"), log("b")], [log("c"), log("a")], [1, 0]),
    "another_monitor": ([stop("loss")], [stop("accuracy")], [None]),
    "another_class": ([log("a")], [stop("loss")], [None]),
    "turned_the_mode": ([stop("f1", "max")], [stop("f1", "min")], [None]),
    "turned_the_mode_of_ours": ([ours("a.keras", "max")], [ours("a.keras", "min")], [None]),
    "turned_from_auto": ([decided(stop("loss"))], [stop("loss", "max")], [None]),
    "auto_said_aloud": ([decided(stop("loss"))], [stop("loss", "min")], [0]),
    "one_of_each_mode": (
        [ours("a.keras", "max"), ours("b.keras", "min")],
        [ours("c.keras", "min"), ours("d.keras", "max")],
        [1, 0],
    ),
    "a_path_before_a_mode": (
        [decided(best("loss", "a.keras")), decided(best("loss", "b.keras"))],
        [best("loss", "b.keras"), best("loss", "a.keras")],
        [1, 0],
    ),
    "alike": ([stop("loss"), stop("loss")], [stop("loss"), stop("loss")], [0, 1]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_callback_finds_its_state(case: str) -> None:
    before, after, expected = CASES[case]
    states = saved(*before)
    found, left = assigned(after, states)
    assert [one.callback for one, _ in found] == list(after)
    chosen = [next((i for i, s in enumerate(states) if s is entry), None) for _, entry in found]
    assert chosen == expected
    assert len(left) == len(before) - sum(index is not None for index in expected)


def test_a_snapshot_without_marks_is_read_in_order() -> None:
    states = [{"callback": each["callback"]} for each in saved(log("a"), log("b"))]
    found, left = assigned([log("c"), log("b")], states)
    assert [entry for _, entry in found] == states
    assert left == []


def test_a_path_is_compared_as_text(tmp_path: Path) -> None:
    class Writes(keras.callbacks.Callback):
        log_dir: Any = tmp_path
        monitor = 3  # not of the kind that is compared

    assert marks_of(Writes()) == {"log_dir": os.fspath(tmp_path)}
    assert marks_of(keras.callbacks.History()) == {}


def test_callbacks_of_the_chief_do_not_shift_the_names_of_the_others() -> None:
    """The other tasks lack them, and get the states that the chief has saved."""
    both = [keras.callbacks.LambdaCallback() for _ in range(2)]
    kfit.callbacks.chief_only(both[0])
    names = [one.name for one in named(both)]
    assert names[1:] == [one.name for one in named(both[1:])]
    assert names == [
        "keras.callbacks.LambdaCallback for the chief only",
        "keras.callbacks.LambdaCallback",
    ]
