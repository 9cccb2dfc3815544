"""A seed sequence counts on from where it was, in both directions."""

from typing import Any

import numpy as np
import pytest

from kfit.objects.seed_sequences import (
    check_sequence,
    give_sequence,
    read_sequence,
    sequence_of,
)


@pytest.mark.parametrize("seed", [5, [1, 2], None])
@pytest.mark.parametrize("pool_size", [4, 8])
def test_a_sequence_goes_forth_and_back(seed: Any, pool_size: int) -> None:
    made = np.random.SeedSequence(seed, pool_size=pool_size).spawn(2)[1]
    began = read_sequence(made)
    first = [child.generate_state(2).tolist() for child in made.spawn(2)]
    then = read_sequence(made)
    check_sequence(then)
    next_one = made.spawn(1)[0].generate_state(2).tolist()
    other = np.random.SeedSequence(9, pool_size=pool_size)
    give_sequence(other, then)
    assert other.spawn(1)[0].generate_state(2).tolist() == next_one
    give_sequence(made, began)
    assert [child.generate_state(2).tolist() for child in made.spawn(2)] == first


def test_only_a_sequence_of_numpys_own_is_read() -> None:
    class Own(np.random.SeedSequence):
        """One of a program, which may keep more."""

    assert sequence_of(np.random.PCG64(np.random.SeedSequence(1))) is not None
    assert sequence_of(np.random.PCG64(Own(1))) is None


@pytest.mark.parametrize("state", [None, {}, {"entropy": 1}, {"spawn_key": ()}])
def test_what_is_no_state_of_a_sequence_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="cannot be the state of a seed sequence"):
        check_sequence(state)
