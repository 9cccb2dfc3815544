"""What has changed since a snapshot was saved is named, unless the change is meant."""

import ast
import re
import shutil
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.checkpoint import SnapshotMismatchError, fits
from kfit.internals.runtime import draw_global_seed
from tests.sweeps import only

layers = keras.layers


class CutError(Exception):
    """Ends a training as if its process were killed."""


class Cut(keras.callbacks.Callback):
    """Cuts training off after five steps."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations.numpy()) == 5:
            raise CutError


class Scaled(keras.losses.Loss):
    """A loss of the user's, without a configuration."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.scale * keras.ops.mean((y_true - y_pred) ** 2, axis=-1)


class Batches(keras.utils.PyDataset):
    """The data of the tests, by index."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        x, y = arrays()
        return x[8 * index : 8 * index + 8], y[8 * index : 8 * index + 8]


def arrays() -> Any:
    draw = np.random.default_rng(0)
    return draw.normal(size=(30, 4)).astype("float32"), draw.normal(size=(30, 3))


def pipeline(seed: int = 1, scale: float = 1.0, examples: int = 30) -> Any:
    x, y = (part[:examples] for part in arrays())
    made = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30, seed=seed)
    return made.map(lambda x, y: (x * scale, y)).batch(8)


def train(backup: BackupAndRestore, cut: bool = False, **changed: Any) -> keras.Model:
    """A training as a new process makes it, in which some things may be others."""
    fits.forget()
    keras.utils.set_random_seed(changed.get("program_seed", 1))
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(
                changed.get("units", 5),
                changed.get("activation", "relu"),
                trainable=changed.get("trainable", True),
            ),
            layers.Dropout(changed.get("dropout", 0.2)),
            layers.Dense(3),
        ]
    )
    model.compile(
        changed.get("optimizer", sgd)(),
        changed.get("loss", "mse"),
        loss_weights=changed.get("loss_weights"),
        metrics=changed.get("metrics"),
    )
    trainer = kfit.Trainer(model, kfit.distribute.OneDevice(), seed=changed.get("seed"))
    options = {"batch_size": 8, "epochs": 2, **changed.get("fit", {})}
    x, y = changed.get("data", arrays)()
    if y is None:
        options.pop("batch_size")
    callbacks = [backup, *([Cut()] if cut else [])]
    if cut:
        with pytest.raises(CutError):
            trainer.fit(x, y, verbose=0, callbacks=callbacks, **options)
    else:
        trainer.fit(x, y, verbose=0, callbacks=callbacks, **options)
    return model


def sgd(**options: Any) -> Any:
    return keras.optimizers.SGD(**{"learning_rate": 0.05, "momentum": 0.9, **options})


def permuted() -> Any:
    x, y = arrays()
    return x[::-1], y[::-1]


def one_value() -> Any:
    x, y = arrays()
    x[17, 2] += 1e-3
    return x, y


VALIDATION = {"validation_data": (arrays()[0][:9], arrays()[1][:9])}
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "permuted": ({"data": permuted}, r"data: x is float32 \(30, 4\) #\w+, in the snapshot float"),
    "one_value": ({"data": one_value}, "data: x is"),
    "dtype": ({"data": lambda: (arrays()[0], arrays()[1].astype("int64"))}, "data: y is int64"),
    "tf_data": ({"data": lambda: (pipeline(), None)}, "data: kind is tf.data.Dataset, in the sn"),
    "py_dataset": ({"data": lambda: (Batches(), None)}, "data: kind is keras.utils.PyDataset"),
    "steps": ({"fit": {"steps_per_epoch": 3}}, "data: steps an epoch is 3, in the snapshot 4"),
    "no_shuffle": ({"fit": {"shuffle": False}}, "data: shuffle is False, in the snapshot True"),
    "weights": (
        {"fit": {"sample_weight": np.ones(30)}},
        "data: sample_weight is float64 .*, which the snapshot does not have",
    ),
    "seed": ({"seed": 3}, "seed: seed is 3, in the snapshot 1"),
    "program_seed": ({"program_seed": 2}, "seed: seed is 2, in the snapshot 1"),
    "validation": ({"fit": VALIDATION}, r"validation_data: x is float32 \(9, 4\)"),
    "loss": ({"loss": "mae"}, "loss: loss is mae, in the snapshot mse"),
    "function": ({"loss": lambda t, p: keras.ops.mean(t - p)}, "loss: loss.function is <lambda>"),
    "loss_weights": ({"loss_weights": [0.5]}, r"loss: loss_weights is \[0.5\]"),
    "rate": (
        {"optimizer": lambda: sgd(learning_rate=0.1)},
        r"learning_rate: .* is 0.1\d*, in the snaps",
    ),
    "momentum": (
        {"optimizer": lambda: sgd(momentum=0.8)},
        "optimizer: optimizer.momentum is 0.8, in the",
    ),
    "clipping": ({"optimizer": lambda: sgd(clipnorm=1.0)}, "optimizer: optimizer.clipnorm is 1.0"),
    "class": (
        {"optimizer": lambda: keras.optimizers.Lion(0.05)},
        "optimizer: optimizer is Lion, in the snapshot SGD",
    ),
    "dropout": ({"dropout": 0.3}, r"model: dropout\w*\.rate is 0.3, in the snapshot 0.2"),
    "activation": ({"activation": "tanh"}, r"model: dense\w*\.activation is tanh"),
    "metrics": ({"metrics": ["mae"]}, r"metrics: metrics is \['mae'\]"),
    "batch_size": ({"fit": {"batch_size": 10}}, "data: global batch size is 10, in the snapshot 8"),
    "units": (
        {"units": 6},
        r"model: [^ ]*kernel is \(4, 6\) float32, in the snapshot \(4, 5\)",
    ),
    "frozen": ({"trainable": False}, r"model: dense\w*\.trainable is False, in the snap"),
}
OTHER_VARIABLES = ("class", "units", "frozen")
"""Changes after which the snapshot's variables fit no variables of the model."""
DAILY = (
    *("permuted", "tf_data", "steps", "seed", "validation", "loss", "rate", "momentum"),
    *("activation", "metrics", "batch_size", "units", "frozen"),
)
OTHER_VALUES = ("permuted", "one_value")
"""Changes after which the data have the same shapes and dtypes."""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    train(BackupAndRestore(folder, save_freq=1), cut=True)
    return folder


