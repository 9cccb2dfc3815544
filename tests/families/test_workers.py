"""A few of the families on real workers, in one cluster, and on parameter servers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import kfit
from kfit.supervisor.local import free_ports
from tests.families import test_gan as gans
from tests.families import test_recommender as recommenders
from tests.families import test_vae as autoencoders

HERE = Path(__file__).parent
PROGRAM = HERE / "programs" / "on_servers.py"
SERVERS = HERE.parent / "distribute" / "programs" / "all_servers.py"

pytestmark = pytest.mark.long
"""Starting the processes takes as long as half of the other families together."""

Family = tuple[Callable[[], keras.Model], tuple[Any, ...]]


def families() -> dict[str, Family]:
    """The makers of the models, and their data."""
    return {
        "gan": (gans.gan, (gans.real(), gans.noise())),
        "autoencoder": (
            autoencoders.autoencoder,
            (autoencoders.images(), autoencoders.noise()),
        ),
        "recommender": (recommenders.recommender, (recommenders.watched(), recommenders.ratings())),
    }


def trained() -> dict[str, Any]:
    """What a worker runs: trains each model on all workers."""
    told = {}
    for name, (make, data) in families().items():
        keras.utils.set_random_seed(1)
        model = make()
        pipeline = tf.data.Dataset.from_tensor_slices(data).batch(8)
        trainer = kfit.Trainer(model, "multi_worker")
        history = trainer.fit(pipeline, epochs=2, verbose=0).history
        told[name] = (model.get_weights(), history)
    return told


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return kfit.launch(trained, workers=2)


@pytest.mark.parametrize("name", ["gan", "autoencoder", "recommender"])
def test_two_workers_compute_what_keras_computes(
    told: dict[str, Any], trained_elsewhere: Any, name: str
) -> None:
    make, data = families()[name]
    trained_elsewhere(told[name], make, *data)


@pytest.fixture(scope="module")
def told_by_servers() -> dict[str, Any]:
    """Two workers that take turns, and embeddings that lie in halves on two parameter servers."""
    addresses = [f"localhost:{port}" for port in free_ports(4)]
    cluster = json.dumps({"worker": addresses[:2], "ps": addresses[2:]})
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(SERVERS), cluster]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE) as servers:
        try:
            done = subprocess.run(
                [sys.executable, str(PROGRAM), cluster],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        finally:
            servers.kill()
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("name", ["gan", "autoencoder", "recommender"])
def test_parameter_servers_compute_what_keras_computes(
    told_by_servers: dict[str, Any], trained_elsewhere: Any, name: str
) -> None:
    """Among them steps of the models' own, which build their optimizers."""
    make, data = families()[name]
    trained_elsewhere(told_by_servers[name], make, *data)
