"""TensorFlow's generators outside of graphs are those that its functions draw from."""

import subprocess
import sys

import pytest
import tensorflow as tf

from kfit.internals.eager_random import (
    existing_global_generator,
    forget_kernels,
    generator_of_seeds,
)


def test_the_generator_of_seeds_decides_what_is_drawn() -> None:
    tf.random.set_seed(1)
    seeds = generator_of_seeds()
    assert seeds is not None
    state = seeds.getstate()
    drawn = [float(tf.random.normal([])) for _ in range(2)]
    assert seeds.getstate() != state
    seeds.setstate(state)
    forget_kernels()
    assert [float(tf.random.normal([])) for _ in range(2)] == drawn


def test_the_global_generator_is_the_one_that_was_set() -> None:
    before, own = existing_global_generator(), tf.random.Generator.from_seed(1)
    tf.random.set_global_generator(own)
    assert existing_global_generator() is own
    tf.random.set_global_generator(before)


@pytest.mark.long
def test_neither_is_made_by_asking_for_it() -> None:
    lines = (
        "from kfit.internals.eager_random import existing_global_generator, generator_of_seeds",
        "print([existing_global_generator(), generator_of_seeds()])",
    )
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[None, None]"
