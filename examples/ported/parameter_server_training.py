"""Ported from `tutorials/distribute/parameter_server_training`: asynchronous training.

In the tutorial every task is a process with its own code: workers and parameter servers start a
server and wait, and a coordinator trains, by `fit` or by a loop that schedules steps on the workers
and joins them. The variables are made in a scope, which may split large ones over the servers. An
evaluator in a task of its own, or the coordinator between two epochs, measures the accuracy.

With kfit this is one program. `kfit run` starts the servers, and `auto` sees that the cluster has
parameter servers. `fit` schedules the steps; each example counts once in an epoch and in the
metrics, also when a worker dies. Run on one process or on synchronous workers, the same program
trains with exact numbers; with parameter servers the order of the updates is not fixed.

python examples/ported/parameter_server_training.py
kfit run --workers 2 examples/ported/parameter_server_training.py
kfit run --workers 2 --ps 1 examples/ported/parameter_server_training.py
"""

import keras
import tensorflow as tf

import kfit

keras.utils.set_random_seed(1)
train, test = kfit.datasets.digits.load_data()
dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(2000).batch(64)

layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])

strategy = "auto"
cluster = kfit.distribute.current_cluster()  # kfit: None if this process trains alone
if cluster is not None and cluster.has_ps:  # kfit: splits variables above 8 kB
    split = tf.distribute.experimental.partitioners.MinSizePartitioner(8 << 10, max_shards=2)
    strategy = kfit.distribute.ParameterServer(variable_partitioner=split)  # kfit: no scope

trainer = kfit.Trainer(model, strategy)  # kfit: this process is the coordinator
trainer.fit(dataset, epochs=10, verbose=0, validation_data=test)  # kfit: model.fit
loss, accuracy = trainer.evaluate(*test, verbose=0)  # kfit: the workers evaluate
if trainer.is_chief:  # kfit: synchronous workers all run this program
    print(f"Trained on {trainer.strategy.name}")  # kfit: such as parameter_server
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
