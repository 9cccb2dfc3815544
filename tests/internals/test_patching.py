"""What is swapped for a step is swapped back, in whatever order threads come and go."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import keras
import pytest
import tensorflow as tf

from kfit.exactness.patches import keras_for_replicas
from kfit.exactness.scalar_estimates import of_replica_batch
from kfit.exactness.traced_functions import functions_of_step
from kfit.internals import patch_points
from kfit.internals.functions import FUNCTION
from kfit.internals.patching import Point, patched


class Base:
    def word(self) -> str:
        return "word"


class Owner(Base):
    pass


WORD = Point(Owner, "word", "a test")


def around(mark: str) -> Callable[[Any], Any]:
    return lambda original: lambda self: f"{mark}{original(self)}{mark}"


@contextmanager
def average_of_replicas() -> Iterator[None]:
    with patched(patch_points.AVERAGE_LOSS, of_replica_batch):
        yield


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_each_takes_away_its_own(first: str) -> None:
    here, there, again = ExitStack(), ExitStack(), ExitStack()
    outer, inner = around("("), around("[")
    here.enter_context(patched(WORD, inner))
    there.enter_context(patched(WORD, outer))
    again.enter_context(patched(WORD, inner))
    assert Owner().word() == "([word[("
    here.close()
    assert Owner().word() == "([word[("
    (there if first == "outer" else again).close()
    assert Owner().word() == ("[word[" if first == "outer" else "(word(")
    (again if first == "outer" else there).close()
    assert Owner().word() == "word"
    assert "word" not in vars(Owner)


@pytest.mark.parametrize(
    ("one", "other", "watched"),
    [
        (functions_of_step, functions_of_step, 0),
        (keras_for_replicas, functions_of_step, 0),
        (keras_for_replicas, average_of_replicas, 1),
    ],
)
def test_threads_that_overlap_leave_keras_as_it_was(
    one: Callable[[], AbstractContextManager[None]],
    other: Callable[[], AbstractContextManager[None]],
    watched: int,
) -> None:
    def state() -> list[Any]:
        return [
            FUNCTION.__call__,
            tf.nn.compute_average_loss,
            keras.Variable.assign,
            keras.Layer.add_loss,
        ]

    before = state()
    entered, left = threading.Event(), threading.Event()

    def overlap() -> None:
        entered.wait(60)
        with other():
            left.set()
            assert done.wait(60)

    done = threading.Event()
    thread = threading.Thread(target=overlap)
    thread.start()
    with one():
        entered.set()
        assert left.wait(60)
    is_swapped = state()[watched] is not before[watched]
    done.set()
    thread.join()
    assert is_swapped
    assert state() == before


def test_a_thread_that_traces_no_step_calls_functions_as_tensorflow_does() -> None:
    traces = []
    seen: list[int] = []

    @tf.function
    def double(x: Any) -> Any:
        traces.append(1)
        return 2 * x

    def elsewhere() -> None:
        seen.append(int(double(tf.constant(3))))
        seen.append(int(tf.function(lambda x: double(x) + 1)(tf.constant(3))))

    double(tf.constant(1))
    with functions_of_step():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen == [6, 7]
    assert len(traces) == 1
