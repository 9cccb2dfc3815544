import contextlib
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import pytest
import tensorflow as tf

import kfit
from kfit.argument_checks import check_positive
from kfit.heartbeat.tracebacks import each_for_user, for_user, of_user


def raised(function: Callable[[], Any]) -> list[str]:
    """The names of the functions that the user sees in the traceback of an error."""
    try:
        function()
    except Exception as error:
        shown = of_user(error, error.__traceback__)
        return [frame.name for frame in traceback.extract_tb(shown)]
    raise AssertionError("nothing was raised")


def users_code(action: Callable[[], Any]) -> None:
    action()


def test_an_argument_that_kfit_refuses_ends_at_the_users_call() -> None:
    names = raised(lambda: users_code(lambda: check_positive(batch_size=-1)))
    assert names == ["raised", "<lambda>", "users_code", "<lambda>"]


def keras_and_kfit_call(action: Callable[[], Any]) -> None:
    """Calls a function by way of a function of kfit, and of one of Keras."""
    callback = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: action())
    stack = contextlib.ExitStack()
    stack.callback(keras.callbacks.CallbackList([callback]).on_train_begin)
    for_user(stack.close)()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps the whole traceback")
def test_between_the_users_frames_there_are_no_others() -> None:
    def fails() -> None:
        raise RuntimeError("own")

    assert raised(lambda: keras_and_kfit_call(fails)) == [
        "raised",
        "<lambda>",
        "keras_and_kfit_call",
        "<lambda>",
        "fails",
    ]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps the whole traceback")
def test_an_error_of_tensorflow_ends_at_the_users_call() -> None:
    differ = partial(tf.debugging.assert_equal, 1, 2)
    # As `Trainer.fit`, which is decorated twice.
    assert raised(lambda: users_code(for_user(for_user(differ)))) == [
        "raised",
        "<lambda>",
        "users_code",
    ]


def test_all_frames_are_shown_if_keras_shows_all() -> None:
    def fails() -> None:
        raise RuntimeError("own")

    keras.config.disable_traceback_filtering()
    try:
        names = raised(lambda: keras_and_kfit_call(fails))
    finally:
        keras.config.enable_traceback_filtering()
    assert "called" in names
    assert "on_train_begin" in names


def test_the_cause_of_an_error_is_kept_with_the_users_frames() -> None:
    def breaks() -> None:
        raise OSError("cause")

    def fails() -> None:
        try:
            for_user(keras_and_kfit_call)(breaks)
        except OSError as cause:
            raise RuntimeError("own") from cause

    with pytest.raises(RuntimeError) as caught:
        keras_and_kfit_call(fails)
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    names = [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert "called" not in names
    assert "on_train_begin" not in names
    assert names[-1] == "breaks"


def test_an_error_without_kfit_is_shown_whole() -> None:
    names = raised(lambda: keras.tree.map_structure(lambda _: 1 / 0, [0]))
    assert "map_structure" in names


def test_an_error_that_may_be_kfits_own_is_shown_whole() -> None:
    no_traceback: Any = 5
    names = raised(lambda: of_user(ValueError(), no_traceback))
    assert names[-1] == "_frames"


@pytest.mark.parametrize(("told", "lines"), [(True, 0), (False, 1)])
def test_an_interrupt_that_was_told_leaves_no_traceback(told: bool, lines: int) -> None:
    program = (
        "from kfit.heartbeat.tracebacks import say_nothing_of\n"
        "interrupt = KeyboardInterrupt()\n"
        f"if {told}: say_nothing_of(interrupt)\n"
        "raise interrupt\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -2
    assert done.stderr.count("Traceback") == lines


CALLS: dict[str, Callable[[kfit.Trainer], Any]] = {
    "'miror'": lambda trainer: kfit.Trainer(trainer.model, "miror"),
    "`batch_size` must be": lambda trainer: trainer.predict([[1.0]], batch_size=-1),
    "`steps` must be": lambda trainer: next(iter(trainer.predict_iter([[1.0]], steps=-1))),
    "ends in nothing": lambda trainer: trainer.save("ends in nothing"),
}
"""Calls of kfit that fail, by a part of their messages."""


@pytest.mark.parametrize("message", CALLS)
def test_a_notebook_shows_no_frame_of_kfit(message: str) -> None:
    trainer = kfit.Trainer(keras.Sequential(), "one_device")
    with pytest.raises(ValueError, match=message) as raised:
        CALLS[message](trainer)
    inner = [entry.frame.f_locals for entry in raised.traceback[2:]]
    assert all("__tracebackhide__" in names for names in inner)


def test_an_iterator_gives_its_portions_and_is_closed() -> None:
    ends = []

    @each_for_user
    def portions(count: int) -> Iterator[int]:
        try:
            yield from range(count)
        finally:
            ends.append(count)

    assert list(portions(3)) == [0, 1, 2]
    begun = portions(2)
    assert next(begun) == 0
    assert ends == [3]
    begun.close()
    assert ends == [3, 2]
