"""Wrong arguments of `fit` and its kin are told by name, before anything is trained."""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.training.arguments import check_callbacks
from tests.sweeps import only, sweep

X, Y = np.ones((8, 4), "float32"), np.arange(8) % 3


class Misspelled(kfit.callbacks.TrainingCallback):
    """Is never due."""

    def steps_untildue(self) -> int:
        return 2

    def is_deu(self) -> bool:
        return True

    def on_due(self) -> None:
        raise AssertionError


class NeverDue(kfit.callbacks.TrainingCallback):
    """Says how long it can wait, and not for what."""

    def steps_until_due(self) -> int:
        return 2


def test_hooks_that_would_never_be_called_are_refused() -> None:
    for callback, says in (
        (
            Misspelled(),
            "`Misspelled` defines `on_due`, but not `is_due`: .* Is `is_deu` misspelled",
        ),
        (NeverDue(), r"`NeverDue` defines `steps_until_due`, but not `is_due`: .* due\.$"),
    ):
        with pytest.raises(ValueError, match=says):
            check_callbacks([callback])


def as_dataset(*arrays: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays).batch(4)


def no_targets() -> tf.data.Dataset:
    return as_dataset(X)


def empty() -> tf.data.Dataset:
    return as_dataset(X, Y).take(0)


def empty_of_unknown_length() -> tf.data.Dataset:
    return as_dataset(X, Y).filter(lambda *_: False)


class Yields(keras.utils.PyDataset):
    """Gives the same batch a number of times."""

    def __init__(self, batch: Any, times: int) -> None:
        super().__init__()
        self.batch, self.times = batch, times

    def __len__(self) -> int:
        return self.times

    def __getitem__(self, index: int) -> Any:
        return self.batch


# An argument's name, what it got, and what the message says of it.
OF_FIT: list[tuple[str, Any, str]] = [
    *(("epochs", v, "`epochs` must be an integer of at least 0") for v in (1.5, "3", None, -1)),
    ("epochs", float("inf"), "`epochs` must be an integer of at least 0. Received: inf"),
    *(("initial_epoch", v, "`initial_epoch` must be an integer") for v in (1.0, "2", None, -1)),
    *(("validation_freq", v, "`validation_freq` must be .* at least 1") for v in (0, -1)),
    *(("validation_freq", v, "`validation_freq` to be a list or int") for v in (["a"], 1.5, None)),
    *(("shuffle", v, "`shuffle` must be True, False or 'batch'") for v in ("yes", 3)),
    *(("batch_size", v, "`batch_size` must be an integer of at least 1") for v in (4.0, [4])),
    ("steps_per_epoch", 2.0, "`steps_per_epoch` must be an integer of at least 1"),
    *(("callbacks", v, "`callbacks` must be a list of") for v in ([5], "x", [None], print)),
    (
        "callbacks",
        [keras.callbacks.EarlyStopping],
        "`callbacks` must .*EarlyStopping.*the class; call it",
    ),
    *(
        ("class_weight", v, "`class_weight` must be a dict")
        for v in (
            [1.0, 2.0],
            "balanced",
            5,
            {"a": 1.0},
            {0: "a"},
            {0: None},
            {0.5: 1.0},
            {"1": 1.0},
        )
    ),
    *(
        ("validation_split", v, "`validation_split` must be a number")
        for v in ("0.1", [0.2], float("nan"))
    ),
    *(("x", v, "`x` must be arrays, a tf.data.Dataset") for v in (5, "images", None, object())),
    ("x", np.float32(1.0), "`x` must be arrays of at least one dimension"),
    ("x", np.array([["a", None]] * 8, object), "`x` cannot be made into a tensor"),
    ("x", np.ones((8, 4), object), "dtype object; give it a dtype"),
    ("y", [np.int64(1)] * 8, "in a list; make an array of it: `np.array"),
    ("y", None, "`y` is missing: the model was compiled with loss=SparseCategoricalCrossentropy, "),
    ("verbose", 3, '`verbose` must be 0, 1, 2 or "auto". Received: 3'),
    ("verbose", "1", "`verbose` must be 0, 1, 2 or"),
    ("callbacks", X, r"objects. Received: an array of shape \(8, 4\)$"),
    ("y", Y[:7], "same number of examples. Received sizes: {'x': 8, 'y': 7}"),
    ("sample_weight", "heavy", "`sample_weight` must be an array"),
    *(
        ("validation_data", v, "`validation_data` is wrong: `x` must be")
        for v in (5, "abc", ([1], [2]), (None, None))
    ),
    ("validation_data", (X, Y[:3]), "`validation_data` is wrong: .*Received sizes"),
    ("validation_data", (X, Y, Y, Y), "`validation_data` is wrong: it must be"),
    ("validation_data", (X,), "`validation_data` is wrong: `y` is missing"),
    ("validation_data", (X, None), "`validation_data` is wrong: `y` is missing"),
    ("validation_data", (X[:0], Y[:0]), "`validation_data` is wrong: `x` must hold at least one"),
]


