"""`Trainer.verify` says which models are the same on replicas, and what makes the others differ."""

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.verification.report import Verification

L = keras.layers
PER_EXAMPLE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Mixes(keras.layers.Layer):
    """Subtracts the mean of the batch."""

    def call(self, x: Any) -> Any:
        return x - keras.ops.mean(x, 0)


class DrawsInGraph(keras.layers.Layer):
    """Draws from an operation of TensorFlow whose state nobody can set."""

    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x))


class DrawsConstant(keras.layers.Layer):
    """Draws from NumPy while it is traced."""

    def call(self, x: Any) -> Any:
        return x + np.random.normal()


class ScalesGradient(keras.layers.Layer):
    """Is the identity, but the second replica doubles its gradient."""

    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()

        @tf.custom_gradient
        def identity(value: Any) -> Any:
            def scaled(upstream: Any) -> Any:
                return upstream * (1.0 + tf.cast(context.replica_id_in_sync_group, tf.float32))

            return tf.identity(value), scaled

        return identity(x)


class NormalizesGradients(keras.Model):
    """Divides by the size of the predictions that the replica has made."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        size = tf.norm(y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([g / size for g in gradients], self.trainable_variables)
        return {"loss": loss}


class RootOfBatch(keras.metrics.Metric):
    """Adds up the root of each batch's mean, which is no sum over the examples."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.total = self.add_weight(initializer="zeros", name="total")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sqrt(keras.ops.mean((y - y_pred) ** 2)))

    def result(self) -> Any:
        return self.total


class ReturnsMore(keras.Model):
    """Returns rows, sums of classes and what is no number."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        words = tf.strings.as_string(y)
        sums = tf.math.unsorted_segment_sum(x, y, 3)
        return {**super().train_step(data), "x": x, "sums": sums, "words": words, "none": None}


def summed(y: Any, y_pred: Any) -> Any:
    """A loss of the user's that sums over the examples."""
    return tf.reduce_sum(PER_EXAMPLE.call(y, y_pred))


class Batches(keras.utils.PyDataset):
    """Batches that are drawn at random: reading them changes its state."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y, self.draw, self.drawn = x, y, np.random.default_rng(0), 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        rows = self.draw.integers(0, len(self.x), 13)
        self.drawn += 1
        return self.x[rows], self.y[rows]


def model(*middle: Any, cls: Any = keras.Model, **compiled: Any) -> Any:
    """A compiled classifier with the given layers in the middle."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    x = L.Dense(8, activation="tanh")(inputs)
    for layer in middle:
        x = layer(x)
    made = cls(inputs, L.Dense(3)(x))
    arguments = {"optimizer": "adam", "loss": PER_EXAMPLE, "metrics": ["accuracy"], **compiled}
    made.compile(**arguments)
    return made


def verified(made: Any, tiny: Any, **how: Any) -> Verification:
    x, y = tiny.data(37)
    found = kfit.Trainer(made, "one_device").verify(x, y, batch_size=15, **how)
    assert isinstance(found, Verification)
    return found


def test_a_plain_model_is_equal_and_nothing_is_changed(tiny: Any) -> None:
    made = model()
    x, y = tiny.data(37)
    trainer = kfit.Trainer(made, "one_device", seed=3)
    trainer.fit(x, y, batch_size=15, verbose=0)
    history = made.history

    def everything() -> list[bytes]:
        held = [*made.variables, *(v for m in made.metrics for v in m.variables)]
        return [np.asarray(v).tobytes() for v in held]

    before = everything(), random.getstate(), np.random.get_state()[1].tolist()
    found = trainer.verify(x, y, batch_size=15, sample_weight=np.linspace(0, 1, 37))
    assert found.verdict == "equal", str(found)
    assert found
    assert found.batch_sizes == (15, 15, 7)
    assert {d.name for d in found.differences} >= {"optimizer", "loss"}
    assert all(d.rounding < 1e-3 for d in found.differences)
    assert (everything(), random.getstate(), np.random.get_state()[1].tolist()) == before
    assert made.history is history
    assert tiny.is_plain(made)
    # The next `fit` is the one that would have come without `verify`.
    trainer.fit(x, y, batch_size=15, verbose=0)
    twin = model()
    other = kfit.Trainer(twin, "one_device", seed=3)
    for _ in range(2):
        other.fit(x, y, batch_size=15, verbose=0)
    assert tiny.distance(made, twin) == 0.0


@pytest.mark.parametrize(
    ("layer", "kind", "says"),
    [
        (L.BatchNormalization, "batch normalization", "synchronized=True"),
        pytest.param(*(Mixes, "looks across examples", "all_gather"), marks=pytest.mark.long),
        pytest.param(
            *(DrawsConstant, "constant random numbers", "keras.random"), marks=pytest.mark.long
        ),
    ],
)
def test_the_layer_that_differs_is_named(tiny: Any, layer: Any, kind: str, says: str) -> None:
    found = verified(model(L.Dense(8), layer(name="culprit")), tiny)
    assert found.verdict == "differs"
    assert not found
    assert [(c.name, c.kind) for c in found.causes] == [("culprit", kind)]
    assert says in found.causes[0].text
    worst = max(each.difference for each in found.differences)
    first, cause, empty, *_ = lines = str(found).splitlines()
    assert first == (
        "DIFFERS: 3 steps on 2 replicas give other numbers than on one device, by up to "
        f"{worst:.1e}."
    )
    assert cause == f"Cause: culprit ({kind}): {found.causes[0].text}"
    assert empty == ""
    assert sum("Cause" in line or "because of" in line for line in lines) == 1
    assert found.summary() == f"{first[:-1]}, because of 'culprit'."


