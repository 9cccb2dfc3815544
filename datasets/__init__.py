"""Small, well-known data sets; installed as ``kfit.datasets``.

One data set a file. Each has ``load_data() -> ((x_train, y_train), (x_test, y_test))``: NumPy
arrays, unbatched and unscaled. ``digits`` is part of the package and needs no network; the others
are downloaded by Keras, once a host.

A data set is imported at its first use, so ``import kfit.datasets`` imports neither Keras nor
TensorFlow.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kfit.datasets import digits as digits
    from kfit.datasets import fashion_mnist as fashion_mnist
    from kfit.datasets import mnist as mnist

__all__ = ["digits", "fashion_mnist", "mnist"]


def __getattr__(name: str) -> ModuleType:
    """Imports the data set ``name`` at its first use (PEP 562)."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the lazy names too, for completion."""
    return sorted({*globals(), *__all__})
