"""Ported from `tutorials/distribute/multi_worker_with_ctl`: a loop by hand that resumes.

The tutorial writes the loop for several workers: a loss divided by the global batch size, `run`,
`reduce`. Each worker writes its checkpoint to a folder of its own, and all but the chief's are
deleted. Started again, the program continues from the last checkpoint.

With kfit such a loop stays a loop: kfit gives it the strategy of the cluster and a folder to write
to, and nothing else is done for it. It divides the loss itself, drops the short last batch, and
resumes only between epochs. `custom_training.py` with `BackupAndRestore` needs none of this.
"""

import argparse

import keras
import tensorflow as tf

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-ctl", help="folder of the checkpoints")
parser.add_argument("--epochs", type=int, default=10, help="epochs, with those of earlier runs")
options = parser.parse_args()

keras.utils.set_random_seed(1)
train, (x_test, y_test) = kfit.datasets.digits.load_data()
strategy = kfit.distribute.as_strategy("auto")  # kfit: MultiWorkerMirroredStrategy()
with strategy.scope():
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
    optimizer = keras.optimizers.SGD(0.2)
    optimizer.build(model.trainable_variables)
    epoch = tf.Variable(0)


def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Trains on the rows of one replica, and returns its share of the mean loss."""
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), True)
        loss = tf.reduce_sum(losses) / 64  # the gradients of the replicas are summed
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


step = tf.function(lambda batch: strategy.reduce("sum", strategy.run(replica_step, batch)))
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
folder = kfit.saving.write_directory(options.folder)  # kfit: the folder, on the chief
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
checkpoint.restore(tf.train.latest_checkpoint(options.folder))
while epoch.numpy() < options.epochs:
    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(2000, seed=epoch.numpy())
    batches = strategy.distribute_dataset(batches.batch(64, drop_remainder=True))
    losses = [float(step(batch)) for batch in batches]
    epoch.assign_add(1)
    manager.save()
    if strategy.is_chief:  # kfit: task_id == 0
        print(f"Epoch {epoch.numpy()}: loss {sum(losses) / len(losses):.6f}")
hits = model(x_test.astype("float32")).numpy().argmax(axis=1) == y_test
if strategy.is_chief:  # kfit: task_id == 0
    print(f"Test: accuracy {hits.mean():.2%}")
