"""What counts as a number of seconds, and as how many."""

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.argument_checks import (
    check_directory,
    check_no_url,
    check_positive,
    check_seconds,
    checked_save_freq,
    shown,
)

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2), np.int64(3)])
def test_numbers(value: Any) -> None:
    check_seconds("timeout", value, above_zero=True)
    check_positive(steps=max(1, int(value)), epochs=np.int64(3), batch_size=None)
    check_seconds("grace", 0 * value)


@pytest.mark.parametrize("value", [0, -1, "10", True, NAN, INFINITY, None, [1]])
def test_what_is_no_number_of_seconds(value: Any) -> None:
    message = f"`timeout` is {value!r}; expected a number of seconds above 0, or None"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_seconds("timeout", value, above_zero=True, others=", or None")


@pytest.mark.parametrize("value", [0, 2.5, 4.0, "ten", True, NAN, INFINITY, [1]])
def test_what_is_no_number_of_steps(value: Any) -> None:
    message = f"`steps` must be an integer of at least 1. Received: {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_positive(steps=value)


def test_how_often_to_save() -> None:
    assert checked_save_freq("auto", "epoch", "auto") == "auto"
    assert type(checked_save_freq(np.int64(3), "epoch")) is int


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, None, "auto", ["epoch"]])
def test_how_often_not_to_save(value: Any) -> None:
    wanted = '`save_freq` must be "epoch" or a number of steps of at least 1. Received: '
    with pytest.raises(ValueError, match=re.escape(wanted + repr(value))):
        checked_save_freq(value, "epoch")


def test_long_values_are_shown_shortly() -> None:
    for value, says in (
        (np.ones(64), r"Received: an array of shape \(64,\)$"),
        (list(range(1000)), r"Received: \[0, 1, 2, .{90,95}\.\.\.$"),
    ):
        with pytest.raises(ValueError, match=says):
            check_positive(batch_size=value)
        with pytest.raises(ValueError, match=says):
            checked_save_freq(value, "epoch")


class Mine:
    def method(self) -> None:
        pass


def test_objects_are_shown_by_their_classes() -> None:
    mine = f"{__name__}.Mine object"
    for value, says in (
        (Mine(), f"<{mine}>"),
        ([Mine(), 1], f"[<{mine}>, 1]"),
        (Mine().method, f"<bound method Mine.method of <{mine}>>"),
        (test_numbers, "<function test_numbers>"),
        ("text at 0", "'text at 0'"),
    ):
        assert shown(value) == says


@pytest.mark.parametrize("path", ["gs://bucket/backup", "s3://b", "file:///tmp/x", "HDFS://a/b"])
def test_what_is_no_path_of_a_file_system(path: str) -> None:
    for check in (check_directory, check_no_url):
        with pytest.raises(ValueError, match="`backup_dir` must be a path of a file system"):
            check("backup_dir", path)
    assert check_directory("backup_dir", Path("a:b/c")) == "a:b/c"
    with pytest.raises(ValueError, match="must be the path of a directory"):
        check_directory("backup_dir", "")


@pytest.mark.parametrize("name", ["BackupAndRestore", "ModelCheckpoint", "SaveModel", "Export"])
def test_callbacks_refuse_urls_before_training(tiny: Any, name: str) -> None:
    x, y = tiny.data(8)
    taken: list[int] = []
    counts = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: taken.append(step)
    )
    with pytest.raises(ValueError, match="must be a path of a file system"):
        kfit.fit(
            tiny.model(),
            *(x, y),
            callbacks=[getattr(kfit.callbacks, name)("gs://bucket/model.keras"), counts],
            strategy="one_device",
            verbose=0,
        )
    assert not taken
