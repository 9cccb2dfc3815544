"""Fashion-MNIST: 70,000 pictures of clothes, downloaded by Keras once per host.

Source: H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking
Machine Learning Algorithms", https://arxiv.org/abs/1708.07747. Licence: MIT, Zalando SE.
"""

import numpy as np
from numpy.typing import NDArray

from kfit.datasets.download import Download, load_locked

__all__ = ["load_data"]

_DOWNLOAD = Download(
    name="fashion_mnist",
    url="https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    files=(
        "train-labels-idx1-ubyte.gz",
        "train-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
    ),
    folder="fashion-mnist",
)


def load_data() -> tuple[
    tuple[NDArray[np.uint8], NDArray[np.uint8]], tuple[NDArray[np.uint8], NDArray[np.uint8]]
]:
    """Loads Fashion-MNIST, pictures of clothes, through ``keras.datasets.fashion_mnist``.

    Many processes of a host may call it at the same time: only one of them downloads the files.

    Returns:
        ``(x_train, y_train), (x_test, y_test)`` with 60,000 and 10,000 examples. ``x`` is uint8 of
        shape (n, 28, 28): grey values, 0 (background) to 255. ``y`` is uint8 of shape (n,): 0
        T-shirt/top, 1 trouser, 2 pullover, 3 dress, 4 coat, 5 sandal, 6 shirt, 7 sneaker, 8 bag,
        9 ankle boot.

    Raises:
        kfit.datasets.download.DownloadError: If a file is not in Keras' cache and cannot be
            downloaded.
    """
    import keras

    return load_locked(_DOWNLOAD, keras.datasets.fashion_mnist.load_data)
