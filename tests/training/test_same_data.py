"""Workers with other data, batch sizes or numbers of steps are told so before they train."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.training import same_data
from tests.together import Together, raised_by

X = np.ones((8, 4), "float32")


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return (X,)


def raised_with(
    *workers: dict[str, Any], has_parts: bool = False, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What each worker raises, given the arguments of its call."""

    def batches(*data: Any, batch_size: int | None = None, **how: Any) -> Any:
        rounds_up = {"take_whole_executions": lambda steps: None}
        return SimpleNamespace(batch_size=batch_size, has_parts=has_parts, **rounds_up)

    def call(index: int, host_collectives: Together) -> None:
        strategy: Any = SimpleNamespace(host_collectives=host_collectives)
        same_data.batches_of_all(strategy=strategy, **workers[index])

    monkeypatch.setattr(same_data, "as_batches", batches)
    return raised_by(len(workers), call)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (
            {"x": X, "batch_size": 8},
            {"x": X, "batch_size": 4},
            "`batch_size` must be the same on every worker. Received: worker 0: 8, worker 1: 4",
        ),
        (
            {"x": X, "steps": None},
            {"x": X, "steps": 3},
            "`steps_per_epoch` or `steps` must be the same on every worker. Received: "
            "worker 0: None, worker 1: 3",
        ),
        (
            {"x": X},
            {"x": iter([X])},
            "`x` must be of one kind on every worker. Received: worker 0: ndarray, worker 1: "
            "list_iterator",
        ),
        (
            {"x": iter([X]), "steps": 2},
            {"x": iter([X]), "steps": 3},
            "`steps_per_epoch` or `steps` must be the same on every worker. Received: "
            "worker 0: 2, worker 1: 3",
        ),
        (
            {"x": X, "steps": 3},
            {"x": X, "steps": 3, "steps_per_execution": 2},
            "`steps_per_execution` must be the same on every worker. Received: worker 0: 1, "
            "worker 1: 2",
        ),
        (
            {"x": X, "class_weight": {0: 1, 1: 2}},
            {"x": X, "class_weight": {0: 1, 1: 5.5}},
            "`class_weight` must be the same on every worker. Received: "
            "worker 0: {0: 1.0, 1: 2.0}, worker 1: {0: 1.0, 1: 5.5}",
        ),
        (
            {"x": X, "class_weight": {0: 1}},
            {"x": X},
            "`class_weight` must be the same on every worker. Received: "
            "worker 0: {0: 1.0}, worker 1: None",
        ),
        (
            {"x": X, "shuffle": True},
            {"x": X, "shuffle": False},
            "`shuffle` must be the same on every worker. Received: worker 0: True, worker 1: False",
        ),
        (
            {"x": Rows(), "shuffle": False},
            {"x": Rows(), "shuffle": True},
            "`shuffle` must be the same on every worker. Received: worker 0: False, worker 1: True",
        ),
        (
            {"x": X, "shuffle": "batch", "seed": 1},
            {"x": X, "shuffle": "batch", "seed": 2},
            "`seed` must be the same on every worker. Received: worker 0: 1, worker 1: 2",
        ),
        ({"x": X}, {"x": X[:, :3]}, "`x` must be the same on every worker: each trains on its"),
    ],
)
def test_what_differs_is_named_on_all_workers(
    one: dict[str, Any], other: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = raised_with(one, other, monkeypatch=monkeypatch)
    assert raised[0].startswith(expected)
    assert raised[0] == raised[1]


def test_the_same_and_parts_of_each_workers_own_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"x": X, "batch_size": 8, "steps": 1, "shuffle": True, "class_weight": {0: 2, 1: 3}}
    other = {**same, "shuffle": 1, "class_weight": {1: 3.0, 0: 2.0}}
    assert raised_with(same, other, monkeypatch=monkeypatch) == ["", ""]
    in_order = [{"x": X, "shuffle": None, "seed": 1}, {"x": X, "shuffle": False, "seed": 2}]
    assert raised_with(*in_order, monkeypatch=monkeypatch) == ["", ""]
    pipelines = [
        {"x": tf.data.Dataset.range(n).batch(2), "steps": n, "shuffle": n > 4, "seed": n}
        for n in (4, 6)
    ]
    assert raised_with(*pipelines, has_parts=True, monkeypatch=monkeypatch) == ["", ""]


def test_batches_of_calls_are_compared_less_and_less_often() -> None:
    """Of six batches the third and the last are not compared."""
    seen: list[list[int]] = [[], []]

    def differ_from(first: int) -> list[str]:
        def call(index: int, host_collectives: Together) -> None:
            strategy: Any = SimpleNamespace(host_collectives=host_collectives)
            comparison = same_data.BatchComparison(strategy)
            for number in range(1, 7):
                own = X + index * (number >= first)
                comparison.compare((own, None, None), {0: 1, 1: 2})
                seen[index].append(number)

        return raised_by(2, call)

    for first, taken in ((1, 0), (2, 1), (3, 3), (5, 6)):
        seen[:] = [[], []]
        one, other = differ_from(first)
        assert one == other
        assert one.startswith("`x` must be the same on every worker") == (first < 5)
        assert seen == [list(range(1, taken + 1))] * 2


def test_class_weights_of_batches_are_compared() -> None:
    def call(index: int, host_collectives: Together) -> None:
        strategy: Any = SimpleNamespace(host_collectives=host_collectives)
        same_data.BatchComparison(strategy).compare((X, X, None), {0: 1.0, 1: index})

    one, other = raised_by(2, call)
    assert one == other
    assert one.startswith("`class_weight` must be the same on every worker")