@pytest.mark.parametrize("name", only(DAILY, CHANGES))
def test_what_has_changed_is_named_before_anything_is_done(snapshot: Path, name: str) -> None:
    changed, says = CHANGES[name]
    before = sorted(path.name for path in snapshot.iterdir())
    with pytest.raises(SnapshotMismatchError, match=says) as raised:
        train(BackupAndRestore(snapshot, save_freq=1), **changed)
    assert f" in {snapshot}/" in str(raised.value)
    section = says.split(":")[0]
    offered = f"allow_changes=['{section}'" in str(raised.value)
    assert offered == (name not in OTHER_VARIABLES)
    assert ("No `allow_changes` can" in str(raised.value)) == (name in OTHER_VARIABLES)
    assert ("a seed, if the program draws" in str(raised.value)) == (name in OTHER_VALUES)
    assert sorted(path.name for path in snapshot.iterdir()) == before


@pytest.mark.parametrize(
    "name",
    only(["batch_size"], ["batch_size", "steps", "loss", "momentum", "validation", "metrics"]),
)
def test_what_the_message_offers_works(snapshot: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(snapshot, tmp_path / "backup")
    changed = CHANGES[name][0]
    with pytest.raises(SnapshotMismatchError) as raised:
        train(BackupAndRestore(tmp_path / "backup"), **changed)
    offered = re.search(r"allow_changes=(\[.*?\])", str(raised.value))
    assert offered is not None
    allowed = ast.literal_eval(offered[1])
    train(BackupAndRestore(tmp_path / "backup", allow_changes=allowed), **changed)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_a_frozen_layer_is_a_change_that_only_an_optimizer_without_state_allows(
    tmp_path: Path, momentum: float
) -> None:
    changed = {"optimizer": lambda: sgd(momentum=momentum)}
    train(BackupAndRestore(tmp_path, save_freq=1), cut=True, **changed)
    allowing = BackupAndRestore(tmp_path, allow_changes=["model"])
    if momentum:
        with pytest.raises(SnapshotMismatchError, match="No `allow_changes` can accept"):
            train(allowing, trainable=False, **changed)
    else:
        train(allowing, trainable=False, **changed)


def test_all_differences_are_listed(snapshot: Path) -> None:
    with pytest.raises(SnapshotMismatchError) as raised:
        train(BackupAndRestore(snapshot), dropout=0.5, loss="mae", data=permuted)
    said = str(raised.value)
    assert all(line in said for line in ("data: x is", "data: y is", "dropout", "loss: loss is"))
    assert "allow_changes=['data', 'loss', 'model']" in said


@pytest.mark.long
def test_metrics_that_both_have_go_on_and_new_ones_begin_anew(tmp_path: Path) -> None:
    """The snapshot is of step 4 of 6: the new metric is of the last two steps of the epoch."""

    def fit(folder: Path, metrics: list[str], *callbacks: Any, **allowed: Any) -> dict[str, Any]:
        fits.forget()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        model.compile(sgd(), "mse", metrics=metrics)
        trainer = kfit.Trainer(model, kfit.distribute.OneDevice())
        backup = BackupAndRestore(folder, save_freq=1, **allowed)
        called = [backup, *callbacks]
        history = trainer.fit(*arrays(), batch_size=5, epochs=1, verbose=0, callbacks=called)
        return {name: values[-1] for name, values in history.history.items()}

    with pytest.raises(CutError):
        fit(tmp_path / "mae", ["mae"], Cut())
    shutil.copytree(tmp_path / "mae", tmp_path / "none")
    whole = fit(tmp_path / "whole", ["mae", "mape"])
    with pytest.raises(SnapshotMismatchError, match=r"allow_changes=\['metrics'\]"):
        fit(tmp_path / "mae", ["mape", "mae"])
    more = fit(tmp_path / "mae", ["mape", "mae"], allow_changes=["metrics"])
    assert {name: more[name] for name in ("loss", "mae")} == {
        name: whole[name] for name in ("loss", "mae")
    }
    assert more["mape"] != whole["mape"]
    assert fit(tmp_path / "none", [], allow_changes=True) == {"loss": whole["loss"]}


def test_layers_have_their_own_names_and_their_width_is_no_connection(tmp_path: Path) -> None:
    def fit(width: int, *callbacks: Any) -> None:
        fits.forget()
        keras.utils.set_random_seed(1)
        entry = keras.Input((4,))
        hidden = layers.Dense(width, name="dense_1")(entry)
        made = keras.Model(entry, layers.Dense(3, name="dense_2")(hidden), name="functional_7")
        made.compile("sgd", "mse")
        backup = BackupAndRestore(tmp_path, save_freq=1)
        trainer = kfit.Trainer(made, kfit.distribute.OneDevice())
        trainer.fit(*arrays(), batch_size=8, epochs=2, verbose=0, callbacks=[backup, *callbacks])

    with pytest.raises(CutError):
        fit(5, Cut())
    with pytest.raises(SnapshotMismatchError) as raised:
        fit(6)
    _, *lines, _ = str(raised.value).splitlines()
    assert lines == [
        "  model: dense_1.units is 6, in the snapshot 5",
        "  model: dense_1/kernel is (4, 6) float32, in the snapshot (4, 5) float32",
        "  model: dense_1/bias is (6,) float32, in the snapshot (5,) float32",
        "  model: dense_2/kernel is (6, 3) float32, in the snapshot (5, 3) float32",
    ]


@pytest.mark.long
def test_a_layer_takes_one_line_and_settings_come_first(tmp_path: Path) -> None:
    def model(*more: keras.layers.Layer) -> keras.Model:
        fits.forget()
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input((4,)), layers.Dense(5), *more, layers.Dense(3)])

    def fit(made: keras.Model, rate: float, *callbacks: Any) -> None:
        made.compile(keras.optimizers.SGD(rate), "mse")
        backup = BackupAndRestore(tmp_path, save_freq=1)
        trainer = kfit.Trainer(made, kfit.distribute.OneDevice())
        trainer.fit(*arrays(), batch_size=8, epochs=2, verbose=0, callbacks=[backup, *callbacks])

    with pytest.raises(CutError):
        fit(model(), 0.001, Cut())
    with pytest.raises(SnapshotMismatchError) as raised:
        fit(model(layers.BatchNormalization(), layers.Dropout(0.1)), 0.01)
    _, *lines, _ = re.sub(r"_\d+,", ",", str(raised.value)).splitlines()
    assert lines == [
        "  model: batch_normalization, a BatchNormalization, is not in the snapshot",
        "  model: dropout, a Dropout, is not in the snapshot",
        "  learning_rate: optimizer.learning_rate is 0.01, in the snapshot 0.001",
    ]


