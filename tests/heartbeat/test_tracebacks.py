import contextlib
import dataclasses
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.argument_checks import check_positive
from kfit.heartbeat.tracebacks import (
    each_for_user,
    for_user,
    of_user,
    place_of,
    say_nothing_of,
    warn_user,
    warned_at,
    warning_once,
)


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


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps the whole traceback")
@pytest.mark.parametrize(("says", "shown"), [("`x`: {}", False), ("`x` is wrong", True)])
def test_a_cause_that_says_nothing_more_is_not_shown(says: str, shown: bool) -> None:
    def fails() -> None:
        try:
            check_positive(x=-1)
        except ValueError as cause:
            raise ValueError(says.format(cause)) from cause

    in_kfit: Any = type(fails)(
        fails.__code__, {**globals(), "__name__": "kfit.x"}, closure=fails.__closure__
    )
    with pytest.raises(ValueError, match="`x`") as caught:
        for_user(in_kfit)()
    assert (caught.value.__cause__ is not None) is shown
    assert isinstance(caught.value.__context__, ValueError)


def test_errors_after_which_another_way_was_tried_are_not_shown() -> None:
    """One-hot labels for a loss of class numbers: Keras builds metrics in several ways."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    with pytest.raises(ValueError, match="`y` has the shape") as caught:
        kfit.fit(model, np.ones((8, 2)), np.ones((8, 3)), strategy="one_device", verbose=0)
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("ValueError") == 1


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
    "'mirorred'": lambda trainer: kfit.install("mirorred"),
    "`batch_size` must be": lambda trainer: trainer.predict([[1.0]], batch_size=-1),
    "`steps` must be": lambda trainer: next(iter(trainer.predict_iter([[1.0]], steps=-1))),
    "ends in nothing": lambda trainer: trainer.save("ends in nothing"),
    "`report` tells of": lambda trainer: trainer.report(),
    "`save_freq` must be": lambda trainer: kfit.callbacks.BackupAndRestore("b", "epochs"),
    "`limit` must be": lambda trainer: kfit.callbacks.TimeLimit("1h"),
    "`callback` must be": lambda trainer: kfit.callbacks.chief_only(print),
    "`cross_device_ops` must": lambda trainer: kfit.distribute.Mirrored(cross_device_ops="x"),
    "`history` must be what": lambda trainer: kfit.plot_history(trainer),
    "`history` must be the path": lambda trainer: kfit.plot_history("no_such_folder"),
    "`throttle_secs` is": lambda trainer: kfit.EvalSpec(x=[1], throttle_secs=-1),
    "`keep` must be": lambda trainer: kfit.checkpoint.Store("s", keep=0),
    "no attribute 'BackupAndRestor'": lambda trainer: kfit.callbacks.BackupAndRestor,
}
"""Calls of kfit that fail, by a part of their messages."""


@pytest.mark.parametrize("message", CALLS)
def test_a_notebook_shows_no_frame_of_kfit(message: str) -> None:
    trainer = kfit.Trainer(keras.Sequential(), "one_device")
    with pytest.raises(Exception, match=message) as raised:
        CALLS[message](trainer)
    inner = [entry.frame.f_locals for entry in raised.traceback[2:]]
    assert all("__tracebackhide__" in names for names in inner)


def test_nor_does_it_if_kfit_is_installed() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kfit.install("one_device"), pytest.raises(ValueError, match="batch_size") as raised:
        model.fit([[1.0]], [[1.0]], batch_size=-1)
    ours = [
        entry
        for entry in raised.traceback
        if str(entry.frame.f_globals["__name__"]).startswith("kfit")
    ]
    if sys.version_info >= (3, 11):
        assert not ours
    # Python 3.10 keeps the whole traceback.
    assert all("__tracebackhide__" in entry.frame.f_locals for entry in ours)


NOTHING_TO_REFUSE = {
    *("Exporter", "Model", "Report", "Sequential", "Snapshot", "Task", "TrainingCallback"),
    *("Strategy", "as_strategy", "current_cluster", "uninstall"),
}
"""Public names that raise no error of a wrong argument, or are base classes, or for experts."""


@pytest.mark.parametrize("package", [kfit, kfit.callbacks, kfit.checkpoint, kfit.distribute])
def test_errors_leave_all_that_is_public_without_frames_of_kfit(package: Any) -> None:
    own = sys.modules[for_user.__module__].__file__
    others = set()
    for name in package.__all__:
        public = getattr(package, name)
        if isinstance(public, type):
            is_made = issubclass(public, BaseException) or "__init__" not in vars(public)
            code = None if is_made else getattr(vars(public)["__init__"], "__code__", None)
        else:
            code = getattr(public, "__code__", None)
        if code is not None and code.co_filename != own:
            others.add(name)
    assert others - NOTHING_TO_REFUSE == set()


def test_an_error_of_the_system_that_names_the_argument_is_the_users(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    (tmp_path / "file").touch()
    backup = kfit.callbacks.BackupAndRestore(tmp_path / "file")
    x = np.ones((2, 1))
    fit = partial(kfit.fit, model, x, x, verbose=0, callbacks=[backup], strategy="one_device")
    assert raised(lambda: users_code(fit)) == ["raised", "<lambda>", "users_code"]


def test_the_first_ctrl_c_shows_the_users_lines_and_the_second_where_kfit_was() -> None:
    def stop(told: bool) -> None:
        interrupt = KeyboardInterrupt()
        if told:
            say_nothing_of(interrupt)
        stack = contextlib.ExitStack()
        stack.callback(partial(of_user, interrupt, None))
        raise interrupt

    # The innermost frame is one of kfit: `stop` as if it were there.
    in_kfit: Any = type(stop)(stop.__code__, {**stop.__globals__, "__name__": "kfit.training.x"})
    for told in (True, False):
        with pytest.raises(KeyboardInterrupt) as caught:
            for_user(in_kfit)(told)
        names = [frame.name for frame in traceback.extract_tb(caught.tb)]
        assert ("stop" in names) is not told


MISSPELLED: dict[str, Callable[[kfit.Trainer], Any]] = {
    r"kfit\.fit\(\) got .*'batchsize'\. Did you mean 'batch_size'\?": lambda trainer: kfit.fit(
        trainer.model, [1], batchsize=1, strategy="one_device"
    ),
    r"kfit\.evaluate\(\) got .*'strateg'\. Did you mean 'strategy'\?": lambda trainer: (
        kfit.evaluate(trainer.model, strateg="one_device")
    ),
    r"kfit\.Trainer\.fit\(\) got .*'epoch'\. Did you mean 'epochs'\?": lambda trainer: trainer.fit(
        [1], epoch=1
    ),
    r"kfit\.Trainer\.fit\(\) .*'stratgy'\. 'strategy' is an argument of kfit\.Trainer\(\.\.\.\)$": (
        lambda trainer: trainer.fit([1], stratgy=2)
    ),
    r"kfit\.Trainer\.compile\(\) got .*'metric'\. Did you mean 'metrics'\?": lambda trainer: (
        trainer.compile(loss="mse", metric=["mae"])
    ),
    r"^fit\(\) got .*'batchsize'\. Did you mean 'batch_size'\?": lambda trainer: compiled(
        kfit.Sequential()
    ).fit([1], batchsize=1, strategy="one_device"),
    r"kfit\.callbacks\.BackupAndRestore\(\) got .*'save_frq'\. Did you mean 'save_freq'\?": (
        lambda trainer: kfit.callbacks.BackupAndRestore("b", save_frq=1)
    ),
    r"kfit\.join_cluster\(\) got .*'timeout'\. Did you mean 'start_timeout'\?": (
        lambda trainer: kfit.join_cluster(timeout=1)
    ),
    r"kfit\.launch\(\) got .*'worker'\. Did you mean 'workers'\?": lambda trainer: kfit.launch(
        print, worker=2
    ),
    r"kfit\.TrainSpec\(\) got .*'max_step'\. Did you mean 'max_steps'\?": lambda trainer: (
        kfit.TrainSpec(max_step=1)
    ),
    r"kfit\.fit\(\) got an unexpected keyword argument 'nonsense'$": lambda trainer: kfit.fit(
        trainer.model, [1], nonsense=1, strategy="one_device"
    ),
    r"\.inner\(\) got an unexpected keyword argument 'count'$": lambda trainer: calls_another(1),
}
"""Calls with an argument that does not exist, by what their errors say."""


def compiled(model: Any) -> Any:
    model.compile(loss="mse")
    return model


@for_user
def calls_another(counts: int) -> None:
    def inner() -> None: ...

    made: Any = inner
    made(count=counts)


@pytest.mark.parametrize("says", MISSPELLED)
def test_an_argument_that_is_misspelled_is_named_with_the_one_that_was_meant(says: str) -> None:
    trainer = kfit.Trainer(compiled(keras.Sequential()), "one_device")
    with pytest.raises(TypeError, match=says):
        MISSPELLED[says](trainer)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"metrics": ["acuracy"]}, "accuracy"),
        ({"metrics": ["categorical_acuracy"]}, "categorical_accuracy"),
        ({"loss": "sparse_crossentropy"}, "sparse_categorical_crossentropy"),
        ({"loss": "MeanSquareError"}, "MeanSquaredError"),
        ({"optimizer": "adamm"}, "adam"),
        ({"loss": "xyzzy"}, ""),
    ],
)
def test_a_misspelled_name_of_keras_is_told_with_the_one_that_was_meant(
    given: dict[str, Any], meant: str
) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    trainer = kfit.Trainer(model, "one_device")
    x = np.ones((2, 1))
    hint = rf"\. Did you mean '{meant}'\?" if meant else ""

    def train() -> None:
        trainer.compile(**{"loss": "mse", **given})
        trainer.fit(x, x, verbose=0)

    with pytest.raises(ValueError, match=rf"Could not interpret \w+ identifier: \w+{hint}$"):
        train()


def test_a_warning_names_the_users_line() -> None:
    stack = contextlib.ExitStack()
    stack.callback(partial(for_user(warn_user), "of the user's"))
    with pytest.warns(UserWarning, match="of the user's") as caught:
        stack.close()
    assert caught[0].filename == __file__


def test_a_call_shows_a_warning_once_though_filters_change() -> None:
    def warn() -> int:
        warn_user("of a call")
        warnings.filterwarnings("default", message="of another kind")
        return len(caught)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with warning_once(), warning_once():
            assert [warn() for _ in range(2)] == [1, 1]
        assert warn() == 2
        # What no filter hides is shown, and what one has hidden is not taken for shown.
        with warning_once():
            warnings.simplefilter("ignore")
            assert warn() == 2
            warnings.simplefilter("default")
            assert warn() == 3
            warnings.simplefilter("always")
        with warning_once():
            assert [warn() for _ in range(2)] == [4, 5]


def aside(text: str) -> None:
    run(threading.Thread(target=warn_user, args=[text, RuntimeWarning]))


def run(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def test_a_warning_of_a_thread_without_the_users_code_is_issued() -> None:
    with pytest.warns(RuntimeWarning, match="aside"):
        aside("aside")


def test_a_warning_of_a_thread_names_the_place_that_it_was_given() -> None:
    first = aside.__code__.co_firstlineno
    place = place_of(aside)
    assert place is not None
    assert (place.file, place.line) == (__file__, first)

    called = place_of(keras.Model.train_step)  # Keras' own: the line of the caller is named
    assert called is not None
    assert called.file == __file__
    assert called.line > first
    warn = warned_at(place)(warn_user)
    with pytest.warns(UserWarning, match="here") as caught:
        warn("here")
    assert caught[0].lineno > first  # code of the user's runs in this thread
    thread = threading.Thread(target=warn, args=["there"])
    with pytest.warns(UserWarning, match="there") as caught:
        run(thread)
    assert (caught[0].filename, caught[0].lineno) == (__file__, first)


def test_no_warning_of_kfit_names_a_line_of_kfit() -> None:
    """They are all issued by `warn_user`, but those of data sets, which import nothing of kfit."""
    root = Path(kfit.__file__).parent
    files = [*root.rglob("*.py"), *(root / "callbacks").glob("*.py")]  # which may be a link
    others = [file for file in files if "warnings.warn(" in file.read_text("utf-8")]
    assert [file for file in others if "datasets" not in file.parts] == []


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


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    step: int


class ReadOnlyError(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("read-only")


class UnequalError(Exception):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no ==")

    __hash__ = None  # type: ignore[assignment]


class WithoutMessageError(Exception):
    def __str__(self) -> str:
        return f"at {self.missing}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error", [FrozenError(3), ReadOnlyError(), UnequalError(), WithoutMessageError()], ids=repr
)
def test_an_error_of_any_class_leaves_as_itself(error: Exception) -> None:
    def fails() -> None:
        try:
            raise UnequalError
        except UnequalError:
            raise error  # noqa: B904  as a hook may

    with pytest.raises(type(error)) as raised:
        for_user(fails)()
    assert raised.value is error
    say_nothing_of(error)
    assert of_user(error, error.__traceback__) is not None
