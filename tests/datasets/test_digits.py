"""kfit.datasets.digits: the real digits, a fixed split, no network, no Keras."""

import hashlib
import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from kfit.datasets import digits

SHA256 = {
    "x_train": "2f08f6b469b87b002d70b193f407c44c4cf612dea6217a88587e127f7dcf3829",
    "y_train": "7acca18f4eed385b9a44d8cd5222499035129325672d3b926ddc1aab40266282",
    "x_test": "ff7f52643f9024a4eafc878621b2a5edbf744b238119d26458def7d4d28df11b",
    "y_test": "7a5f98a611d970dfb68138dba86a3bf82f8cd4763a24a3c0ee7dfe78b78393db",
}


def test_shapes_types_and_ranges():
    (x_train, y_train), (x_test, y_test) = digits.load_data()
    assert (x_train.shape, y_train.shape) == ((1497, 8, 8), (1497,))
    assert (x_test.shape, y_test.shape) == ((300, 8, 8), (300,))
    assert {a.dtype for a in (x_train, y_train, x_test, y_test)} == {np.dtype(np.uint8)}
    assert (x_train.min(), x_train.max()) == (0, 16)
    assert set(y_train) == set(y_test) == set(range(10))


def test_the_split_never_changes():
    (x_train, y_train), (x_test, y_test) = digits.load_data()
    parts = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    assert {k: hashlib.sha256(v.tobytes()).hexdigest() for k, v in parts.items()} == SHA256


def test_equals_the_copy_of_scikit_learn_in_its_order():
    images, labels = load_digits(return_X_y=True)
    seen = dict.fromkeys(range(10), 0)
    test = np.zeros(len(labels), dtype=bool)
    for i, label in enumerate(labels):
        test[i] = seen[label] % 6 == 2
        seen[label] += 1
    images = images.reshape(-1, 8, 8)

    (x_train, y_train), (x_test, y_test) = digits.load_data()
    np.testing.assert_array_equal(x_train, images[~test])
    np.testing.assert_array_equal(y_train, labels[~test])
    np.testing.assert_array_equal(x_test, images[test])
    np.testing.assert_array_equal(y_test, labels[test])


def test_every_class_has_its_share_of_the_test_part():
    _, (_, y_test) = digits.load_data()
    counts = np.bincount(y_test)
    assert counts.min() >= 29
    assert counts.max() <= 31


def test_a_caller_may_write_into_its_arrays():
    (x_train, _), _ = digits.load_data()
    x_train[:] = 0
    assert digits.load_data()[0][0].any()


def test_needs_neither_keras_nor_tensorflow(tmp_path):
    code = (
        "import sys; from kfit.datasets import digits; digits.load_data(); "
        "print(sorted({'keras', 'tensorflow', 'sklearn'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"