@pytest.mark.parametrize(("argument", "value", "message"), sweep(OF_FIT))
def test_arguments_of_fit(tiny: Any, argument: str, value: Any, message: str) -> None:
    model = tiny.model()
    before = tiny.weights(model)
    given = {"x": X, "y": Y, "verbose": 0, argument: value}
    with pytest.raises(ValueError, match=f"(?s){message.replace('{', '[{]')}"):
        kfit.Trainer(model, "one_device").fit(**given)
    assert tiny.distance(before, tiny.weights(model)) == 0.0


def test_what_keras_allows_is_allowed(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    options: list[dict[str, Any]] = [
        {"epochs": 0},
        {"epochs": np.int64(1), "initial_epoch": np.int32(0)},
        {"epochs": 1, "initial_epoch": 5},
        {"shuffle": None},
        {"callbacks": (keras.callbacks.TerminateOnNaN(),)},
        {"callbacks": [[keras.callbacks.TerminateOnNaN()]]},
        {"class_weight": {}},
        {"class_weight": {-1: 2.0, np.int64(1): 3}},
        {"validation_data": (X, Y), "validation_freq": np.int64(1)},
        {"validation_data": (X, Y), "validation_freq": [7]},
        {"validation_data": [X, Y]},
    ]
    for given in options:
        trainer.fit(X, Y, verbose=0, **given)
    trainer.fit(as_dataset(X, Y), class_weight={}, verbose=0)


@pytest.mark.long
def test_integers_of_numpy_are_saved_like_others(tiny: Any, tmp_path: Any) -> None:
    n, (x, y) = np.int64, tiny.data(40)
    backup = kfit.callbacks.BackupAndRestore(tmp_path, save_freq=n(2), delete_checkpoint=False)
    sizes = {"batch_size": n(10), "steps_per_epoch": n(3), "validation_steps": n(1)}
    epochs = {"epochs": n(3), "initial_epoch": n(1), "validation_freq": n(1)}
    trainer = kfit.Trainer(tiny.model(), "one_device", seed=n(3))
    trainer.fit(x, y, verbose=0, validation_data=(x, y), callbacks=[backup], **sizes, **epochs)
    assert kfit.checkpoint.Store(tmp_path).newest()[0].about["epoch"] == 3
    json.loads(trainer.report().to_json())


@pytest.mark.parametrize(
    ("x", "message"),
    sweep(
        [
            (empty, "`x` yielded no batch"),
            (empty_of_unknown_length, "`x` yielded no batch"),
            (lambda: iter([]), "`x` yielded no batch"),
            (lambda: Yields((X, Y), 0), "`x` yielded no batch"),
            (lambda: Yields((None, None), 2), "`x` must yield batches of arrays"),
            (lambda: iter([None]), "`x` must yield batches of arrays"),
            (lambda: iter([1, 2]), "`x` must yield batches of arrays with at least one dimension"),
            (no_targets, "`y` is missing"),
            (lambda: iter([X, X]), "`y` is missing"),
            (lambda: lambda _: 3, "`x` is a function, which must return a tf.data.Dataset.*: 3"),
        ],
        every=3,
    ),
)
def test_data_that_hold_nothing_to_train_on(tiny: Any, x: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kfit.Trainer(tiny.model(), "one_device").fit(x(), epochs=2, verbose=0)


def test_class_weights_need_classes(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    for y, message in ((None, "y=None"), (np.array(["a"] * 8), "numbers of classes")):
        with pytest.raises(ValueError, match=f"`class_weight` needs `y`.*{message}"):
            trainer.fit(X, y, class_weight={0: 2.0}, verbose=0)


def test_a_loss_of_their_own_needs_no_targets(tiny: Any) -> None:
    class OwnLoss(keras.Sequential):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            return keras.ops.mean(y_pred**2)

    model = tiny.model(cls=OwnLoss, metrics=None)
    kfit.Trainer(model, "one_device").fit(X, validation_data=(X,), verbose=0)
    # Here the user's step finds the targets itself.
    without = tiny.model(loss=None, metrics=None)
    assert kfit.Trainer(without, "one_device").predict(X, verbose=0).shape == (8, 3)


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch", "predict_on_batch"])
def test_a_batch_must_be_arrays(tiny: Any, method: str) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    for x in (None, 5, "images", [1, 2], no_targets()):
        data = (x,) if method == "predict_on_batch" else (x, Y)
        with pytest.raises(ValueError, match="`x` must be an array"):
            getattr(trainer, method)(*data)


def test_arguments_of_the_other_methods(tiny: Any) -> None:
    trainer = kfit.Trainer(tiny.model(), "one_device")
    for call in (lambda **k: trainer.evaluate(X, Y, **k), lambda **k: trainer.predict(X, **k)):
        for argument in ("batch_size", "steps"):
            with pytest.raises(ValueError, match=f"`{argument}` must be an integer"):
                call(**{argument: 2.0})
        with pytest.raises(ValueError, match="`callbacks` must be"):
            call(callbacks=[5])
    with pytest.raises(ValueError, match="`y` is missing"):
        trainer.evaluate(X, verbose=0)
    with pytest.raises(ValueError, match="`y` is missing"):
        trainer.train_on_batch(X)
    with pytest.raises(ValueError, match="`class_weight` must be a dict"):
        trainer.train_on_batch(X, Y, class_weight=[1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`x` must hold at least one array"):
        trainer.predict([None], verbose=0)
    with pytest.raises(ValueError, match=r"takes no `y`.* Received: an array of shape \(8,\)$"):
        trainer.predict(X, Y)  # type: ignore[arg-type]  # the mistake that is meant


@pytest.mark.parametrize(
    "call", only(["fit", "predict"], ["fit", "evaluate", "predict", "train_on_batch"])
)
def test_data_of_another_shape_than_before_is_refused_by_the_layer(call: str) -> None:
    model = keras.Sequential([keras.layers.Dense(3)])
    trainer = kfit.Trainer(model, "one_device")
    trainer.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def run(x: Any) -> None:
        rest = () if call == "predict" else (Y,)
        options = {} if call == "train_on_batch" else {"verbose": 0}
        getattr(trainer, call)(x, *rest, **options)

    run(X)
    told = r"`x` does not fit the model\. .*the shape \(2,\); the model was made for \(4,\)\.$"
    with pytest.raises(ValueError, match=told):
        run(X[:, :2])
    run(X)


def test_data_of_another_shape_than_the_input_says_are_named() -> None:
    trainer = kfit.Trainer(classifier(), "one_device")
    for x in (X[:, :2], X.reshape(8, 2, 2)):
        told = re.escape(
            f". Each example has the shape {x.shape[1:]}; the model was made for (4,)."
        )
        with pytest.raises(ValueError, match=rf"^`x` does not fit the model{told}$"):
            trainer.fit(x, Y, verbose=0)


@pytest.mark.parametrize("replicas", only([1], [1, 2]))
def test_labels_of_another_form_than_the_loss_takes_are_named(tiny: Any, replicas: int) -> None:
    trainer = kfit.Trainer(classifier(), tiny.strategy(replicas))
    told = r"^`y` has the shape \(.*3\) in a batch, which does not fit the loss and .* "
    told += r"`y.argmax\(-1\)`\.$"
    one_hot = keras.utils.to_categorical(Y, 3)
    with pytest.raises(ValueError, match=told):
        trainer.fit(X, one_hot, verbose=0)
    with pytest.raises(ValueError, match=told.replace("`y` has", "`y` of `validation_data` has")):
        trainer.fit(X, Y, validation_data=(X, one_hot), verbose=0)
    trainer.compile("sgd", "categorical_crossentropy")
    told = r"^`y` has the shape .* SparseCategoricalCrossentropy, or pass `keras.utils.to_cat"
    with pytest.raises(ValueError, match=told):
        trainer.evaluate(X, Y, verbose=0)


def test_an_output_with_an_axis_too_many_is_named() -> None:
    unflattened = keras.Sequential([keras.Input((2, 2)), keras.layers.Dense(3, "softmax")])
    unflattened.compile("sgd", "sparse_categorical_crossentropy")
    told = (
        r"^`y` has the shape \(.*\) in a batch, which .* of the shape \(.*, 2, 3\)\. "
        r".* a Flatten or a pooling"
    )
    with pytest.raises(ValueError, match=told):
        kfit.fit(unflattened, X.reshape(8, 2, 2), Y, strategy="one_device", verbose=0)


def test_a_size_of_examples_that_is_that_of_the_batch_is_not_taken_for_it(tiny: Any) -> None:
    """Of 8 examples each replica gets 4, as many as an example should have values."""
    trainer = kfit.Trainer(classifier(), tiny.strategy(2))
    x = np.concatenate([X, X], axis=1)
    trainer.fit(X, Y, batch_size=8, verbose=0)
    with pytest.raises(ValueError, match=r"Each example has the shape \(8,\); .* made for \(4,\)"):
        trainer.fit(x, Y, batch_size=8, verbose=0)


@pytest.mark.parametrize("loss", only(["mse"], ["mse", "huber", "binary_crossentropy"]))
def test_labels_of_another_size_than_the_output_are_named(loss: str) -> None:
    trainer = kfit.Trainer(classifier(), "one_device")
    trainer.compile("sgd", loss)
    told = (
        r"^{} has the shape \(None, 5\) in a batch, which does not fit the loss and the model's "
        r"output of the shape \(None, 3\)\. "
        r"The loss compares each value of the output with one of {}\.$"
    )
    wide = np.zeros((8, 5))
    with pytest.raises(ValueError, match=told.format("`y`", "`y`")):
        trainer.fit(X, wide, verbose=0)
    name = "`y` of `validation_data`"
    with pytest.raises(ValueError, match=told.format(name, name)):
        trainer.fit(X, wide[:, :3], validation_data=(X, wide), verbose=0)


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_a_metric_that_does_not_fit_is_named(tiny: Any, replicas: int) -> None:
    trainer = kfit.Trainer(classifier(), tiny.strategy(replicas))
    trainer.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy", "mse"])
    told = (
        r"^The metric 'mse' cannot compare `y`, which has the shape \(None,\) in a batch, with the "
        r"model's output of the shape \(None, 3\)\.$"
    )
    with pytest.raises(ValueError, match=told):
        trainer.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [("categorical_crossentropy", (8,)), ("categorical_crossentropy", (8, 5)), ("mse", (8, 3, 2))],
)
def test_wrong_labels_of_a_second_fit_are_named(loss: str, shape: tuple[int, ...]) -> None:
    """Its graph has open shapes, so the error of TensorFlow names an operation, or only a rank."""
    trainer = kfit.Trainer(classifier(), "one_device")
    trainer.compile("sgd", loss, metrics=["accuracy"])
    trainer.fit(X, keras.utils.to_categorical(Y, 3), verbose=0)
    told = r"^`y` has the shape \(.*\) in a batch, which does not fit the loss and the model's "
    with pytest.raises(ValueError, match=rf"{told}output of the shape \(None, 3\)\. "):
        trainer.fit(X, np.zeros(shape), verbose=0)


@pytest.mark.parametrize("fits", [1, 2])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda y, p: tf.matmul(y, p),
        lambda y, p: tf.matmul(p, tf.ones((7, 1))),
        lambda y, p: p + tf.ones((7,)),
    ],
    ids=["matmul", "matmul_of_a_constant", "sum"],
)
def test_an_error_of_a_loss_of_ones_own_is_not_said_to_be_one_of_the_labels(
    wrong: Callable[[Any, Any], Any], fits: int
) -> None:
    is_wrong = [False]

    def loss(y: Any, p: Any) -> Any:
        return tf.reduce_mean(wrong(y, p) if is_wrong[0] else p - y)

    trainer = kfit.Trainer(classifier(), "one_device")
    trainer.compile("sgd", loss)
    one_hot = keras.utils.to_categorical(Y, 3)
    if fits == 2:
        trainer.fit(X, one_hot, verbose=0)
    is_wrong[0] = True
    trainer.compile("sgd", loss)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as raised:
        trainer.fit(X, one_hot, verbose=0)
    assert "`y` has the shape" not in str(raised.value)


def test_a_tuple_of_too_many_parts_is_told_by_its_shapes() -> None:
    trainer = kfit.Trainer(classifier(), "one_device")
    arrays = r"an array of shape \({0}, 4\), an array of shape \({0},\), "
    told = rf"must be `x`, `\(x, y\)` or .*: a tuple of 4 parts: {2 * arrays}"[:-2] + "$"
    data = X, Y, X, Y
    wrong = f"^`validation_data` is wrong: it {told.format(8)}"
    with pytest.raises(ValueError, match=wrong):
        trainer.fit(X, Y, validation_data=data, verbose=0)
    told = told.format("None")
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(4)
    for call in (trainer.fit, trainer.predict):
        with pytest.raises(ValueError, match=f"^a batch of `x` {told}"):
            call(dataset, verbose=0)
    with pytest.raises(ValueError, match=f"^a batch of `x` {told}"):
        trainer.fit(iter([data]), verbose=0)
    with pytest.raises(ValueError, match=f"^a batch of `validation_data` {told}"):
        trainer.fit(X, Y, validation_data=iter([data]), validation_steps=1, verbose=0)


@pytest.mark.parametrize("wrong", only([7], [7, -1]))
def test_a_class_without_an_output_is_named(wrong: int) -> None:
    trainer = kfit.Trainer(classifier(), "one_device")
    told = rf"holds the class {wrong}, but the model has 3 outputs, for classes from 0 to 2\."
    with pytest.raises(ValueError, match=f"^`y` {told}") as caught:
        trainer.fit(X, np.full(8, wrong), verbose=0)
    assert caught.value.__suppress_context__
    with pytest.raises(ValueError, match=f"^`y` of `validation_data` {told}"):
        trainer.fit(X, Y, validation_data=(X, np.full(8, wrong)), verbose=0)


def classifier() -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def batches() -> Iterator[Any]:
    yield X, Y


def dataset(context: Any) -> Any:
    return as_dataset(X, Y)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (batches, r"`x` is a function, where a generator is expected: call it, batches\(\)"),
        (no_targets, r"`x` is a function, which must take .*: no_targets\(\) -> .*no_targets\(\)$"),
        (Yields, r"`x` is the class Yields, .* Yields\(\.\.\.\)"),
    ],
)
def test_what_was_not_called_is_named(x: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kfit.fit(classifier(), x, steps_per_epoch=1, verbose=0, strategy="one_device")


@pytest.mark.long
def test_a_batch_size_of_what_makes_its_batches_has_no_effect_and_says_so() -> None:
    trainer = kfit.Trainer(classifier(), "one_device")
    with pytest.warns(UserWarning, match="`batch_size=2` has no effect: `x`, a tf.data.Dataset"):
        trainer.fit(as_dataset(X, Y), batch_size=2, verbose=0)
    with pytest.warns(UserWarning, match="`batch_size=2` has no effect: `x`, a Yields"):
        trainer.evaluate(Yields((X, Y), 1), batch_size=2, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder=True)
        trainer.fit(whole, batch_size=4, verbose=0)
        trainer.fit(X, Y, batch_size=2, validation_data=as_dataset(X, Y), verbose=0)
        trainer.fit(dataset, verbose=0)


def test_a_generator_of_several_epochs_needs_their_length() -> None:
    trainer = kfit.Trainer(classifier(), "one_device")
    with pytest.warns(UserWarning, match="the first of the 3 epochs reads it to its end") as told:
        trainer.fit(batches(), epochs=4, initial_epoch=1, verbose=0)
    assert [each.filename for each in told] == [__file__]  # its end is not told again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(batches(), verbose=0)


def test_what_is_no_model_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"ndarray'> of shape \(8, 4\)\. The model comes") as told:
        kfit.fit(X, Y, classifier())
    assert "\n" not in str(told.value)
    assert capsys.readouterr().out == ""


