"""Ported from `guide/migrate/metrics_optimizers`: metrics and optimizers of Keras.

The guide moves from `eval_metric_ops` and the optimizers of TensorFlow 1 to Keras' metrics, built
in or of one's own, and to Keras' optimizers, with a table of their names and arguments.

With kfit both are those of Keras. `add_weight`, and `assign_add` in `update_state`, mean here what
they mean on one device: kfit adds up what all replicas have added, and `result` divides the sums
of all examples, not the quotients of the replicas. An optimizer gets the gradient of the global
batch, also for clipping or accumulation. So results do not depend on the number of replicas.
"""

import keras
import tensorflow as tf

import kfit


class Recall(keras.metrics.Metric):
    """The fraction of a digit's pictures that are recognized.

    Args:
        digit: The digit.
    """

    def __init__(self, digit: int) -> None:
        super().__init__(name=f"recall_of_{digit}")
        self.digit = digit
        self.recognized = self.add_weight(initializer="zeros", name="recognized")
        self.all = self.add_weight(initializer="zeros", name="all")

    def update_state(
        self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> None:
        """Adds the pictures of a batch; this example has no weights."""
        is_digit = tf.equal(tf.cast(tf.reshape(y_true, [-1]), "int64"), self.digit)
        is_recognized = is_digit & tf.equal(tf.argmax(y_pred, axis=1), self.digit)
        self.all.assign_add(tf.reduce_sum(tf.cast(is_digit, "float32")))
        self.recognized.assign_add(tf.reduce_sum(tf.cast(is_recognized, "float32")))

    def result(self) -> tf.Tensor:
        """Returns a number from 0 to 1."""
        return tf.math.divide_no_nan(self.recognized.value, self.all.value)


keras.utils.set_random_seed(1)
(x, y), test = kfit.datasets.digits.load_data()
layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Rescaling(1 / 16), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.1)
model.compile(optimizer, loss, metrics=["accuracy", Recall(8)])
trainer = kfit.Trainer(model)  # kfit: no scope, in which metrics too would have to be made
trainer.fit(x, y, 64, epochs=10, verbose=0)  # kfit: model.fit
logs = trainer.evaluate(*test, 64, verbose=0, return_dict=True)  # kfit: model.evaluate
if trainer.is_chief:  # kfit: on workers, each of them runs this program
    print(f"Recognized eights: {logs['recall_of_8']:.6f}")
    print(f"Test: loss {logs['loss']:.6f}, accuracy {logs['accuracy']:.2%}")
