"""What the tests share: four logical CPU devices, strategies, one tiny model and its data.

Nothing here imports TensorFlow before a test needs it, so that the tests of the command line and
the launchers stay quick.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# `tests` and `benchmarks` are never installed. Last, so that an installed kfit is not hidden by the
# folder of that name.
sys.path.append(str(Path(__file__).parents[1]))
pytest.register_assert_rewrite("tests.exactness.cases.comparison")

NUM_DEVICES = 4

STARTS_PROCESSES = (
    "benchmarks",
    "cluster",
    "commands",
    "distribute",
    "docs",
    "doctor",
    "examples",
    "remote",
    "report/test_restarts",
    "supervisor",
    "datasets",
    "test_fault_sites",
    "test_faults_of_runs",
    "test_kills",
    "test_soak",
    "test_networks",
    "heartbeat",
    "test_growth",
    "families/test_workers",
    "libraries/test_mlflow",
    "libraries/test_ray",
    "libraries/test_wandb",
)
"""Folders and modules whose tests start processes: with several workers of pytest-xdist, one runs
them all, so that no two clusters fight over the cores."""

SLOWEST = (
    "processes",
    "tests/programs/test_programs.py",
    "tests/exactness/test_cases.py",
    "tests/callbacks/test_backup_and_restore.py",
)
"""What takes the longest, the longest first: begun first, so that no worker of pytest-xdist is left
with one of them at the end while the others have nothing to do."""


def pytest_configure(config: pytest.Config) -> None:
    """Has SIGINT do what it does by default, though a script has started the tests with `&`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Has pytest-xdist give those tests to one of its workers, and the others file by file.

    The slowest are begun first; after them comes what has the most tests, as always.
    """
    from xdist.scheduler import LoadScopeScheduling

    class TakesTurns(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            inside = path.removeprefix("tests/").removesuffix(".py")
            begins = [f"{inside}/".startswith(f"{each}/") for each in STARTS_PROCESSES]
            return "processes" if any(begins) else path

        # pytest-xdist has no public name for the order; `_split_scope` is what it documents.
        def _assign_work_unit(self, node: Any) -> None:
            for scope in reversed(SLOWEST):
                if scope in self.workqueue:
                    self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return TakesTurns(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Has a test fail in place of being skipped where `KFIT_NO_SKIPS` says that it must run."""
    report = yield
    if report.skipped and "KFIT_NO_SKIPS" in os.environ and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Keeps what a file of tests has left, such as graphs, from the garbage collector afterwards.

    Otherwise each collection looks at the graphs of all tests before: minutes in the whole.
    """
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Splits the CPU into logical devices, between the imports and TensorFlow's first operation.

    What the imports have made is there for good, so that the garbage collector need not look at it
    again and again: that was a fifth of the time of the tests.
    """
    gc.freeze()
    if "tensorflow" in sys.modules:
        tf = sys.modules["tensorflow"]
        one = tf.config.LogicalDeviceConfiguration()
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [one] * NUM_DEVICES)


def strategy_of(replicas: int) -> Any:
    """An adapter with that many replicas on this host."""
    import kfit

    if replicas == 1:
        return kfit.distribute.OneDevice()
    return kfit.distribute.Mirrored([f"CPU:{index}" for index in range(replicas)])


def data(examples: int = 101, features: int = 4, classes: int = 3, seed: int = 0) -> Any:
    """`(x, y)` of a problem that a small model learns: float32 features and int64 classes."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(examples, features)).astype("float32")
    noise = draw.normal(size=(examples, classes))
    y = np.argmax(x @ draw.normal(size=(features, classes)) + 0.1 * noise, axis=1)
    return x, y


def model(seed: int = 1, cls: Any = None, **compiled: Any) -> Any:
    """A compiled model of two layers for `data()`, with the same weights for the same seed."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)]
    made = (cls or keras.Sequential)([keras.Input((4,)), *layers])
    made.compile(
        **{
            "optimizer": keras.optimizers.SGD(0.5),
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
            **compiled,
        }
    )
    return made


def weights(trained: Any) -> list[np.ndarray]:
    """The model's weights, copied."""
    return [np.array(value) for value in trained.get_weights()]


def distance(one: Any, other: Any) -> float:
    """The largest difference between the weights of two models, or between two lists of arrays."""
    one, other = (
        weights(side) if hasattr(side, "get_weights") else [np.asarray(a) for a in side]
        for side in (one, other)
    )
    assert [a.shape for a in one] == [a.shape for a in other]
    return max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True))


def is_plain(trained: Any) -> bool:
    """Whether all variables of a model and its optimizer are plain TensorFlow variables."""
    import tensorflow as tf

    variables = list(trained.variables)
    if trained.optimizer is not None:
        variables += trained.optimizer.variables
    return not any(isinstance(v._value, tf.distribute.DistributedValues) for v in variables)


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training on two workers that nobody touches, for tests that compare its bits."""
    from tests.armed_runs import untouched

    return untouched(tmp_path_factory.mktemp("two_workers"))


@pytest.fixture
def ungathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each replica read its own examples only, so that kfit warns of what these do not show."""
    monkeypatch.setattr("kfit.exactness.whole_batch.may_gather_rows", lambda **_: False)


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """The functions above, for tests: pytest's importlib mode lets no test import a helper."""
    return SimpleNamespace(
        data=data,
        model=model,
        weights=weights,
        distance=distance,
        is_plain=is_plain,
        strategy=strategy_of,
    )


@pytest.fixture(params=[1, 2], ids=["one_replica", "two_replicas"])
def strategy(request: pytest.FixtureRequest) -> Any:
    """An adapter with one replica, then one with two; parametrize indirectly for others."""
    return strategy_of(request.param)
