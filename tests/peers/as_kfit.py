"""A plugin of pytest: runs another project's tests with kfit in the place of Keras' own training.

`test_keras.py` says how it is started; `KFIT_PEERS_REPLICAS` says on how
many replicas. Whatever a test calls `fit`, `evaluate` or `predict` of then trains on them.
"""

import os
import sys
import types
from collections.abc import Generator
from typing import Any

import pytest
from exchange import put_kfit_in_place

REPLICAS = int(os.environ.get("KFIT_PEERS_REPLICAS", "1"))


def pytest_configure(config: pytest.Config) -> None:
    """Splits the CPU into devices, and exchanges the methods of `keras.Model`."""
    for marker in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{marker}: of Keras' own tests")
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    # Keras' tests import jax for what they skip on TensorFlow.
    sys.modules.setdefault("jax", types.ModuleType("jax"))
    one = tf.config.LogicalDeviceConfiguration()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [one] * max(2, REPLICAS))
    put_kfit_in_place(lambda model: _strategy())
    trainer.TensorFlowTrainer = _trainer()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that are known to differ, each with its reason."""
    from differences import reason_of

    for item in items:
        if item.get_closest_marker("multi_device"):
            item.add_marker(pytest.mark.skip(reason="for jax alone"))
        reason = reason_of(item.nodeid, REPLICAS)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Counts as skipped what needs jax, torch or grain, where these are not installed."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if report.failed and missing.partition(".")[0] in ("jax", "torch", "grain"):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"needs {missing}, which is not installed")
    return report


def _strategy() -> Any:
    """One strategy for all tests, so that a model keeps its trainer."""
    import kfit

    if not hasattr(_strategy, "made"):
        devices = [f"CPU:{index}" for index in range(REPLICAS)]
        adapter = kfit.distribute.OneDevice() if REPLICAS == 1 else None
        _strategy.made = adapter or kfit.distribute.Mirrored(devices)
    return _strategy.made


def _trainer() -> Any:
    """Stands for `TensorFlowTrainer`, from which Keras' tests make models without `keras.Model`."""
    import keras

    above = set(keras.Model.__mro__) - set(keras.layers.Layer.__mro__)

    class ModelOfLayer(keras.Model):
        """A `keras.Model` that leaves what a layer does to the layer it is mixed with."""

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            for name in ("call", "build", "compute_output_shape", "get_config"):
                for base in cls.__mro__:
                    if base not in above and base is not ModelOfLayer and name in vars(base):
                        setattr(cls, name, vars(base)[name])
                        break

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Called after the layer's: what it has set must stay.
            for base in above - {keras.Model}:
                if base.__name__ == "TensorFlowTrainer":
                    base.__init__(self)

    return ModelOfLayer
