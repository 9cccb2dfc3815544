"""What people see of a `fit`: Keras' bar, with what kfit adds to it."""

import re
import time
from typing import Any

import keras
import numpy as np
import pyte
import pytest
import tensorflow as tf

from kfit.callbacks import BackupAndRestore
from kfit.heartbeat.terminal import WIDTH_VARIABLE
from kfit.training import progress_bar
from kfit.training.progress_bar import ProgressBar, chosen_verbose
from tests.sweeps import only


@pytest.fixture
def fitting(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains the tiny model as if its output were shown in a terminal of so many columns."""
    import kfit

    def fit(columns: int, x: Any = None, **options: Any) -> Any:
        monkeypatch.setenv(WIDTH_VARIABLE, str(columns))
        trainer = kfit.Trainer(tiny.model(), strategy=tiny.strategy(2))
        data = (x,) if x is not None else tiny.data(101)
        if x is None:
            options = {"batch_size": 10, **options}
        trainer.fit(*data, **{"epochs": 2, **options})
        return trainer

    return fit


def screen_of(printed: str, columns: int) -> list[str]:
    screen = pyte.Screen(columns, 40)
    pyte.Stream(screen).feed(printed.replace("\n", "\r\n"))
    return [line.rstrip() for line in screen.display if line.strip()]


def test_on_a_terminal_each_epoch_ends_as_one_line(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    fitting(150, validation_data=tiny.data(30, seed=1))
    shown = screen_of(capsys.readouterr().out, 151)
    # On a busy machine the `fit` is long enough for a line about its time.
    lines = [line for line in shown if "/" in line and not line.startswith("kfit: ")]
    assert [lines[0], lines[2]] == ["Epoch 1/2", "Epoch 2/2"]
    for line in (lines[1], lines[3]):
        assert re.fullmatch(
            r"11/11 ━{20} \d+s \d+[um]?s/step - accuracy: [\d.e-]+ - loss: [\d.e-]+ - "
            r"val_accuracy: [\d.e-]+ - val_loss: [\d.e-]+ - [\d,.kM]+ examples/s",
            line,
        ), line
    assert len(lines) == 4


@pytest.mark.parametrize("columns", only([40], [40, 80]))
def test_no_state_of_the_bar_wraps(
    fitting: Any, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    capsys.readouterr()
    fitting(columns, epochs=1, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=slow)])
    out = capsys.readouterr().out
    *states, last = out[out.index("Epoch") if "Epoch" in out else 0 :].split("\r")
    assert len(states) > 3
    assert "preparing the first step" in out or columns < 60
    assert all(len(re.sub(r"\x1b\[[\d;]*m", "", state)) <= columns for state in states[1:])
    assert "loss" in last


def test_only_what_is_traced_is_said_to_be(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (x, y), said = tiny.data(101), []
    trainer = fitting(100, epochs=1)
    said.append(capsys.readouterr().out)
    trainer.fit(x, y, batch_size=10)
    said.append(capsys.readouterr().out)
    for call in (lambda: trainer.evaluate(x, y), lambda: trainer.predict(x)) * 2:
        call()
        said.append(capsys.readouterr().out)
    told = ["it is traced and compiled" in each for each in said]
    assert told == [True, False, True, True, False, False]


@pytest.mark.long
def test_the_line_of_an_epoch_is_wrapped_between_metrics(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    waits = keras.callbacks.LambdaCallback(on_train_batch_end=slow)
    fitting(40, epochs=1, callbacks=[waits], validation_data=tiny.data(30, seed=1))
    printed, _, _ = capsys.readouterr().out.partition("kfit: ")
    first, *rest = screen_of(printed, 41)
    assert re.fullmatch(r"11/11 \d+s - accuracy: [\d.e-]+", first)
    assert re.fullmatch(
        r"  loss: [\d.e-]+ - val_accuracy: [\d.e-]+  val_loss: [\d.e-]+", "".join(rest)
    )
    assert all(len(line) <= 40 for line in rest)


def slow(batch: int, logs: Any) -> None:
    time.sleep(0.06)


@pytest.mark.parametrize(("verbose", "states"), only([("auto", 0)], [("auto", 0), (2, 0), (1, 2)]))
def test_without_a_terminal_an_epoch_is_a_line_unless_a_bar_is_asked_for(
    fitting: Any, capsys: pytest.CaptureFixture[str], verbose: Any, states: int
) -> None:
    capsys.readouterr()
    trainer = fitting(0, verbose=verbose)
    out = capsys.readouterr().out
    assert out.count("\r") >= states
    assert ("\r" in out) == bool(states)
    assert "\x1b" not in out
    assert len(re.findall(r"11/11 .*loss: .* examples/s\n", out)) == 2
    for rates in (0, 2):  # no rate of steps that were all taken in the call that was traced
        trainer.evaluate(np.zeros((20, 4)), np.zeros(20), verbose=verbose)
        trainer.predict(np.zeros((20, 4)), verbose=verbose)
        out = capsys.readouterr().out
        assert len(re.findall(r"1/1 .*/step.*\n", out)) == 2
        assert len(re.findall(r"1/1 .* examples/s\n", out)) == rates


@pytest.mark.long
def test_silent(fitting: Any, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    fitting(100, verbose=0)
    assert "11" not in capsys.readouterr().out


@pytest.mark.long
def test_no_color(
    fitting: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    capsys.readouterr()
    fitting(100, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=slow)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "━─" in out


@pytest.mark.long
def test_the_bar_tells_of_validation_and_saves(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    capsys.readouterr()
    waits = keras.callbacks.LambdaCallback(on_train_batch_end=slow, on_test_batch_end=slow)
    backup = BackupAndRestore(tmp_path, save_freq=4)
    fitting(200, callbacks=[backup, waits], validation_data=tiny.data(40, seed=1), epochs=1)
    out = capsys.readouterr().out
    assert "saved step 4" in out
    assert "validating, step 1" in out
    assert "validating" not in screen_of(out, 200)[-1]


def test_the_last_state_of_a_line_has_no_blanks_where_a_longer_one_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBar(lambda: 10)
    bar.set_params({"verbose": 1, "epochs": 1, "steps": 3})
    monkeypatch.setenv(WIDTH_VARIABLE, "200")
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    bar.on_train_batch_begin(0)
    bar.note("a note that is longer than what the line shows in the end")
    time.sleep(0.06)
    bar.on_train_batch_end(0, {"loss": 1.0})
    bar.on_epoch_end(0, {"loss": 1.0})
    out = capsys.readouterr().out
    assert "longer" in out
    assert " \n" not in out


def test_only_one_of_several_short_epochs_says_what_was_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(WIDTH_VARIABLE, "200")
    bar = ProgressBar(lambda: 10)
    bar.set_params({"verbose": 1, "epochs": 4, "steps": 2})
    bar.on_train_begin()

    def shown(epoch: int, saved: str = "") -> str:
        bar.on_epoch_begin(epoch)
        for batch in range(2):
            bar.on_train_batch_begin(batch)
            slow(batch, None)
            bar.on_train_batch_end(batch, {"loss": 1.0})
            if saved and not batch:
                bar.note(saved)
        bar.on_epoch_end(epoch, {"loss": 1.0})
        return capsys.readouterr().out

    assert "saved step 1" in shown(0, "saved step 1")
    assert "saved" not in shown(1)
    bar.note("saved step 4")  # at the end of the epoch, where nothing is drawn
    assert "saved step 4" in shown(2)
    assert "saved" not in shown(3)


@pytest.mark.long
def test_the_batch_size_of_a_pipeline_is_found(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = tiny.data(101)
    pipeline = tf.data.Dataset.from_tensor_slices((x, y)).batch(10).map(lambda a, b: (a, b))
    capsys.readouterr()
    fitting(0, pipeline.prefetch(2))
    assert capsys.readouterr().out.count("examples/s\n") == 2


def test_verbose_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WIDTH_VARIABLE, "80")
    assert chosen_verbose("auto") == 1
    monkeypatch.setenv(WIDTH_VARIABLE, "0")
    assert chosen_verbose("auto") == 2
    assert [chosen_verbose(each) for each in (0, 1, 2)] == [0, 1, 2]
    with pytest.raises(ValueError, match="`verbose` must be 0, 1, 2"):
        chosen_verbose("autoo")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.123, "0.12"),
        (12.3, "12"),
        (7812.4, "7,812"),
        (9999.6, "10k"),
        (21234, "21.2k"),
        (999_700, "1e3k"),
        (2_120_000, "2.12M"),
    ],
)
def test_numbers_have_at_most_five_characters(number: float, text: str) -> None:
    assert progress_bar._short(number) == text
    assert len(text) <= 5


def test_a_bar_of_the_users_own_is_the_only_one(
    fitting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    fitting(0, callbacks=[keras.callbacks.ProgbarLogger()], verbose=2, epochs=1)
    assert capsys.readouterr().out.count("11/11") == 1


def test_a_call_of_the_bar_costs_little_where_a_callback_sees_each_batch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WIDTH_VARIABLE, "100")
    spent = {}
    for bar in (keras.callbacks.ProgbarLogger(), ProgressBar(lambda: 32)):
        bar.set_params({"verbose": 1, "epochs": 1, "steps": 20_000})
        bar.on_train_begin()
        bar.on_epoch_begin(0)
        began = time.perf_counter()
        for batch in range(20_000):
            bar.on_train_batch_begin(batch)
            bar.on_train_batch_end(batch, {"loss": 1.0, "accuracy": 0.5})
        spent[type(bar)] = time.perf_counter() - began
        bar.on_epoch_end(0, {"loss": 1.0})
    capsys.readouterr()
    assert spent[ProgressBar] < 1.5 * spent[keras.callbacks.ProgbarLogger]


@pytest.mark.long
def test_lines_of_callbacks_are_printed_above_the_bar(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    prints = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: slow(batch, logs) or print(f"step {batch}"),
        on_epoch_end=lambda epoch, logs: print(f"Watch: epoch {epoch}"),
    )
    fitting(200, callbacks=[prints], validation_data=tiny.data(40, seed=1))
    shown = screen_of(capsys.readouterr().out, 201)
    lines = [line for line in shown if not line.startswith(("kfit: ", "11/11"))]
    steps = [f"step {batch}" for batch in range(11)]
    epochs = [[f"Epoch {epoch + 1}/2", *steps, f"Watch: epoch {epoch}"] for epoch in range(2)]
    assert lines == [*epochs[0], *epochs[1]]
    assert sum(line.startswith("11/11") for line in shown) == 2


@pytest.mark.long
def test_while_it_validates_the_bar_shows_the_last_step(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the steps were so fast that most of them were not drawn."""
    capsys.readouterr()
    looks = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: None, on_test_batch_end=slow
    )
    fitting(200, callbacks=[looks], validation_data=tiny.data(40, seed=1))
    states = [each for each in capsys.readouterr().out.split("\r") if "validating" in each]
    assert len(states) >= 4
    assert all("11/11" in each for each in states), states


