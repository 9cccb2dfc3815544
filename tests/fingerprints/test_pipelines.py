"""What a tf.data pipeline is made of: what makes other batches, and nothing else."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest


@pytest.fixture
def tf() -> Iterator[Any]:
    import tensorflow as tf

    tf.random.set_seed(None)  # whatever the tests before this one have set
    yield tf
    tf.random.set_seed(None)


def made_with(tf: Any, size: Any = None, **changed: Any) -> Any:
    def scale(x: Any, folder: str = "") -> Any:
        return x * 2

    told = {
        "calls": 2,
        "ahead": 1,
        "file": "/a/b",
        "seed": None,
        "buffer": 8,
        "batch": 4,
        **changed,
    }
    data = tf.data.Dataset.range(32).shuffle(told["buffer"], seed=told["seed"])
    data = data.map(partial(scale, folder=told["file"]), num_parallel_calls=told["calls"])
    data = data.batch(told["batch"]).cache(told["file"]).prefetch(told["ahead"])
    options = tf.data.Options()
    options.threading.private_threadpool_size = told["calls"] or 1
    return data.with_options(options)


def of(data: Any) -> dict[str, Any]:
    from kfit.fingerprints.pipelines import of_data

    return of_data(data)


@pytest.mark.parametrize("changed", [{"calls": 5}, {"calls": None}, {"ahead": 7}, {"file": "/c/b"}])
def test_what_only_makes_it_faster_is_no_change(tf: Any, changed: dict[str, Any]) -> None:
    assert of(made_with(tf, **changed)) == of(made_with(tf))


@pytest.mark.parametrize("changed", [{"buffer": 9}, {"batch": 8}, {"seed": 3}, {"file": "/a/c"}])
def test_what_makes_other_batches_is_a_change(tf: Any, changed: dict[str, Any]) -> None:
    assert of(made_with(tf, **changed)) != of(made_with(tf))


def test_a_single_text_is_compared_and_a_device_is_not(tf: Any) -> None:
    data, other = (tf.data.Dataset.from_tensors(text) for text in ("one", "two"))
    assert of(data) != of(other)
    ahead = data.apply(tf.data.experimental.prefetch_to_device("cpu:0"))
    unknown = {"cardinality": int(ahead.cardinality())}  # TensorFlow forgets it there
    assert of(ahead) == {**of(data), **unknown}


def in_turns(tf: Any, reader: str, number: Any) -> Any:
    files = ["a", "b", "c", "d"]
    if reader == "interleave":
        data = tf.data.Dataset.from_tensor_slices(files)
        return data.interleave(tf.data.TextLineDataset, cycle_length=number, num_parallel_calls=2)
    return getattr(tf.data, reader)(files, num_parallel_reads=number)


@pytest.mark.parametrize("reader", ["interleave", "TFRecordDataset", "TextLineDataset"])
def test_how_many_files_are_read_in_turns_is_compared(
    tf: Any, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides the order; where it is left to TensorFlow, the number of cores does."""
    from kfit.fingerprints import compare

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(4), raising=False)
    four, own = of(in_turns(tf, reader, 4)), of(in_turns(tf, reader, tf.data.AUTOTUNE))
    lines = [each.line for each in compare({"data": of(in_turns(tf, reader, 2))}, {"data": four})]
    assert any("is 2, in the snapshot 4 (how many inputs are read in turns" in s for s in lines)
    assert own == of(in_turns(tf, reader, tf.data.AUTOTUNE))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    assert four == of(in_turns(tf, reader, 4))
    other = of(in_turns(tf, reader, tf.data.AUTOTUNE))
    (found,) = compare({"data": other}, {"data": own})
    assert "cycle_length is AUTOTUNE (8 on this machine), in the snapshot AUTOTUNE (4" in found.line


def test_a_directory_of_this_machine_is_no_change(tf: Any, tmp_path: Any) -> None:
    found = []
    for name in ("job.1", "job.2"):
        (tmp_path / name).mkdir()
        found.append(of(made_with(tf, file=str(tmp_path / name))))
    assert found[0] == found[1]


def with_seeds(tf: Any, set_seed: Callable[[int], None], seed: int, own: int | None) -> Any:
    set_seed(seed)
    return of(made_with(tf, seed=own))


def test_a_seed_that_nobody_gave_is_left_out(tf: Any) -> None:
    from kfit.internals.runtime import draw_global_seed

    drawn = [with_seeds(tf, draw_global_seed, seed, None) for seed in (5, 6)]
    assert drawn[0] == drawn[1] == with_seeds(tf, lambda seed: tf.random.set_seed(None), 0, None)


def test_the_users_own_seeds_are_compared(tf: Any) -> None:
    from kfit.internals.runtime import draw_global_seed

    own = [with_seeds(tf, draw_global_seed, seed, own) for seed, own in ((5, 1), (6, 1), (5, 2))]
    assert own[0] == own[1] != own[2]
    given = [with_seeds(tf, tf.random.set_seed, seed, None) for seed in (5, 6)]
    assert given[0] != given[1]


@pytest.mark.long
def test_a_pipeline_of_a_thousand_parts(tf: Any) -> None:
    data = tf.data.Dataset.range(1)
    for _ in range(1000):
        data = data.concatenate(tf.data.Dataset.range(1))
    assert len(of(data)) > 2000
