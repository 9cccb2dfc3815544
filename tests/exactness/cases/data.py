"""What the cases are trained on: numbers of one seed, as many examples as asked for."""

import numpy as np


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def numbers(*shape: int) -> np.ndarray:
    return rng().normal(size=shape).astype("float32")


def labels(examples: int, classes: int, *inner: int) -> np.ndarray:
    return rng().integers(0, classes, (examples, *inner))


def positive(*shape: int) -> np.ndarray:
    return rng().uniform(0.1, 2.0, shape).astype("float32")


def regression(examples: int) -> tuple[np.ndarray, np.ndarray]:
    return numbers(examples, 4), 2 * numbers(examples, 2) + 1


def words(n: int, length: int = 5) -> np.ndarray:
    """Sentences of several lengths, padded with 0."""
    tokens = rng().integers(1, 9, (n, length))
    tokens[np.arange(length) >= rng().integers(1, length + 1, n)[:, None]] = 0
    return tokens