@pytest.mark.parametrize(
    "where",
    only(
        ["on_train_begin", "on_epoch_begin"],
        ["on_train_begin", "on_epoch_begin", "on_test_batch_end"],
    ),
)
def test_a_failure_leaves_nothing_of_what_was_going_on(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        print("it fails")
        raise RuntimeError

    capsys.readouterr()
    with pytest.raises(RuntimeError):
        fitting(
            150,
            callbacks=[
                keras.callbacks.LambdaCallback(on_train_batch_end=slow),
                keras.callbacks.LambdaCallback(**{where: fail}),
            ],
            validation_data=tiny.data(40, seed=1),
        )
    print("Traceback")
    shown = screen_of(capsys.readouterr().out, 151)
    assert shown[-1] == "Traceback"
    assert not any(word in line for line in shown for word in ("preparing", "validating"))


def test_the_last_state_stays_if_training_ends_behind_another_line(
    fitting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(batch: int, logs: Any) -> None:
        slow(batch, logs)
        if batch == 5:
            print("stopping")
            raise RuntimeError

    capsys.readouterr()
    with pytest.raises(RuntimeError):
        fitting(150, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)])
    shown = screen_of(capsys.readouterr().out, 151)
    assert shown[:2] == ["Epoch 1/2", "stopping"]
    assert re.match(r" ?[3-6]/11 ━", shown[2])
    assert len(shown) == 3


def test_a_failed_first_step_leaves_no_line(
    fitting: Any, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = tiny.data(20)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    fails = rows.map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "it fails"), y))
    capsys.readouterr()
    with pytest.raises(tf.errors.InvalidArgumentError):
        fitting(150, fails)
    out = capsys.readouterr().out
    assert "preparing" in out
    print("Traceback")
    assert screen_of(out + capsys.readouterr().out, 151) == ["Epoch 1/2", "Traceback"]
