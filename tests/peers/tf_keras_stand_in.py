"""`tf_keras` with Keras 3 in it: what tf_keras' tests import, while their own modules stay theirs.

A test file of tf_keras, and what it shares with others, is read from the copy of its sources.
Every other module of tf_keras is an empty one whose names are Keras 3's of the same meaning. A name
that Keras 3 has not can be imported and named; a test that does more with it is skipped.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras_2

TRANSLATED: dict[str, Any] = {
    "Input": keras_2.make_input,
    "ReductionV2": keras_2.Reduction,
    "get_value": keras_2.get_value,
    "global_batch_size_supported": lambda strategy: True,
    "is_tpu_strategy": lambda strategy: False,
    "policy_scope": keras_2.policy_scope,
    "set_value": keras_2.set_value,
}
"""Functions of Keras 2 that Keras 3 does not have."""

READ = (
    "distribute.keras_correctness_test_base",
    "distribute.multi_worker_testing_utils",
    "distribute.optimizer_combinations",
    "distribute.strategy_combinations",
    "premade_models.linear",
    "premade_models.wide_deep",
    "testing_infra.test_utils",
    "utils.tf_inspect",
    "utils.tf_contextlib",
)
"""Modules that are read from the sources beside the tests themselves."""

NOT_NAMES = ("__", "pytest_", "setUp", "tearDown", "setup_", "teardown_")
"""How names begin that Python or pytest look for in any module."""


class GoneError(Exception):
    """A test needs something of Keras 2 that Keras 3 does not have."""


class Gone(type):
    """The class of what stands for a name that Keras 3 has not."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise GoneError(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Gone(f"{cls.__name__}.{name}", (), {})


class StandIn(types.ModuleType):
    """A module of tf_keras, or a function of it that Keras 3 has not, as far as is known."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(NOT_NAMES):
            raise AttributeError(name)
        value = _found(self.__name__, name)
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise GoneError(self.__name__)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `tf_keras` and all that is below it.

    Args:
        sources: The folder `tf_keras` of a copy of its sources.
    """

    def __init__(self, sources: Path) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, _, name = fullname.partition(".")
        if root != "tf_keras":
            return None
        if _is_read(fullname):
            file = self._sources / f"{name.replace('.', '/')}.py"
            return importlib.util.spec_from_file_location(fullname, file)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _is_read(module: str) -> bool:
    """Whether a module is read from the sources."""
    return module.partition(".")[2] in READ or module.endswith("_test")


def _found(module: str, name: str) -> Any:
    """What `module.name` of tf_keras is in Keras 3."""
    import keras
    import tensorflow as tf

    if name in TRANSLATED:
        return TRANSLATED[name]
    part = module.split(".")[1:2]
    # `tf.keras` is Keras 3 with functions for code that was written for Keras 2.
    places = [getattr(one, each, None) for each in part for one in (keras, tf.keras)]
    places += [keras, keras.layers, keras.optimizers, keras.utils, keras.models]
    places += [keras.mixed_precision, keras.optimizers.schedules]
    for place in [] if _is_read(f"{module}.{name}") else places:
        value = getattr(place, name, None)
        if value is not None and not isinstance(value, types.ModuleType):
            return value
    if name[0].isupper():
        return Gone(f"{module}.{name}", (), {})
    return importlib.import_module(f"{module}.{name}")
