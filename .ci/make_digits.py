"""Makes datasets/digits.npz from scikit-learn's copy of the digits; the same bytes on every run.

Usage, at the root of the repository: python .ci/make_digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).parents[1] / "datasets" / "digits.npz"


def main() -> None:
    """Writes the 1,797 images and labels, in their original order, as uint8."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    if not (np.array_equal(images, digits.images) and np.array_equal(labels, digits.target)):
        raise ValueError("The digits of this scikit-learn do not fit into uint8.")
    np.savez_compressed(TARGET, x=images, y=labels)
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