def test_what_is_no_change(snapshot: Path, tmp_path: Path) -> None:
    """More epochs, other names, another place of the same numbers in memory."""
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    train(backup, cut=True, loss=Scaled(0.5))
    layers.Dense(1), layers.Dropout(0.1)  # Keras counts its names up
    x, y = arrays()
    strided = np.stack([x, x], axis=1)[:, 0]
    loss = Scaled(0.5)
    model = train(backup, data=lambda: (strided, y), loss=loss, fit={"epochs": 3})
    assert int(model.optimizer.iterations.numpy()) == 12
    with pytest.raises(SnapshotMismatchError, match=r"loss: loss.scale is 0.25, in the snapshot 0"):
        train(backup, loss=Scaled(0.25))


OF_NUMPY: dict[str, dict[str, Any]] = {
    "settings": {
        "seed": np.int64(7),
        "optimizer": lambda: sgd(momentum=np.float64(0.9), weight_decay=np.float32(0.01)),
        "loss_weights": [np.float64(2)],
        "loss": Scaled(np.float32(0.5)),
        "fit": {
            **VALIDATION,
            "validation_steps": np.int64(1),
            "validation_freq": np.int64(1),
            "initial_epoch": np.int64(0),
        },
    },
    "schedule": {
        "optimizer": lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(np.float64(0.1), np.int64(2), 0.9)
        )
    },
    "seed_of_a_py_dataset": {"data": lambda: (Batches(), None), "seed": np.uint8(7)},
}


