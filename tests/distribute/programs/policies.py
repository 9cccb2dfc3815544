"""Sums what the workers see of a data set under TensorFlow's auto-shard policies."""

import json
import pathlib
import sys

import keras
import tensorflow as tf

import kfit

kfit.join_cluster()


class Seen(keras.Model):
    """Sums and counts its inputs over all replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.total = keras.metrics.Sum(name="total")
        self.count = keras.metrics.Sum(name="count")

    def test_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
        self.total.update_state(data)
        self.count.update_state(tf.ones_like(data))
        return {"total": self.total.result(), "count": self.count.result()}


def main(folder: str) -> None:
    # Files of unequal length: workers that run out go on with empty shards until all are done.
    files = sorted(str(path) for path in pathlib.Path(folder).glob("*.tfrecord"))
    model = Seen()
    model.compile()
    trainer = kfit.Trainer(model)
    for policy in ("AUTO", "FILE", "DATA", "OFF"):
        data = tf.data.TFRecordDataset(files).map(
            lambda record: tf.strings.to_number(record, tf.float32)
        )
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[
            policy
        ]
        data = data.batch(4).with_options(options)
        logs = trainer.evaluate(data, verbose=0, return_dict=True)
        print(json.dumps({"case": policy, "logs": logs}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