def test_a_cluster_that_is_described_too_late_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = classifier(), classifier()
    kfit.fit(model, X, Y, verbose=0)
    kfit.fit(other, X, Y, verbose=0, strategy="one_device")
    cluster = {"worker": ["localhost:23456", "localhost:23457"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.warns(UserWarning, match="TF_CONFIG describes 2 workers, but this process trains"):
        kfit.fit(model, X, Y, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kfit.fit(other, X, Y, verbose=0)


@pytest.mark.parametrize("kind", only(["arrays"], ["arrays", "pipeline", "generator"]))
def test_validation_data_of_another_shape_is_refused_by_the_layer(kind: str) -> None:
    model = keras.Sequential([keras.layers.Dense(3)])
    trainer = kfit.Trainer(model, "one_device")
    trainer.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    short = {
        "arrays": lambda: (X[:, :2], Y),
        "pipeline": lambda: tf.data.Dataset.from_tensor_slices((X[:, :2], Y)).batch(8),
        "generator": lambda: ((X[:8, :2], Y[:8]) for _ in range(2)),
    }
    told = r"^`validation_data` does not fit the model\. .*the shape \(2,\); .* made for \(4,\)\.$"
    with pytest.raises(ValueError, match=told):
        trainer.fit(X, Y, verbose=0, validation_data=short[kind]())


def test_the_errors_of_an_own_step_stay_what_they_are() -> None:
    class Pairs(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, _ = data
            tf.debugging.assert_less(x, 1.0, "too large")
            return {"loss": tf.reduce_mean(self(x[:, :4]))}

    trainer = kfit.Trainer(Pairs([keras.Input((4,)), keras.layers.Dense(1)]), "one_device")
    trainer.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        trainer.fit(np.ones((8, 5), "float32"), Y, verbose=0)


@pytest.mark.long
def test_a_loaded_graph_is_not_trained_on_several_replicas(tiny: Any, tmp_path: Any) -> None:
    exported = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh")])
    exported.export(tmp_path / "exported", verbose=False)
    x, y = tiny.data(12)

    def trained(replicas: int, *, is_frozen: bool) -> keras.Model:
        keras.utils.set_random_seed(1)
        layer = keras.layers.TFSMLayer(str(tmp_path / "exported"), call_endpoint="serve")
        layer.trainable = not is_frozen
        inputs = keras.Input((4,))
        model = keras.Model(inputs, keras.layers.Dense(3)(layer(inputs)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
        kfit.Trainer(model, tiny.strategy(replicas)).fit(x, y, batch_size=6, verbose=0)
        return model

    trained(1, is_frozen=False)
    with pytest.raises(ValueError, match=r"TFSMLayer whose weights are to be trained"):
        trained(2, is_frozen=False)
    one, two = (trained(replicas, is_frozen=True) for replicas in (1, 2))
    assert tiny.distance(one, two) < 1e-6
