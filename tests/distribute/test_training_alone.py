"""A plain `model.fit` in a task of a cluster warns that it trains alone."""

import atexit
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kfit
from kfit.cluster.cluster import Cluster, Task
from kfit.distribute.training_alone import FOR_GOOD, warn_of_training_alone


@pytest.fixture
def of_two() -> Iterator[None]:
    addresses = {"worker": ["localhost:23456", "localhost:23457"]}
    warn_of_training_alone(Cluster(addresses, Task("worker", 0)))
    yield
    FOR_GOOD.close()


def test_only_keras_own_fit_warns(tiny: Any, of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    at_end: list[Any] = []
    monkeypatch.setattr(atexit, "register", at_end.append)
    (x, y), model = tiny.data(20), tiny.model()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="`model.fit` is Keras' own")
        kfit.fit(model, x, y, strategy=tiny.strategy(1), verbose=0)
        with kfit.install(tiny.strategy(1)):
            tiny.model().fit(x, y, verbose=0)
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
    with pytest.warns(UserWarning, match="a cluster of 2 workers") as found:
        model.fit(x, y, verbose=0)
    assert found[0].filename == __file__
    (warn,) = at_end
    with ThreadPoolExecutor(1) as pool, pytest.warns(UserWarning, match="has trained each of 2 wo"):
        pool.submit(warn).result()  # where no code of the user's runs
