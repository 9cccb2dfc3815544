"""Small, well-known data sets; installed as ``kfit.datasets``.

Each data set is a module with ``load_data() -> ((x_train, y_train), (x_test, y_test))``, which
returns NumPy arrays, unbatched and unscaled. ``digits`` is part of the package and needs no
network. The other data sets are downloaded by Keras, once per host.

A module is imported when it is first used, so ``import kfit.datasets`` imports neither Keras nor
TensorFlow.
"""

from typing import TYPE_CHECKING

from kfit.lazy import lazy_names

if TYPE_CHECKING:
    from kfit.datasets import digits as digits
    from kfit.datasets import fashion_mnist as fashion_mnist
    from kfit.datasets import mnist as mnist
else:
    __getattr__, __dir__, __all__ = lazy_names(
        globals(), {}, submodules=["digits", "fashion_mnist", "mnist"]
    )
