"""A custom training loop with the methods of kfit's strategies: run, reduce, gather."""

import keras
import tensorflow as tf

import kfit

BATCH_SIZE = 64  # the global batch size, over all replicas

keras.utils.set_random_seed(1)
(x, y), (x_test, y_test) = kfit.datasets.digits.load_data()
strategy = kfit.distribute.as_strategy("auto")

train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat().batch(BATCH_SIZE)
train = iter(strategy.distribute_dataset(train))
test = strategy.distribute_dataset(tf.data.Dataset.from_tensor_slices(x_test).batch(100))

with strategy.scope():  # variables that are created in the scope have a copy on every replica
    layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
    optimizer = keras.optimizers.Adam(5e-3)
    optimizer.build(model.trainable_variables)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
loss_of_each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Trains on one replica's rows; gradients are summed, so its loss is its share of the mean."""
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_sum(loss_of_each(y, logits)) / BATCH_SIZE
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    accuracy.update_state(y, logits)
    return loss


@tf.function
def train_step(batch: tuple) -> tf.Tensor:
    """Trains on all replicas and returns the loss of the global batch."""
    return strategy.reduce("sum", strategy.run(replica_step, batch))


@tf.function
def predict(x: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all replicas, in the order of the data set."""
    return strategy.gather(strategy.run(model, (x,)), axis=0)


for epoch in range(10):
    losses = [float(train_step(next(train))) for _ in range(len(x) // BATCH_SIZE)]
    with strategy.scope():  # `result` sums over the replicas, so all workers must call it
        seen = float(accuracy.result())
    accuracy.reset_state()
    if strategy.is_chief:
        print(f"Epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}, accuracy {seen:.2%}")
rows = [len(labels) for labels in strategy.local_results(next(train)[1])]
hits = tf.concat([predict(batch) for batch in test], axis=0).numpy().argmax(axis=1) == y_test
if strategy.is_chief:
    print(f"Test accuracy: {hits.mean():.2%} of {len(hits)}; rows of a batch per replica: {rows}")