@pytest.mark.long
def test_synchronized_batch_normalization_is_equal(tiny: Any) -> None:
    found = verified(model(L.BatchNormalization(synchronized=True)), tiny, replicas=3)
    assert found.verdict == "equal", str(found)
    assert found.replicas == 3


def test_a_layer_that_one_device_does_not_repeat(tiny: Any) -> None:
    found = verified(model(DrawsInGraph(name="culprit")), tiny)
    assert found.verdict == "not repeatable"
    assert [c.name for c in found.causes] == ["culprit"]
    assert "tf.random" in found.causes[0].text


@pytest.mark.long
def test_dropout_is_switched_off_to_compare_the_rest(tiny: Any) -> None:
    made = model(L.Dropout(0.5, name="drops"))
    found = verified(made, tiny)
    assert found.verdict == "equal but for random draws", str(found)
    assert found.is_equal
    assert [c.name for c in found.causes] == ["drops"]
    assert "call" not in vars(made.get_layer("drops"))
    assert "predict_step" not in vars(made)


@pytest.mark.long
def test_dropout_is_switched_off_also_if_another_layer_differs(tiny: Any) -> None:
    found = verified(model(L.BatchNormalization(name="norm"), L.Dropout(0.5, name="drops")), tiny)
    assert found.verdict == "differs"
    assert [(c.name, c.kind) for c in found.causes] == [
        ("norm", "batch normalization"),
        ("drops", "random numbers"),
    ]
    assert found.summary().endswith(", because of 'norm'.")
    assert "The table was made with 'drops' switched off (training=False)." in found.notes


@pytest.mark.long
def test_a_culprit_is_found_behind_dropout(tiny: Any) -> None:
    found = verified(model(L.Dropout(0.5, name="drops"), Mixes(name="culprit")), tiny)
    assert found.verdict == "differs"
    assert {c.name for c in found.causes} == {"drops", "culprit"}


@pytest.mark.long
def test_a_scaled_gradient_is_found(tiny: Any) -> None:
    found = verified(model(ScalesGradient()), tiny)
    assert found.verdict == "differs"
    assert [c.kind for c in found.causes] == ["gradient or loss"]
    unequal = [d.name for d in found.differences if not d.is_equal and d.kind == "layer"]
    assert len(unequal) >= 1


@pytest.mark.long
def test_an_own_train_step_is_named(tiny: Any) -> None:
    found = verified(model(cls=NormalizesGradients), tiny)
    assert found.verdict == "differs"
    assert [c.name for c in found.causes] == ["NormalizesGradients.train_step"]


@pytest.mark.long
def test_normalization_in_an_own_step_is_named_and_not_warned_of(tiny: Any, recwarn: Any) -> None:
    found = verified(model(L.BatchNormalization(name="norm"), cls=ReturnsMore), tiny)
    assert [c.name for c in found.causes] == ["norm"]
    assert not [each for each in recwarn if "combines the examples" in str(each.message)]


@pytest.mark.long
def test_a_step_that_returns_more_than_numbers_is_equal(tiny: Any) -> None:
    found = verified(model(cls=ReturnsMore), tiny)
    assert found.verdict == "equal"
    logs = {each.name for each in found.differences if each.kind == "log"}
    assert {"sums", "x"} <= logs
    assert not {"words", "none"} & logs


@pytest.mark.long
def test_a_loss_that_sums_is_equal(tiny: Any) -> None:
    found = verified(model(loss=summed, optimizer=keras.optimizers.SGD(0.01)), tiny)
    assert found.verdict == "equal", str(found)


@pytest.mark.long
def test_a_metric_across_the_examples_is_named(tiny: Any) -> None:
    x = np.random.default_rng(0).normal(size=(37, 4)).astype("float32")
    made = keras.Sequential([keras.Input((4,)), L.Dense(1)])
    made.compile("sgd", "mse", metrics=[RootOfBatch(name="root")])
    found = kfit.Trainer(made, "one_device").verify(x, x.sum(1, keepdims=True), batch_size=15)
    assert found.verdict == "differs"
    assert [c.name for c in found.causes] == ["root"]


@pytest.mark.long
def test_masked_sequences_of_tf_data(tiny: Any) -> None:
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 9, (37, 6))
    made = keras.Sequential([L.Embedding(9, 8, mask_zero=True), L.LSTM(8), L.Dense(2)])
    made.compile("sgd", PER_EXAMPLE)
    data = tf.data.Dataset.from_tensor_slices((tokens, tokens[:, 0] % 2)).batch(15)
    found = kfit.Trainer(made, "one_device").verify(data)
    assert found.verdict == "equal", str(found)
    assert found.batch_sizes == (15, 15, 7)


@pytest.mark.long
def test_a_py_dataset_is_set_back(tiny: Any) -> None:
    data = Batches(*tiny.data(37))
    before = data.draw.bit_generator.state
    found = kfit.Trainer(model(), "one_device").verify(data, steps=2)
    assert found.verdict == "equal", str(found)
    assert (data.draw.bit_generator.state, data.drawn) == (before, 0)


def test_what_is_refused(tiny: Any) -> None:
    def generator() -> Iterator[Any]:
        yield tiny.data(15)

    trainer = kfit.Trainer(model(), "one_device")
    x, y = tiny.data(15)
    with pytest.raises(ValueError, match=r"`x` is a generator, which can be read only once"):
        trainer.verify(generator())
    with pytest.raises(ValueError, match=r"`replicas` must be an integer of at least 2"):
        trainer.verify(x, y, replicas=1)
    with pytest.raises(ValueError, match=r"`replicas=9` needs as many devices.*kfit verify"):
        trainer.verify(x, y, replicas=9)
    with pytest.raises(ValueError, match=r"`steps` must be"):
        trainer.verify(x, y, steps=0)