@pytest.mark.long
@pytest.mark.parametrize("name", OF_NUMPY)
def test_numbers_of_numpy_are_no_change(tmp_path: Path, name: str) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    train(backup, cut=True, **OF_NUMPY[name])
    model = train(backup, **OF_NUMPY[name])
    assert int(model.optimizer.iterations.numpy()) == 8


@pytest.mark.long
def test_steps_per_execution_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile("sgd", "mse", steps_per_execution=np.int64(2))
    backup = BackupAndRestore(tmp_path / "backup")
    kfit.fit(model, *arrays(), batch_size=8, verbose=0, callbacks=[backup])
    assert int(model.optimizer.iterations.numpy()) == 4


@pytest.mark.long
def test_another_number_of_numpy_is_a_change(tmp_path: Path) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    train(backup, cut=True, loss=Scaled(np.float32(0.5)))
    with pytest.raises(SnapshotMismatchError, match=r"loss: loss.scale is 0.25, in the snapshot 0"):
        train(backup, loss=Scaled(np.float32(0.25)))


class Dated(Scaled):
    """A loss that knows when it was made."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.made_at = time.time()


@pytest.mark.long
def test_what_a_clock_gave_is_told_and_not_refused(tmp_path: Path) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    train(backup, cut=True, loss=Dated())
    with pytest.warns(UserWarning, match=r"other values:\n  loss: loss.made_at is \d+"):
        train(backup, loss=Dated())


@pytest.mark.long
def test_a_number_that_a_hook_of_a_finished_fit_has_set_is_told(tmp_path: Path) -> None:
    class Counts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.current_epoch = epoch

    class Own(keras.Sequential):
        """A model of the user's, which may hold numbers."""

    def program(*others: Any) -> None:
        fits.forget()
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((4,)), layers.Dense(3)])
        model.compile("sgd", "mse")
        backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
        trainer = kfit.Trainer(model, kfit.distribute.OneDevice())
        for _ in range(2):
            callbacks = [Counts(), backup, *others]
            trainer.fit(*arrays(), batch_size=10, epochs=1, verbose=0, callbacks=callbacks)

    with pytest.raises(CutError):
        program(Cut())
    with pytest.warns(UserWarning, match="current_epoch is not there, in the snapshot 0"):
        program()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seed": 2}, "seed2 is 2, in the snapshot 1"),
        pytest.param({"scale": 2.0}, "closure is", marks=pytest.mark.long),
        pytest.param({"examples": 29}, "tensors", marks=pytest.mark.long),
    ],
)
def test_pipelines(tmp_path: Path, changed: Any, says: str) -> None:
    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    train(backup, cut=True, data=lambda: (pipeline(), None))
    with pytest.raises(SnapshotMismatchError, match=f"data: .*{says}"):
        train(backup, data=lambda: (pipeline(**changed), None))


