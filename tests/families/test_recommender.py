"""Two towers that rate what a user would watch: embeddings of users and of films."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from kfit.supervisor.local import free_ports

USERS, FILMS = 30, 40
HERE = Path(__file__).parent
SERVERS = HERE.parent / "distribute" / "programs" / "all_servers.py"


def watched() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {"user": draw.integers(0, USERS, 21), "film": draw.integers(0, FILMS, 21)}


def ratings() -> np.ndarray:
    return np.random.default_rng(1).uniform(0.0, 5.0, (21, 1)).astype("float32")


def tower(number: int, given: Any) -> Any:
    return layers.Dense(3, "tanh")(layers.Embedding(number, 4)(given))


def recommender() -> keras.Model:
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "film")}
    both = [tower(USERS, inputs["user"]), tower(FILMS, inputs["film"])]
    rating = layers.Dense(1)(layers.Concatenate()([*both, layers.Dot(1)(both)]))
    model = keras.Model(inputs, rating)
    root = keras.metrics.RootMeanSquaredError(name="root")
    model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=[root])
    return model


def test_two_towers_are_those_of_keras(as_in_keras: Any) -> None:
    as_in_keras(recommender, watched(), ratings())


def test_on_parameter_servers_split_embeddings_are_those_of_keras(trained_elsewhere: Any) -> None:
    """Two workers that take turns, and embeddings that lie in halves on two parameter servers."""
    addresses = [f"localhost:{port}" for port in free_ports(4)]
    cluster = json.dumps({"worker": addresses[:2], "ps": addresses[2:]})
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(SERVERS), cluster]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE) as servers:
        try:
            done = subprocess.run(
                [sys.executable, str(HERE / "programs" / "on_servers.py"), cluster],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        finally:
            servers.kill()
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    trained_elsewhere((told["weights"], told["history"]), recommender, watched(), ratings())
