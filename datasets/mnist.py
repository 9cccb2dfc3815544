"""MNIST: 70,000 handwritten digits, downloaded by Keras once per host.

Source: Y. LeCun, C. Cortes and C. J. C. Burges, http://yann.lecun.com/exdb/mnist/. Licence: CC
BY-SA 3.0. Keras checks the file against its sha256.
"""

import numpy as np
from numpy.typing import NDArray

from kfit.datasets.download import Download, load_locked

__all__ = ["load_data"]

_DOWNLOAD = Download(
    name="mnist",
    url="https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    files=("mnist.npz",),
)


def load_data() -> tuple[
    tuple[NDArray[np.uint8], NDArray[np.uint8]], tuple[NDArray[np.uint8], NDArray[np.uint8]]
]:
    """Loads MNIST, pictures of handwritten digits, through ``keras.datasets.mnist``.

    Many processes of a host may call it at the same time: only one of them downloads the file.

    Returns:
        ``(x_train, y_train), (x_test, y_test)`` with 60,000 and 10,000 examples. ``x`` is uint8 of
        shape (n, 28, 28): grey values, 0 (background) to 255. ``y`` is uint8 of shape (n,): the
        digit, 0 to 9.

    Raises:
        kfit.datasets.download.DownloadError: If the file is not in Keras' cache and cannot be
            downloaded.
    """
    import keras

    return load_locked(_DOWNLOAD, keras.datasets.mnist.load_data)
