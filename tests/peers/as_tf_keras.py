"""A plugin of pytest: runs tf_keras' tests with Keras 3 and kfit in the place of tf_keras.

`test_tf_keras.py` says how it is started; `KFIT_PEERS_SOURCES` names the folder `tf_keras`. What a
test trains is trained on the strategy in whose scope it made its model: two devices of this
process, or, with `KFIT_PEERS_WORKERS`, the workers of the cluster of which each runs all tests.
"""

import functools
import importlib
import os
import sys
import unittest
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import keras_2
import pytest
from differences import reason_of_tf_keras
from exchange import put_kfit_in_place
from tf_keras_stand_in import Finder, GoneError

WORKERS = int(os.environ.get("KFIT_PEERS_WORKERS", "1"))


def pytest_configure(config: pytest.Config) -> None:
    """Splits the CPU into devices, and puts the stand-ins where tf_keras' tests look for them."""
    import tensorflow as tf
    from absl import flags

    flags.FLAGS(sys.argv[:1])
    sys.meta_path.insert(0, Finder(Path(os.environ["KFIT_PEERS_SOURCES"])))
    for package in ("tf_keras.distribute", "tf_keras.engine"):
        importlib.import_module(package)  # or pytest imports what is in the sources
    if WORKERS == 1:
        devices = [tf.config.LogicalDeviceConfiguration()] * 3
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, devices)
    put_kfit_in_place(_strategy_of)
    keras_2.rename()
    for internal in (tf.__internal__, tf.compat.v2.__internal__):
        internal.distribute.combinations.generate = _generate
        internal.test.combinations.generate = _generate
        runner = internal.distribute.multi_process_runner
        runner.run, runner.get_barrier = _run_on_workers, _Barrier
        runner.create_cluster_spec = dict
    # It leaves nothing of a class that it decorates.
    test_utils = importlib.import_module("tf_keras.testing_infra.test_utils")
    test_utils.run_v2_only = lambda decorated=None: decorated or (lambda each: each)
    if WORKERS > 1:
        tf.test.TestCase.get_temp_dir = _shared_folder


def _strategy_of(model: Any) -> Any:
    """That of the scope the model was made in; one device for a model that a test compares with."""
    from kfit.distribute.scopes import scope_of

    return scope_of(model) or "one_device"


@functools.cache
def _workers() -> Any:
    """The adapter of the cluster of this process."""
    import kfit

    return kfit.distribute.MultiWorker()


def _run_on_workers(
    function: Callable[..., Any], cluster_spec: Any, args: tuple[Any, ...] = (), **kwargs: Any
) -> None:
    """Runs here what TensorFlow's runs in workers that it starts: this process is one of them."""
    if WORKERS == 1:
        raise unittest.SkipTest("runs on workers")
    function(*args)


class _Barrier:
    """Where all workers wait for each other."""

    def wait(self) -> None:
        _workers().host_collectives.any_true(False)


def _shared_folder(test: unittest.TestCase) -> str:
    """The same folder for a test on all workers."""
    folder = Path(os.environ["TEST_TMPDIR"]) / test.id()
    folder.mkdir(exist_ok=True)
    return str(folder)


def _generate(combinations: list[dict[str, Any]], *args: Any) -> Callable[[Any], Any]:
    """TensorFlow's, of the combinations that can run here; what asks for graph mode runs eagerly.

    Where a test is for one replica and for several, it is run on several.
    """
    from tensorflow.python.distribute import combinations as of_tensorflow

    possible: dict[str, dict[str, Any]] = {}
    for combination in combinations:
        try:
            here = {key: _here(value) for key, value in combination.items()}
        except unittest.SkipTest:
            continue
        if "mode" in here:
            here["mode"] = "eager"
        possible[repr(here)] = type(combination)(here)
    several = {key: here for key, here in possible.items() if "Mirrored2" in key}
    if not possible:
        return unittest.skip("none of its strategies can run here")
    return of_tensorflow.generate(list((several or possible).values()), *args)


def _here(value: Any) -> Any:
    """A strategy of CPUs in the place of one of GPUs or TPUs.

    Raises:
        unittest.SkipTest: If there is none.
    """
    from tensorflow.python.distribute import combinations, strategy_combinations

    if repr(value).endswith("V1"):
        raise unittest.SkipTest(f"{value}: an optimizer of TensorFlow 1")
    if not isinstance(value, combinations.NamedDistribution):
        return value
    of_workers = value.num_workers > 1 or value.has_chief
    if value.num_ps or "CentralStorage" in repr(value) or of_workers != (WORKERS > 1):
        raise unittest.SkipTest(repr(value))
    if of_workers:
        return combinations.NamedDistribution("Workers", lambda: _workers().tf_strategy)
    if value.required_gpus or value.required_physical_gpus or value.required_tpu:
        one = repr(value) in ("OneDeviceGPU", "Mirrored1GPU", "TPUOneCore")
        name = "one_device_strategy" if one else "mirrored_strategy_with_two_cpus"
        return getattr(strategy_combinations, name)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Judges by the table of differences what fails, and what ought to fail but does not."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if report.when != "call" or report.skipped:
        return report
    reason = reason_of_tf_keras(item.nodeid, error)
    if isinstance(error, GoneError):
        reason = f"needs {error}, which Keras 3 does not have"
    if report.failed and reason is not None:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, reason)
    elif report.passed and reason is not None:
        report.outcome = "failed"
        report.longrepr = f"It passes, and is in the table of differences: {reason}"
    return report
