"""Ported from `tutorials/distribute/custom_training`: a training step of one's own.

The tutorial writes its loop by hand: it distributes the data set, divides the sum of the losses by
the global batch size (and a regularizer by the number of replicas), runs the step on each replica,
and adds up their losses. A forgotten division trains another model without any error.

With kfit the step is the model's `train_step`, as in Keras, written for one device, and the loop is
`fit`. kfit reads from the step's graph that one addend of the loss is a mean over examples and the
other is not, and combines the replicas accordingly. `multi_worker_with_ctl.py` keeps its own loop.
"""

import keras
import tensorflow as tf

import kfit


class Digits(keras.Model):
    """A network with steps and metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.logits = keras.layers.Dense(64, "relu"), keras.layers.Dense(10)
        self.mean_loss = keras.metrics.Mean("loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the logits of pictures."""
        return self.logits(self.hidden(tf.reshape(tf.cast(x, "float32") / 16, (-1, 64))))

    def train_step(self, data: tuple) -> dict:
        """Takes one step."""
        with tf.GradientTape() as tape:
            losses, logs = self.measure(*data)
            penalty = 1e-4 * tf.reduce_sum(self.hidden.kernel**2)
            loss = tf.reduce_mean(losses) + penalty  # the mean of all rows that the step sees
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return logs

    def test_step(self, data: tuple) -> dict:
        """Evaluates one batch."""
        return self.measure(*data)[1]

    def measure(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, dict]:
        """Returns the loss of each example, and the metrics so far."""
        losses = keras.losses.sparse_categorical_crossentropy(y, logits := self(x), True)
        self.mean_loss.update_state(losses)
        self.accuracy.update_state(y, logits)
        return losses, {metric.name: metric.result() for metric in self.metrics}


keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()
trainer = kfit.Trainer(Digits())  # kfit: no data set to distribute, no loop, no division
trainer.compile(keras.optimizers.SGD(0.2))  # kfit: model.compile
trainer.fit(x, y, batch_size=64, epochs=10, verbose=0)  # kfit: model.fit
logs = trainer.evaluate(*test, verbose=0, return_dict=True)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    print(f"Test: loss {logs['loss']:.6f}, accuracy {logs['accuracy']:.2%}")
