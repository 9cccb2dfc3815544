"""What the program's own layers and metrics keep besides variables goes on after a restart."""

from typing import Any

import keras
import numpy as np
import pytest

from kfit.objects import Attributes
from kfit.objects.keras_parts import OwnFields, is_of_program, names_used_by


class Jitter(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.calls, self.inner = (
            np.random.default_rng(1),
            [0],
            keras.layers.Dense(1),
        )

    def call(self, x: Any) -> Any:
        self.calls[0] += 1
        return self.inner(x) + self.generator.normal()


class Seen(keras.Metric):
    def __init__(self) -> None:
        super().__init__(name="seen")
        self.seen: list[float] = []
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, value: float) -> None:
        self.seen.append(value)
        self.total.assign_add(value)

    def result(self) -> float:
        return float(np.mean(self.seen)) + float(self.total)


class Owner:
    def __init__(self) -> None:
        self.parts = [lambda x: x, Jitter()]
        self.metric = Seen()
        self.parts[1](np.ones((1, 2)))
        self.parts[1].inner.kernel.assign([[1.0], [2.0]])

    def step(self, number: int) -> list[float]:
        self.metric.update_state(number)
        return [float(self.parts[1](np.ones((1, 2)))[0, 0]), self.metric.result()]


def test_they_go_on(recwarn: pytest.WarningsRecorder) -> None:
    owner, same = Owner(), Owner()
    before, after = Attributes(owner), Attributes(same)
    for number in range(3):
        owner.step(number)
    assert before.unsaved() == []
    state = before.state_dict()
    paths = [tuple(entry["path"]) for entry in state]
    assert len(paths) == len(set(paths))
    after.load_state_dict(state)
    assert not recwarn.list
    assert same.parts[1].calls == owner.parts[1].calls
    assert same.step(3) == owner.step(3)
    after.load_state_dict([])
    assert same.metric.seen == []


def test_what_keras_sets_is_left_out() -> None:
    layer = Jitter()
    assert set(OwnFields(layer)) == {"generator", "calls", "inner"}
    assert set(OwnFields(Seen())) == {"seen"}
    fields = OwnFields(layer)
    fields["calls"] = [5]
    del fields["generator"]
    assert layer.calls == [5]
    assert not hasattr(layer, "generator")
    assert is_of_program(layer)
    assert not is_of_program(keras.layers.Dense(1))
    assert "generator" in set(names_used_by(Jitter))
