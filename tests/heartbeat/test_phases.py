"""Every phase has words, and every hook of Keras a phase."""

import keras
import pytest

from kfit.heartbeat.phases import HOOKS, Phase, hook, in_words


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase != Phase.HOOK])
def test_a_phase_has_words_of_its_own(phase: Phase) -> None:
    assert in_words(phase)
    assert [in_words(each) for each in Phase].count(in_words(phase)) == 1


def test_a_step_that_may_read_is_reading_where_code_of_the_users_runs() -> None:
    assert in_words(Phase.READING_STEP, in_user_code=True) == in_words(Phase.INPUT)
    assert in_words(Phase.STEP, in_user_code=True) == in_words(Phase.STEP)


def test_hooks_are_those_of_keras() -> None:
    of_keras = {name for name in vars(keras.callbacks.Callback) if name.startswith("on_")}
    assert set(HOOKS) == of_keras - {"on_batch_begin", "on_batch_end"}
    assert [in_words(hook(name)) for name in HOOKS] == [f"in {name}" for name in HOOKS]
