"""Trains on GPUs and says how far that is from the CPU: `python gpus.py CASE` prints JSON."""

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kfit
from kfit.checkpoint import state
from kfit.distribute import Mirrored, MultiWorker, OneDevice

FIXED = {"batch_size": 24, "epochs": 2, "shuffle": False, "verbose": 0}


def data(examples: int = 101) -> Any:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(examples, 8, 8, 1)).astype("float32")
    return x, (x.mean((1, 2, 3)) > 0).astype("int64")


def model(policy: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten()]
    layers = [*layers, keras.layers.Dense(2, dtype="float32")]
    if policy:
        keras.config.set_dtype_policy(policy)
        layers[0] = keras.layers.Conv2D(4, 3, activation="relu")
    made = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=False)
    return made


def against_cpu(strategy: Any, **fixed: Any) -> dict[str, Any]:
    fixed = {**FIXED, **fixed}
    many = model()
    got = kfit.Trainer(many, strategy).fit(*data(), **fixed).history["loss"]
    one = model()
    expected = kfit.Trainer(one, OneDevice("CPU:0")).fit(*data(), **fixed).history["loss"]
    pairs = zip(many.get_weights(), one.get_weights(), strict=True)
    distance = max(float(np.abs(a - b).max()) for a, b in pairs)
    return {"distance": distance, "loss": got, "expected_loss": expected}


def mixed_float16() -> dict[str, Any]:
    trained = model("mixed_float16")
    history = kfit.Trainer(trained, Mirrored()).fit(*data(), **{**FIXED, "epochs": 10}).history
    finite = all(np.isfinite(w).all() for w in trained.get_weights())
    return {"finite": finite, "first_loss": history["loss"][0], "loss": history["loss"][-1]}


def memory_growth() -> dict[str, Any]:
    strategy = Mirrored(memory_growth=True)
    kfit.Trainer(model(), strategy).fit(*data(), **FIXED)
    gpu = tf.config.list_physical_devices("GPU")[0]
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    growth = tf.config.experimental.get_memory_growth(gpu)
    return {"growth": growth, "megabytes": peak / (1 << 20)}


def snapshot() -> dict[str, Any]:
    trainer = kfit.Trainer(model(), Mirrored())
    trainer.fit(*data(), **FIXED)
    with trainer._ready._placement.placed():
        taken = state.take_variables(trainer.model, trainer.strategy)
    return {"devices": [e["value"].device for e in taken if hasattr(e["value"], "device")]}


CASES = {
    "one_device": lambda: against_cpu(OneDevice("GPU:0")),
    "mirrored_one": lambda: against_cpu(Mirrored([0])),
    "mirrored_all": lambda: against_cpu(Mirrored()),
    "nccl": lambda: against_cpu(Mirrored([0, 1], cross_device_ops="nccl", num_packs=2)),
    "hierarchical": lambda: against_cpu(Mirrored([0, 1], cross_device_ops="hierarchical")),
    "uneven": lambda: against_cpu(Mirrored([0, 1]), batch_size=25),
    "nccl_worker": lambda: against_cpu(MultiWorker(communication="nccl")),
    "mixed_float16": mixed_float16,
    "memory_growth": memory_growth,
    "snapshot": snapshot,
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()), flush=True)
