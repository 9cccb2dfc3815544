"""A few of the families on two real workers, in one cluster."""

from collections.abc import Callable
from typing import Any

import keras
import pytest

import kfit
from tests.families import test_gan as gans
from tests.families import test_recommender as recommenders
from tests.families import test_transformer as transformers

Family = tuple[Callable[[], keras.Model], tuple[Any, ...]]


def families() -> dict[str, Family]:
    """The makers of the models, and their data."""
    words = transformers.sentences()
    return {
        "transformer": (transformers.decoder, (words[:, :-1], words[:, 1:])),
        "gan": (gans.gan, (gans.real(), gans.noise())),
        "recommender": (recommenders.recommender, (recommenders.watched(), recommenders.ratings())),
    }


def trained() -> dict[str, Any]:
    """What a worker runs: trains each model on all workers."""
    told = {}
    for name, (make, data) in families().items():
        keras.utils.set_random_seed(1)
        model = make()
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        history = kfit.Trainer(model, "multi_worker").fit(*data, **options).history
        told[name] = (model.get_weights(), history)
    return told


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return kfit.launch(trained, workers=2)


@pytest.mark.parametrize("name", ["transformer", "gan", "recommender"])
def test_two_workers_compute_what_keras_computes(
    told: dict[str, Any], trained_elsewhere: Any, name: str
) -> None:
    make, data = families()[name]
    trained_elsewhere(told[name], make, *data)
