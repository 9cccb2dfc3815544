"""Ported from `guide/migrate/multi_worker_cpu_gpu_training`: data that each worker reads itself.

The guide moves from `tf.estimator.train_and_evaluate` with a chief, workers and parameter servers
to `fit` with a `ParameterServerStrategy`. A function, wrapped in a `DatasetCreator`, makes the data
set of each worker. Keras 3 has neither the wrapper nor `fit` on workers.

With kfit the function itself is passed to `fit`. It gets a `tf.distribute.InputContext`, and
returns batches of the size of one replica. Synchronous workers shard the data by the context. With
parameter servers every context is the same: each worker goes through all the data in its own order.

kfit run --workers 2 examples/ported/multi_worker_cpu_gpu_training.py
kfit run --workers 2 --ps 1 examples/ported/multi_worker_cpu_gpu_training.py
"""

import keras
import tensorflow as tf

import kfit

keras.utils.set_random_seed(1)
train, test = kfit.datasets.digits.load_data()


def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns the data set of a worker: its rows of the shuffled data."""
    rows = tf.data.Dataset.from_tensor_slices(train).shuffle(2000, seed=1).repeat()
    rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
    return rows.batch(context.get_per_replica_batch_size(64))


layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])

trainer = kfit.Trainer(model)  # kfit: workers, parameter servers or GPUs, whatever there is
trainer.fit(dataset_fn, epochs=10, steps_per_epoch=23, verbose=0)  # kfit: no DatasetCreator
loss, accuracy = trainer.evaluate(*test, verbose=0)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: every synchronous worker runs this program
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
