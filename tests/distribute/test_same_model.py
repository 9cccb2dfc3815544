"""Workers with models of different shapes say so, instead of sending variables to each other."""

from typing import Any

import keras
import numpy as np
import pytest

from kfit.distribute.same_model import require_same_settings, require_same_variables
from tests.together import Together, raised_by


def raised_with(*models: list[Any]) -> list[str]:
    """What each worker raises, given the shapes of its variables."""

    def check(index: int, host_collectives: Together) -> None:
        variables = [
            keras.Variable(np.zeros(shape, "float32"), name=f"of_{index}_{number}")
            for number, shape in enumerate(models[index])
        ]
        require_same_variables(variables, host_collectives)

    return raised_by(len(models), check)


def test_models_of_the_same_shapes_may_have_other_names() -> None:
    assert raised_with([(4, 3), (3,)], [(4, 3), (3,)]) == ["", ""]


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
    raised = raised_with([(4, 3), (3,)], [(4, 3), (3,)], other)
    assert expected in raised[0]
    assert len(set(raised)) == 1
    assert ("Worker 0 has" in raised[0]) == (len(other) != 2)


def test_all_workers_name_the_first_setting_that_differs() -> None:
    settings = [{"dense": "Dense", "dense/units": units} for units in (8, 16)]
    raised = raised_by(2, lambda index, all_of: require_same_settings(settings[index], all_of))
    assert "worker 0: dense/units = 8, worker 1: dense/units = 16." in raised[0]
    assert raised[0] == raised[1]
