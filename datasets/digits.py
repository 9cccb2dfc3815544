"""UCI's data set of 1,797 handwritten digits, which is part of kfit: nothing is downloaded.

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
    """Loads UCI's data set of handwritten digits, pictures of 8 by 8 pixels.

    The examples for testing are always the same: of each digit the 3rd, 9th, 15th ... example in
    the original order, so 29 to 31 examples of each digit. The same 13 people wrote the digits for
    training and for testing.

    Returns:
        ``(x_train, y_train), (x_test, y_test)`` with 1,497 and 300 examples in the original order.
        ``x`` is uint8 of shape (n, 8, 8). Each value, 0 (background) to 16, is the number of inked
        pixels in a block of 4 by 4 pixels of the scanned picture. ``y`` is uint8 of shape (n,): the
        digit, 0 to 9. Each call returns new arrays.
    """
    with np.load(_FILE, allow_pickle=False) as arrays:
        x, y = arrays["x"], arrays["y"]
    test = _is_test(y)
    return (x[~test], y[~test]), (x[test], y[test])


def _is_test(y: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Chooses the examples for testing: of each digit every sixth example, from the third on.

    Args:
        y: The digit of each example, 0 to 9, of shape (n,).

    Returns:
        For each example whether it is for testing, of shape (n,).
    """
    marked = np.zeros(len(y), dtype=np.bool_)
    for digit in range(10):
        marked[np.flatnonzero(y == digit)[2::6]] = True
    return marked
