"""Signals are noted; what follows is documented."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import kfit
from kfit.checkpoint import fits
from kfit.heartbeat import Heartbeat, Reached
from kfit.training.stop_signals import Preempted, StopSignals, after_step, stop, tell_what_is_saved
from tests.sweeps import only


def test_the_first_signal_is_noted(capfd: Any) -> None:
    with StopSignals(saves=True) as signals:
        assert signals.received == 0
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGUSR1
    assert capfd.readouterr().err.count("kfit: SIGUSR1: stopping after the steps that run now") == 1


def test_a_second_ctrl_c_stops_at_once() -> None:
    with StopSignals(saves=True) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_ctrl_c_stops_at_once_after_another_signal(capfd: Any) -> None:
    with StopSignals(saves=True) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (
        "SIGINT: stopping after the steps that run now; again to stop at once"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_of_the_program_is_called(saves: bool, signum: int) -> None:
    called: list[int] = []
    with handled(signum, lambda number, frame: called.append(number)):
        with StopSignals(saves=saves) as signals:
            os.kill(os.getpid(), signum)
            assert called == [signum]
            assert signals.received == (signum if saves else 0)
        os.kill(os.getpid(), signum)
        assert called == [signum, signum]


def test_what_a_handler_of_the_program_raises_stops_at_once() -> None:
    def handle(number: int, frame: Any) -> None:
        raise ZeroDivisionError

    raises = pytest.raises(ZeroDivisionError)
    with handled(signal.SIGUSR1, handle), StopSignals(saves=True), raises:
        os.kill(os.getpid(), signal.SIGUSR1)


def test_a_handler_that_ends_the_program_lets_the_step_be_saved() -> None:
    def handle(number: int, frame: Any) -> None:
        sys.exit(3)

    with handled(signal.SIGTERM, handle), StopSignals(saves=True) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_a_handler_in_c_is_there_afterwards(signum: int, tmp_path: Path) -> None:
    """SIGTERM is taken from such a handler within, since TensorFlow installs one."""
    with open(tmp_path / "stacks", "w+") as file:
        faulthandler.register(signum, file=file)
        try:
            with StopSignals(saves=True) as signals:
                os.kill(os.getpid(), signum)
                assert signals.received == (signum if signum == signal.SIGTERM else 0)
            os.kill(os.getpid(), signum)
        finally:
            faulthandler.unregister(signum)
        file.seek(0)
        dumps = file.read().count("test_a_handler_in_c_is_there_afterwards")
        assert dumps == (1 if signum == signal.SIGTERM else 2)


def test_a_fit_in_a_hook_hears_signals() -> None:
    with StopSignals(saves=False), StopSignals(saves=False) as inner:
        os.kill(os.getpid(), signal.SIGTERM)
        assert inner.received == signal.SIGTERM


@contextlib.contextmanager
def handled(signum: int, handler: Any) -> Iterator[None]:
    """The program has a handler of its own."""
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with StopSignals(saves=True) as signals:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.received == 0
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_hear_nothing() -> None:
    heard = []

    def work() -> None:
        with StopSignals(saves=True) as signals:
            heard.append(signals.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [0]


def test_the_exit_codes() -> None:
    for signum, code in ((signal.SIGTERM, 143), (signal.SIGUSR1, 138)):
        with pytest.raises(Preempted) as raised:
            stop(signum)
        assert raised.value.code == code
        assert raised.value.signum == signum
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGINT)


@pytest.mark.parametrize(
    ("is_chief", "is_own", "signum", "expected"),
    [
        (True, True, signal.SIGINT, "kfit: stopped by SIGINT after step 9; saved in b; the same"),
        (True, False, signal.SIGTERM, "kfit: stopped by SIGTERM on another worker after step 9; "),
        (False, False, signal.SIGINT, "kfit: stopped by SIGINT on another worker after step 9; s"),
        (False, False, signal.SIGTERM, ""),
        (False, True, signal.SIGINT, ""),
    ],
)
def test_who_got_the_signal_is_told(
    capfd: Any, is_chief: bool, is_own: bool, signum: int, expected: str
) -> None:
    tell_what_is_saved(Heartbeat(), signum, 9, "b", is_chief=is_chief, is_own=is_own)
    said = capfd.readouterr().err
    assert said.startswith(expected)
    assert bool(said) == bool(expected)


@pytest.mark.parametrize(
    ("started_by", "is_notebook", "expected"),
    [
        ("", False, "the same command resumes there"),
        ("", True, "running the cell again resumes there"),
        ("`kfit run`", False, "the same command resumes there"),
        ("`kfit.launch`", False, "the same call of `kfit.launch` resumes there"),
    ],
)
def test_how_to_resume_is_told(
    monkeypatch: pytest.MonkeyPatch, started_by: str, is_notebook: bool, expected: str
) -> None:
    monkeypatch.setenv("KFIT_STARTED_BY", started_by)
    monkeypatch.setattr("kfit.training.stop_signals.in_notebook", lambda stream: is_notebook)
    assert after_step(Reached(0, 9), "b") == f"after step 9; saved in b; {expected}"


def test_the_place_is_told_whatever_fit_it_is_in() -> None:
    assert after_step(Reached(), "").startswith("after step 0; its state was not saved")
    place = "after step 9 of the second `fit`"
    assert after_step(Reached(1, 9), "b").startswith(f"{place}; saved in b;")


def test_while_training_resumes_a_signal_stops_at_once(capfd: Any) -> None:
    with StopSignals(saves=True) as signals:
        with pytest.raises(Preempted), signals.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        with pytest.raises(Preempted), signals.at_once():  # it came just before
            pytest.fail("training went on")
    told = "kfit: SIGTERM: stopping while training resumes; the same command resumes from the same"
    assert capfd.readouterr().err.count(told) == 2


@pytest.mark.long
@pytest.mark.parametrize("kind", ["generator", "pipeline"])
def test_reading_data_again_is_stopped_at_once(kind: str, tiny: Any, tmp_path: Path) -> None:
    """The position of the snapshot is far: it must not be reached before training stops."""
    x, y = tiny.data(10)
    reads = 0

    def generator() -> Iterator[Any]:
        nonlocal reads
        # A thread may still draw a batch of the first training, ahead, when the second one begins.
        counts = is_resumed
        while True:
            if counts:
                reads += 1
                if reads == 10:
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.05)
            yield x, y

    def pipeline() -> tf.data.Dataset:
        made = tf.data.Dataset.from_generator(
            generator, output_signature=(tf.TensorSpec((10, 4)), tf.TensorSpec((10,), "int64"))
        )
        return made.take(200)

    def train() -> None:
        data = generator() if kind == "generator" else pipeline()
        trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
        backup = kfit.callbacks.BackupAndRestore(tmp_path, save_freq=100, delete_checkpoint=False)
        steps = 200 if kind == "generator" else None
        trainer.fit(data, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[backup, Ends()])

    is_resumed = False
    with pytest.raises(ZeroDivisionError):
        train()
    is_resumed = True
    fits.forget()
    start = time.monotonic()
    with pytest.raises(Preempted):
        train()
    assert reads < 60  # of 100
    assert time.monotonic() - start < 60
    assert len(list(tmp_path.glob("g*"))) == 1


@pytest.mark.parametrize("saves", [True, False])
def test_a_program_that_handles_a_signal_itself(tiny: Any, saves: bool, tmp_path: Path) -> None:
    """Without BackupAndRestore it ends by what it does; with it, the step is saved as well."""
    fits.forget()
    (x, y), model, called = tiny.data(16), tiny.model(), []

    def handle(number: int, frame: Any) -> None:
        called.append(number)
        model.stop_training = True

    sends = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: os.kill(os.getpid(), signal.SIGTERM)
    )
    callbacks = [sends, kfit.callbacks.BackupAndRestore(tmp_path)] if saves else [sends]
    stops = pytest.raises(Preempted) if saves else contextlib.nullcontext()
    with handled(signal.SIGTERM, handle), stops:
        trainer = kfit.Trainer(model, tiny.strategy(1))
        history = trainer.fit(x, y, epochs=3, verbose=0, callbacks=callbacks)
        assert history.epoch == [0]
    assert called == [signal.SIGTERM]
    assert bool(list(tmp_path.glob("g*"))) == saves


class Ends(keras.callbacks.Callback):
    """Fails in the midst of the first epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 150:
            raise ZeroDivisionError


@pytest.mark.parametrize("signum", only([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_after_the_last_step_stops_before_the_next_fit(
    tiny: Any, signum: int, tmp_path: Path, capfd: Any
) -> None:
    fits.forget()
    x, y = tiny.data(16)
    ends = keras.callbacks.LambdaCallback(on_train_end=lambda logs: os.kill(os.getpid(), signum))
    backup = kfit.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises((Preempted, KeyboardInterrupt)) as stopped:
        kfit.fit(tiny.model(), x, y, callbacks=[ends, backup], strategy="one_device", verbose=0)
    assert getattr(stopped.value, "code", None) == (143 if signum == signal.SIGTERM else None)
    name = signal.Signals(signum).name
    assert f"kfit: stopped by {name} after the end of `fit`" in capfd.readouterr().err
    fits.forget()
    steps: list[int] = []
    counts = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: steps.append(step)
    )
    kfit.fit(tiny.model(), x, y, callbacks=[counts, backup], strategy="one_device", verbose=0)
    assert steps == []  # the first had ended, and was saved so
