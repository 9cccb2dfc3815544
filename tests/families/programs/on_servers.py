"""Trains families on the servers of a cluster, and prints their weights and histories.

on_servers.py CLUSTER    as JSON: {"worker": [...], "ps": [...]}
"""

import json
import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import kfit

# Last, so that an installed kfit is not hidden by the folder of that name.
sys.path.append(str(Path(__file__).parents[3]))

from tests.families.test_workers import families


class Watches(keras.callbacks.Callback):
    """Has workers take turns, so that numbers are those of one device."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


def main() -> None:
    split = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = kfit.distribute.ParameterServer(json.loads(sys.argv[1]), variable_partitioner=split)
    _ = strategy.tf_strategy  # joins the cluster, before the first operation of TensorFlow
    told = {}
    for name, (make, data) in families().items():
        keras.utils.set_random_seed(1)
        model = make()
        pipeline = tf.data.Dataset.from_tensor_slices(data).batch(8)
        trainer = kfit.Trainer(model, strategy)
        history = trainer.fit(pipeline, callbacks=[Watches()], epochs=2, verbose=0).history
        told[name] = ([w.tolist() for w in model.get_weights()], history)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
