"""Which callback is due is agreed on; tasks with other callbacks are refused, not left to hang."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kfit
from kfit.heartbeat import Heartbeat
from kfit.training.callback import TrainingCallback
from kfit.training.save_points import FOREVER, PeerFailedError, SavePoints


class Noted(TrainingCallback):
    """Writes down the hooks that are called."""

    def __init__(self, name: str, log: list[str], *, due: bool = False, steps: Any = None) -> None:
        super().__init__()
        self.name, self.log, self.due, self.steps = name, log, due, steps

    def steps_until_due(self) -> Any:
        return self.steps

    def is_due(self) -> bool:
        return self.due

    def on_due(self) -> None:
        self.log.append(f"{self.name} due")

    def on_save_point(self, reason: Any) -> None:
        self.log.append(f"{self.name} {reason}")

    def on_fit_end(self) -> None:
        self.log.append(f"{self.name} end")

    def on_fit_exit(self, succeeded: bool) -> None:
        self.log.append(f"{self.name} exit {succeeded}")


class OnlyWatches(TrainingCallback):
    """Takes no part in what the tasks do together, so one task may have it alone."""


def training(*callbacks: Any, others: Any = None, is_chief: bool = True) -> Any:
    """A training of two tasks; the other one says the same, or what `others` gives."""

    def views(own: Any) -> np.ndarray:
        other = own if others is None else others(own)
        return np.asarray([own, other], "float64")

    host_collectives = SimpleNamespace(
        all_gather=views, any_true=lambda own: bool(own) or bool(others and others([own])[0])
    )
    return SimpleNamespace(
        callbacks=callbacks,
        strategy=SimpleNamespace(
            host_collectives=host_collectives,
            is_chief=is_chief,
            num_workers=2,
            failed_peer="",
            mark_failed=lambda failed: None,
            break_off=lambda reason: None,
        ),
        is_chief=is_chief,
        resuming=None,
        interrupted=False,
        model=SimpleNamespace(stop_training=False),
        memory=SimpleNamespace(prepare=lambda callbacks: None, end=lambda: None),
    )


def test_hooks_and_their_order() -> None:
    log: list[str] = []
    first, second = Noted("a", log, steps=7), Noted("b", log, due=True, steps=3)
    points = SavePoints(training(first, OnlyWatches(), second), Heartbeat())
    points.begin()
    assert points.due_on_this_task() == (3, 0b10, False)
    points.restore(in_epoch=False)
    points.restore(in_epoch=False)
    points.visit("step", 0b10)
    points.visit("step", 0b11)
    points.visit("epoch")
    points.end()
    points.leave(succeeded=True)
    assert log == [
        *("a begin", "b begin", "b due", "b step"),
        *("a due", "b due", "a step", "b step", "a epoch", "b epoch"),
        *("a end", "b end", "a exit True", "b exit True"),
    ]


def test_without_callbacks_nothing_is_due() -> None:
    points = SavePoints(training(OnlyWatches()), Heartbeat())
    points.begin()
    assert not points
    assert points.due_on_this_task() == (FOREVER, 0, False)


def test_tasks_with_other_callbacks_are_refused() -> None:
    other = training(Noted("a", []), others=lambda own: [own[0] + 1])
    with pytest.raises(ValueError, match=r"`callbacks` must hold the same .* has \['Noted'\]"):
        SavePoints(other, Heartbeat()).begin()


def test_all_take_the_number_that_the_chief_gives_the_fit() -> None:
    heartbeat = Heartbeat()
    other = training(Noted("a", []))
    other.strategy.host_collectives.all_gather = lambda own: np.asarray([[4.0], own])
    with heartbeat.call(), heartbeat.fit():
        points = SavePoints(other, heartbeat)
        points._agree_on_number()
        assert heartbeat.fit_number == 4
    with heartbeat.call(), heartbeat.fit():
        assert heartbeat.fit_number == 5


def test_a_failure_ends_all_tasks() -> None:
    class Fails(Noted):
        def is_due(self) -> bool:
            raise OSError("disk full")

    points = SavePoints(training(Fails("a", [])), Heartbeat())
    points.begin()
    assert points.due_on_this_task() == (FOREVER, 0, True)
    with pytest.raises(OSError, match="disk full"):
        points.fail_if(failed=True)
    elsewhere = SavePoints(training(Noted("a", []), is_chief=False), Heartbeat())
    with pytest.raises(PeerFailedError, match="its own output says why"):
        elsewhere.fail_if(failed=True)
    elsewhere.fail_if(failed=False)


def test_all_are_left_even_when_one_fails_to() -> None:
    class Fails(Noted):
        def on_fit_exit(self, succeeded: bool) -> None:
            raise OSError("disk full")

    log: list[str] = []
    callbacks = Fails("a", log), Noted("b", log)
    points = SavePoints(training(*callbacks), Heartbeat())
    for callback in callbacks:
        callback.set_training(training(*callbacks))
    with pytest.raises(OSError, match="disk full"):
        points.leave(succeeded=False)
    assert log == ["b exit False"]
    assert [callback.training for callback in callbacks] == [None, None]


def test_a_hook_that_fails_on_one_task_stops_all_where_they_agree_next() -> None:
    class Fails(Noted):
        def on_save_point(self, reason: Any) -> None:
            raise OSError("disk full\nmore")

    log: list[str] = []
    told: list[Any] = []

    def others(own: Any) -> Any:
        told.append(own)
        return [0] * len(own)

    under_way = training(Fails("a", log), Noted("b", log), others=others)
    under_way.strategy.host_collectives.is_alone = False
    points = SavePoints(under_way, Heartbeat())
    with pytest.raises(OSError, match="disk"):
        points.visit("epoch")
    assert log == ["b epoch"]  # as on the other task, which knows nothing of it yet
    assert bytes(told[-1]).rstrip(b"\0") == b"OSError: disk full"

    def failed(own: Any) -> Any:
        return [0, 1] if len(own) == 2 else list(b"OSError: disk full".ljust(len(own), b"\0"))

    elsewhere = SavePoints(training(Noted("a", log), others=failed, is_chief=False), Heartbeat())
    with pytest.raises(PeerFailedError, match=r"Worker 1 failed: OSError: disk full\. This task"):
        elsewhere.visit("epoch")


def test_the_error_of_this_task_is_kept_where_the_others_cannot_be_told() -> None:
    class Fails(Noted):
        def on_save_point(self, reason: Any) -> None:
            raise OSError("disk full")

    def others(own: Any) -> Any:
        if len(own) > 2:  # they are in another collective than that which tells
            raise ConnectionError("gone")
        return own

    under_way = training(Fails("a", []), others=others)
    under_way.strategy.host_collectives.is_alone = False
    points = SavePoints(under_way, Heartbeat())
    with pytest.raises(ConnectionError) as lost:
        points.visit("epoch")
    assert str(points.cause_of(lost.value)) == "disk full"
    points.leave(succeeded=False)


def test_what_comes_of_a_peers_failure_is_called_so() -> None:
    class ExchangeError(Exception):
        pass

    under_way = training(Noted("a", []))
    under_way.strategy.failed_peer = "worker 1"
    cause = SavePoints(under_way, Heartbeat()).cause_of(ExchangeError("worker 1 has failed"))
    assert isinstance(cause, PeerFailedError)
    assert str(cause).startswith("Worker 1 has failed; its own output says why.")
    own = ValueError("own")
    assert SavePoints(under_way, Heartbeat()).cause_of(own) is own


@pytest.mark.parametrize(
    "make",
    [
        lambda path: kfit.callbacks.SaveModel(path / "m.keras"),
        pytest.param(lambda path: kfit.callbacks.Export(path / "m"), marks=pytest.mark.long),
        lambda path: kfit.callbacks.TimeLimit(1),
        pytest.param(lambda path: kfit.callbacks.RollBack(), marks=pytest.mark.long),
    ],
)
def test_a_callback_that_would_do_nothing_under_keras_is_refused(
    make: Any, tiny: Any, tmp_path: Any
) -> None:
    x, y = tiny.data(20)
    callback, model = make(tmp_path), tiny.model()
    name = type(callback).__name__
    for _ in range(2):  # also after a fit of kfit's
        with pytest.raises(RuntimeError, match=f"^{name} works in the `fit` of kfit"):
            model.fit(x, y, verbose=0, callbacks=[callback])
        kfit.fit(model, x, y, verbose=0, strategy="one_device", callbacks=[callback])
