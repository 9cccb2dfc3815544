"""Strings where numbers are needed: the error names the argument, before the first step."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.training.numbers_only import require_numbers

WORDS = np.array([["1.5", "2", "3", "4"]] * 8)
NUMBERS = np.ones((8, 4), "float32")
LABELS = np.zeros(8, "int64")
CLASSES = np.array(["cat"] * 8)

X = r"`x` holds strings, but the model's input .* has dtype float32\. Received: dtype string, shape"
Y = r"`y` holds strings, but the loss .* Received: dtype string, shape"
WEIGHT = r"`sample_weight` must be numbers\. Received: strings \(dtype string\)"

CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "fit": (X, lambda t: t.fit(WORDS, LABELS, verbose=0)),
    "fit a data set": (X, lambda t: t.fit(pipeline(WORDS, LABELS), verbose=0)),
    "fit a generator": (X, lambda t: t.fit(generator(WORDS, LABELS), verbose=0)),
    "fit y": (Y, lambda t: t.fit(NUMBERS, CLASSES, verbose=0)),
    "fit sample_weight": (WEIGHT, lambda t: t.fit(NUMBERS, LABELS, sample_weight=CLASSES)),
    "validate": (
        f"`validation_data` is wrong: {X}",
        lambda t: t.fit(NUMBERS, LABELS, validation_data=(WORDS, LABELS), verbose=0),
    ),
    "validate y": (
        f"`validation_data` is wrong: {Y}",
        lambda t: t.fit(NUMBERS, LABELS, validation_data=pipeline(NUMBERS, CLASSES), verbose=0),
    ),
    "evaluate": (X, lambda t: t.evaluate(WORDS, LABELS, verbose=0)),
    "predict": (X, lambda t: t.predict(WORDS, verbose=0)),
    "train_on_batch": (X, lambda t: t.train_on_batch(WORDS, LABELS)),
    "test_on_batch": (X, lambda t: t.test_on_batch(WORDS, LABELS)),
    "predict_on_batch": (X, lambda t: t.predict_on_batch(WORDS)),
}


def test_a_loss_is_named_as_the_user_knows_it() -> None:
    cases = {
        "'mse'": "mse",
        "MeanSquaredError": keras.losses.MeanSquaredError(),
        "partial": functools.partial(keras.losses.huber, delta=2.0),
    }
    for name, loss in cases.items():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
        with pytest.raises(ValueError, match=rf"^`y` holds strings, but the loss {name} compares"):
            kfit.fit(model, NUMBERS, CLASSES, strategy="one_device", verbose=0)


def pipeline(x: Any, y: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def generator(x: Any, y: Any) -> Iterator[Any]:
    for _ in range(4):
        yield x[:4], y[:4]


@pytest.fixture(scope="module", params=[1, 2], ids=["one_replica", "two_replicas"])
def trainer(request: Any, tiny: Any) -> Any:
    return kfit.Trainer(tiny.model(), tiny.strategy(request.param))


@pytest.mark.parametrize("name", CALLS)
def test_they_are_refused_by_name_before_the_first_step(trainer: Any, name: str) -> None:
    says, call = CALLS[name]
    with pytest.raises(ValueError, match=f"^{says}"):
        call(trainer)
    assert trainer.model.optimizer.iterations.numpy() == 0


def test_a_generator_is_looked_at_when_it_is_first_asked(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    with pytest.raises(ValueError, match=f"^`validation_data` is wrong: {X}"):
        trainer.fit(
            NUMBERS,
            LABELS,
            validation_data=generator(WORDS, LABELS),
            validation_steps=1,
            verbose=0,
        )


class CallsALayer(keras.Model):
    """A model that does not say what its input is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.layer(inputs)


@pytest.mark.parametrize("kind", ["a sequence", "a class", "a class that is built"])
def test_a_model_without_inputs_of_its_own(tiny: Any, kind: str) -> None:
    is_sequence = kind == "a sequence"
    model = keras.Sequential([keras.layers.Dense(3)]) if is_sequence else CallsALayer()
    if kind == "a class that is built":
        model(NUMBERS)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"(?s)^`x` holds strings.*`x\.astype\('float32'\)`"):
        kfit.Trainer(model, tiny.strategy(1)).fit(WORDS, LABELS, verbose=0)


def words() -> Any:
    return keras.Input((4,), dtype="string", name="words")


def test_models_of_words_train_as_before(tiny: Any) -> None:
    look_up = keras.layers.StringLookup(vocabulary=["1.5", "2"], output_mode="multi_hot")
    number = keras.Input((4,), name="number")
    x = keras.layers.concatenate([look_up(words_ := words()), number])
    model = keras.Model({"words": words_, "number": number}, keras.layers.Dense(3)(x))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trainer = kfit.Trainer(model, tiny.strategy(1))
    both = {"words": WORDS, "number": NUMBERS}
    trainer.fit(both, LABELS, verbose=0)
    trainer.fit({**both, "of no input": WORDS}, LABELS, verbose=0)
    with pytest.raises(ValueError, match=r"^`x\['number'\]` holds strings"):
        trainer.predict({**both, "number": WORDS}, verbose=0)


def test_what_the_models_own_code_does_with_words_is_not_known(tiny: Any) -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return super().train_step((tf.strings.to_number(data[0]), data[1]))

    model = tiny.model(cls=Own)
    kfit.Trainer(model, tiny.strategy(1)).fit(WORDS, LABELS, verbose=0)
    spec = keras.KerasTensor((None, 4), "string"), keras.KerasTensor((None,), "int64")
    require_numbers(model, spec, "train_step")


@pytest.mark.long
def test_a_prediction_ignores_all_but_the_inputs(tiny: Any) -> None:
    model = tiny.model()
    expected = model.predict(NUMBERS, verbose=0)
    trainer = kfit.Trainer(model, tiny.strategy(2))
    ids = tf.data.Dataset.from_tensor_slices((NUMBERS, CLASSES)).batch(5)
    both = tf.data.Dataset.from_tensor_slices((NUMBERS, LABELS, CLASSES)).batch(5)
    for data in (ids, both, generator(NUMBERS, CLASSES)):
        got = trainer.predict(data, verbose=0)
        np.testing.assert_allclose(got[:8], expected, atol=1e-6)
