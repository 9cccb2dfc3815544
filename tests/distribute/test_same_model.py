"""Workers with models of different shapes say so, instead of sending variables to each other."""

import threading
from typing import Any

import keras
import numpy as np
import pytest

from kfit.distribute.host_collectives import HostCollectives
from kfit.distribute.same_model import require_same_variables


class Together(HostCollectives):
    """The collectives of one of several threads, each of which stands for a worker."""

    is_alone = False

    def __init__(self, index: int, barrier: threading.Barrier, rows: dict[int, Any]) -> None:
        self._index, self._barrier, self._rows = index, barrier, rows

    def all_gather(self, own: Any) -> np.ndarray:
        self._rows[self._index] = own
        self._barrier.wait(10)
        table = np.asarray([self._rows[index] for index in sorted(self._rows)], "float64")
        self._barrier.wait(10)
        return table


def said_by(*models: list[Any]) -> list[str]:
    """What each worker raises, given the shapes of its variables; empty if it raises nothing."""
    barrier, rows = threading.Barrier(len(models)), dict[int, Any]()
    said = [""] * len(models)

    def check(index: int) -> None:
        variables = [
            keras.Variable(np.zeros(shape, "float32"), name=f"of_{index}_{number}")
            for number, shape in enumerate(models[index])
        ]
        try:
            require_same_variables(variables, Together(index, barrier, rows))
        except ValueError as error:
            said[index] = str(error)

    threads = [threading.Thread(target=check, args=(index,)) for index in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return said


def test_models_of_the_same_shapes_may_have_other_names() -> None:
    assert said_by([(4, 3), (3,)], [(4, 3), (3,)]) == ["", ""]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([(4, 5), (5,)], "worker 0: 'of_0_0', float32 (4, 3), worker 2: 'of_2_0', float32 (4, 5)."),
        ([(4, 3), (3,), ()], "worker 0: no more variables, worker 2: 'of_2_2', float32 ()."),
        ([(4, 3)], "worker 0: 'of_0_1', float32 (3,), worker 2: no more variables."),
        ([], "worker 2: no more variables. Worker 0 has 2 variables, and worker 2 has 0."),
    ],
)
def test_all_workers_name_the_first_variable_that_differs(other: list[Any], expected: str) -> None:
    said = said_by([(4, 3), (3,)], [(4, 3), (3,)], other)
    assert expected in said[0]
    assert len(set(said)) == 1
    assert ("Worker 0 has" in said[0]) == (len(other) != 2)