@pytest.mark.long
def test_a_change_that_is_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "backup"
    train(BackupAndRestore(folder, save_freq=1, delete_checkpoint=False), cut=True)
    meant = BackupAndRestore(folder, allow_changes=["learning_rate", "data"])
    optimizer = sgd(learning_rate=0.01)
    model = train(meant, optimizer=lambda: optimizer, data=lambda: (pipeline(), None))
    assert "(changed since: data, learning_rate)" in capsys.readouterr().out
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.01)
    assert int(model.optimizer.iterations.numpy()) == 8
    with pytest.raises(SnapshotMismatchError, match="loss: loss is mae"):
        train(meant, loss="mae")


def test_leaving_a_fit_in_a_living_process_is_no_change(tmp_path: Path) -> None:
    """A callback has changed the learning rate by then; the optimizer is the same."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile(sgd(), "mse")
    trainer = kfit.Trainer(model, kfit.distribute.OneDevice(), seed=1)
    fits.forget()
    x, y = arrays()
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    backup = BackupAndRestore(tmp_path / "backup")
    with pytest.raises(CutError):
        trainer.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[slower, backup, Cut()])
    trainer._seeds.begin_anew()
    trainer.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[slower, backup])
    assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(0.0125)


@pytest.mark.parametrize("allowed", ["loss", ["weights"]])
def test_wrong_arguments(allowed: Any) -> None:
    with pytest.raises(ValueError, match="`allow_changes` must be"):
        BackupAndRestore("backup", allow_changes=allowed)


@pytest.mark.long
def test_an_order_that_kfit_has_drawn_may_be_another(tmp_path: Path) -> None:
    def fit(seed: int, *callbacks: Any) -> None:
        draw_global_seed(seed)
        data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(30).batch(4)
        trainer = kfit.Trainer(keras.Sequential([layers.Input((4,)), layers.Dense(3)]))
        trainer.compile("sgd", "mse")
        saves = BackupAndRestore(tmp_path / "backup", save_freq=1)
        trainer.fit(data, epochs=1, verbose=0, callbacks=[saves, *callbacks])

    try:
        with (
            pytest.warns(UserWarning, match="`shuffle` without a global seed"),
            pytest.raises(CutError),
        ):
            fit(5, Cut())
        with pytest.warns(UserWarning, match="is shuffled in another order than before"):
            fit(6)
    finally:
        tf.random.set_seed(None)
