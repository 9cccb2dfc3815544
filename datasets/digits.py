"""The 1,797 handwritten digits of UCI. They are part of the package, so nothing is downloaded.

Source, citation and licence are in ``digits.md`` beside this file.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["load_data"]

_FILE = Path(__file__).with_name("digits.npz")


def load_data() -> tuple[
    tuple[NDArray[np.uint8], NDArray[np.uint8]], tuple[NDArray[np.uint8], NDArray[np.uint8]]
]:
    """Loads the handwritten digits.

    The split is fixed: of every class, the 3rd, 9th, 15th ... example of the original order is for
    testing, so the test part holds each class 29 to 31 times. The same 13 people wrote both parts.

    Returns:
        ``(x_train, y_train), (x_test, y_test)`` with 1,497 and 300 examples in the original order.
        ``x`` is uint8 of shape (n, 8, 8): for each cell the number of its 16 pixels that are ink, 0
        to 16. ``y`` is uint8 of shape (n,): the digit, 0 to 9. Each call returns new arrays.
    """
    with np.load(_FILE, allow_pickle=False) as arrays:
        x, y = arrays["x"], arrays["y"]
    test = _is_test(y)
    return (x[~test], y[~test]), (x[test], y[test])


def _is_test(y: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Chooses the examples for testing: every sixth one of each class, beginning with the third.

    Returns:
        A bool for each example, of shape (n,).
    """
    marked = np.zeros(len(y), dtype=np.bool_)
    for digit in range(10):
        marked[np.flatnonzero(y == digit)[2::6]] = True
    return marked
