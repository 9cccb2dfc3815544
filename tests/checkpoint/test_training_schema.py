"""States of trainings that strangers have written, with checksums that agree."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.checkpoint import fits
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.state import SnapshotMismatchError, restore
from kfit.checkpoint.store import Store
from kfit.checkpoint.training_schema import check_training
from tests.sweeps import halves

State = dict[str, Any]


class Counts(keras.callbacks.Callback):
    """A callback whose attributes are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)


class Ends(keras.callbacks.Callback):
    """A callback that ends the program, as far as kfit is concerned."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise KeyboardInterrupt


class Rows(keras.utils.PyDataset):
    """A data set with a state."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.columns, self.begun = (x, y), 0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return tuple(column[10 * index : 10 * index + 10] for column in self.columns)

    def on_epoch_begin(self) -> None:
        self.begun += 1


def endless(x: Any, y: Any) -> Iterator[Any]:
    while True:
        yield x[:10], y[:10]


def of_kind(kind: str, x: Any, y: Any) -> dict[str, Any]:
    """Returns the arguments of `fit` for the same examples as data of a kind."""
    if kind == "pipeline":
        return {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=1).batch(10)}
    if kind == "generator":
        return {"x": endless(x, y), "steps_per_epoch": 2}
    if kind == "py_dataset":
        return {"x": Rows(x, y)}
    return {"x": x, "y": y, "batch_size": 10}


def train(
    tiny: Any, folder: Path, *callbacks: keras.callbacks.Callback, kind: str = "arrays"
) -> list[int]:
    """Trains three epochs, or resumes; returns the epochs that a callback has seen."""
    (x, y), model, counts = tiny.data(20), tiny.model(), Counts()
    trainer = kfit.Trainer(model, tiny.strategy(1))
    trainer.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    backup = kfit.callbacks.BackupAndRestore(folder, save_freq=1, delete_checkpoint=False)
    trainer.fit(
        **of_kind(kind, x, y),
        epochs=3,
        verbose=0,
        callbacks=[backup, counts, keras.callbacks.EarlyStopping("loss"), *callbacks],
    )
    return counts.epochs


@pytest.fixture
def folder(tiny: Any, tmp_path: Path) -> Path:
    """A folder with two snapshots of a training that was interrupted."""
    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path, Ends())
    assert len(Store(str(tmp_path)).names()) == 2
    return tmp_path


def set_at(*path: Any, value: Any) -> Callable[[State], None]:
    def change(state: State) -> None:
        place: Any = state
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def row(state: State, index: int, value: float) -> None:
    state["random"]["tasks"] = np.array(state["random"]["tasks"])
    state["random"]["tasks"][0, index] = value


def rows(state: State, start: int, stop: int) -> None:
    state["random"]["tasks"] = np.array(state["random"]["tasks"])
    state["random"]["tasks"][0, start:stop] = 0
    state["random"]["tasks"][0, start] = 2**31 - 1  # of this word only the highest bit counts


def as_dtype(dtype: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        state["random"]["tasks"] = np.zeros_like(state["random"]["tasks"], dtype)

    return change


WRONG: dict[str, Callable[[State], None]] = {
    "variables that are no list": set_at("variables", value={}),
    "a variable without a value": set_at("variables", 0, value={"part": "model", "name": "a"}),
    "a variable of another part": set_at("variables", 0, "part", value="files"),
    "a variable that is a number": set_at("variables", 0, "value", value=3),
    "a name that is a list": set_at("variables", 0, "name", value=[]),
    "a step before the first": set_at("progress", "step", value=-1),
    "a step that is a text": set_at("progress", "step", value="1"),
    "a step beyond all": set_at("progress", "epoch", value=10**30),
    "progress with more": set_at("progress", "__class__", value=1),
    "logs that are a list": set_at("logs", value=[]),
    "a stop that is a number": set_at("stop_training", value=1),
    "data without a description": set_at("data", value={}),
    "data that is a text": set_at("data", value="/etc/passwd"),
    "a learned number that is a text": set_at("learned", value=["1", None]),
    "callbacks that are a dict": set_at("callbacks", value={}),
    "a callback's state that is a list": set_at("callbacks", 0, "state", value=[1]),
    "an attribute without a path": set_at("callbacks", 0, "attributes", value=[{}]),
    "an empty path": set_at("callbacks", 0, "attributes", value=[{"path": [], "value": 1}]),
    "a path of lists": set_at("callbacks", 0, "attributes", value=[{"path": [["a"]], "value": 1}]),
    "a position that crashes Python": lambda state: row(state, 624, 2**31 - 1),
    "a position that crashes NumPy": lambda state: row(state, -3, 625),
    "a word that is no number": lambda state: row(state, 0, np.nan),
    "a word that is too large": lambda state: row(state, 700, 2.0**32),
    "words with which Python draws only 0": lambda state: rows(state, 0, 624),
    "words with which NumPy draws for ever": lambda state: rows(state, 627, 1251),
    "no task's generators": set_at("random", "tasks", value=np.zeros((0, 1254))),
    "a short row": set_at("random", "tasks", value=np.zeros((1, 9))),
    "a seed of Keras as a text": set_at("random", "keras", value="1"),
    "a state of torch in floats": set_at("random", "torch", value=np.zeros(9)),
    "no account": lambda state: state.pop("account"),
    "seconds before the first": set_at("account", "step_seconds", value=-1.0),
    "seconds without an end": set_at("account", "began", value=float("nan")),
    "a start that is a text": set_at("account", "generation", value="0"),
    "a seed of 64 bits and more": set_at("data", "seed", value=2**63),
    "three learned numbers": set_at("learned", value=[None, None, None]),
    "histories that are a list": set_at("histories", value=[]),
    "a history that is a text": set_at("histories", value={"0": "loss"}),
    "a fingerprint that is a text": set_at("fingerprint", value="model"),
    "a history without epochs": set_at("histories", value={"0": {"history": {}}}),
    "a history that is a list": set_at("histories", value={"0": {"epoch": [0], "history": []}}),
    "no generators": lambda state: state.pop("random"),
    "generators of complex numbers": as_dtype("complex128"),
    "generators of four bits": as_dtype("int4"),
    "generators of half numbers": as_dtype("bfloat16"),
    "states of TensorFlow's generators in one row": set_at("random", "eager", value=np.zeros(642)),
    "a state of TensorFlow's generators that is none": set_at(
        "random", "eager", value=np.full((1, 642), 0.5)
    ),
    "a seed of Keras with three words": set_at("random", "keras", value=np.ones(3, "uint32")),
    "another step than the description's": set_at("progress", "step", value=1),
    "a step past the end of its epoch": set_at("progress", "step_in_epoch", value=100),
    "half a character": set_at("variables", 0, "name", value="\ud800"),
    "a callback that a terminal would obey": set_at("callbacks", 0, "callback", value="\x1b]0;"),
    "an attribute with two values": set_at(
        "callbacks", 0, "attributes", value=[{"path": ["a"], "value": 1, "state": 1}]
    ),
    "an order without a value": set_at(
        "callbacks", 0, "attributes", value=[{"path": ["a"], "state": 1, "as made": True}]
    ),
    "an attribute that is and is gone": set_at(
        "callbacks", 0, "attributes", value=[{"path": ["a"], "is": ["b"], "gone": True}]
    ),
    "an attribute that is nowhere": set_at(
        "callbacks", 0, "attributes", value=[{"path": ["a"], "is": "b"}]
    ),
    "passes without an end": set_at("data", "begun", value=10**12),
    "a pass that is a text": set_at("data", "begun", value="1"),
    "batches without an end": set_at("data", "taken", value=10**12),
    "passes of texts": set_at("data", "passes", value=["1"]),
    "an end that is a number": set_at("data", "ended", value=1),
    "a loader's generators that crash Python": set_at(
        "data", "begun", value={"generators": {"row": np.full(1254, 2.0**31 - 1), "torch": None}}
    ),
    "a pipeline's generators of texts": set_at("data", "held", value={"generators": "x"}),
    "validation data that never ends": set_at("validation_data", value={"begun": 10**12}),
    "data with more": set_at("data", "path", value="/tmp"),
}


@pytest.mark.parametrize("wrong", halves(WRONG))
def test_another_form_is_damaged_and_the_one_before_is_taken(
    folder: Path, tiny: Any, wrong: dict[str, Callable[[State], None]]
) -> None:
    store = Store(str(folder), keep=1000, check=check_training)
    good, other = store.names()[-1], store.names()[0]
    snapshot = store.read(good)
    for name, change in wrong.items():
        state = copy.deepcopy(snapshot.state)
        check_training(Snapshot(snapshot.about, state))
        change(state)
        with pytest.raises(ValueError, match=r"state|generators"):
            check_training(Snapshot(snapshot.about, state))
        forged = Store(str(folder), keep=1000).save(Snapshot(snapshot.about, state))
        found, damages = store.newest()
        assert found is not None, name
        assert (found.about["step"], len(damages)) == (snapshot.about["step"], 1), name
        assert str(forged) in damages[0]
        Store(str(folder), keep=1000)._delete([forged])
    assert other in store.names()


WRONG_ABOUT: dict[str, Any] = {
    "epoch": "1",
    "fit": [],
    "step_in_epoch": -1,
    "num_workers": None,
    "model": 3,
    "created": float("nan"),
    "versions": ["3.10"],
    "finished": "no",
    "passed_by": 0,
    "changes": ["data"],
    "run": "\ud800",
}


@pytest.mark.long
def test_another_description_is_damaged(folder: Path, tiny: Any) -> None:
    store = Store(str(folder), keep=1000, check=check_training)
    snapshot = store.read(store.names()[-1])
    for key, value in WRONG_ABOUT.items():
        forged = Snapshot({**snapshot.about, key: value}, snapshot.state)
        name = Store(str(folder), keep=1000).save(forged)
        with pytest.raises(DamagedSnapshotError, match=rf"about.*'{key}'"):
            store.read(name)
        if key != "fit":  # which is read of all snapshots, before any is chosen
            Store(str(folder), keep=1000)._delete([name])
    with pytest.warns(UserWarning, match=r"skipping a damaged .* about\['fit'\]"):
        assert train(tiny, folder) == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("pipeline", {"begun": None, "own": [], "taken": "1"}),
        ("generator", {"taken": None, "last": None, "ended": 1}),
        pytest.param("py_dataset", {"own": None, "seed": "1"}, marks=pytest.mark.long),
    ],
)
def test_a_position_that_cannot_be_that_of_the_data_is_damaged(
    kind: str, wrong: dict[str, Any], tiny: Any, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path, Ends(), kind=kind)
    store = Store(str(tmp_path), keep=1000)
    snapshot = store.read(store.names()[-1])
    for key, value in wrong.items():
        assert key in snapshot.state["data"]
        state = copy.deepcopy(snapshot.state)
        state["data"][key] = value
        store.save(Snapshot(snapshot.about, state))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(tiny, tmp_path, kind=kind) == [0, 1, 2]
    damages = [str(each.message) for each in caught if "is no state of" in str(each.message)]
    assert len(damages) == len(wrong), damages


@pytest.mark.long
def test_training_resumes_from_the_one_before(folder: Path, tiny: Any) -> None:
    store = Store(str(folder), keep=1000)
    snapshot = store.read(store.names()[-1])
    state = copy.deepcopy(snapshot.state)
    row(state, 624, 2**31 - 1)
    store.save(Snapshot(snapshot.about, state))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(tiny, folder) == [0, 1, 2]
    assert any("is no state of a training" in str(each.message) for each in caught)


NAMES = (
    "my\u00a0model",
    "モデル\u3000A",
    "a\nb",
    "d\t1",
    "d\u00ad1",
    "d\u202e1",
    "\ufeffd",
    "a\x1b[2J",
)


class Holds(keras.layers.Layer):
    """A layer with a variable of some name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.held = self.add_weight(shape=(), initializer="zeros", name=name, trainable=False)

    def call(self, x: Any) -> Any:
        return x


def named(name: str) -> keras.Model:
    """A model with one name for itself, a variable and its metric: TensorFlow takes any there."""
    model = keras.Sequential([keras.Input((4,)), Holds(name), keras.layers.Dense(1)], name=name)
    model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError(name=name)])
    return model


@pytest.mark.long
@pytest.mark.parametrize("names", [NAMES[::3], pytest.param(NAMES, marks=pytest.mark.long)])
def test_names_that_keras_accepts_are_saved_and_restored(
    tiny: Any, tmp_path: Path, names: tuple[str, ...]
) -> None:
    (x, y), seen = tiny.data(20), type("Seen\u00a0it", (Counts,), {})
    for index, name in enumerate(names):
        for epochs in ([0, 1, 2], [2]):
            trainer, counts = kfit.Trainer(named(name), tiny.strategy(1)), seen()
            backup = kfit.callbacks.BackupAndRestore(tmp_path / str(index), delete_checkpoint=False)
            best = keras.callbacks.EarlyStopping(name, patience=9, mode="min")
            ends = [Ends()] if len(epochs) == 3 else []
            fits.forget()
            with (
                warnings.catch_warnings(),
                pytest.raises(KeyboardInterrupt) if ends else nullcontext(),
            ):
                warnings.filterwarnings("error", message="(?s).*damaged")
                callbacks = [backup, counts, best, *ends]
                trainer.fit(x, y, epochs=3, batch_size=10, verbose=0, callbacks=callbacks)
        assert counts.epochs == [0, 1, 2], name
        keras.backend.clear_session()  # Keras stays in a scope that TensorFlow has refused


def test_a_name_that_a_terminal_would_obey_is_escaped(folder: Path, tiny: Any) -> None:
    store = Store(str(folder), keep=1000, check=check_training)
    snapshot = store.read(store.names()[-1])
    set_at("variables", 0, "name", value="a\x1b[2J")(snapshot.state)
    name = store.save(Snapshot(snapshot.about, snapshot.state))
    model = tiny.model()
    model.build((None, 4))
    with pytest.raises(SnapshotMismatchError, match=r"is only in the snapshot") as caught:
        restore(model, store.read(name), ["model"], tiny.strategy(1))
    assert r"a\x1b[2J" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_what_could_not_be_read_again_is_refused_at_the_first_save(
    tiny: Any, tmp_path: Path
) -> None:
    unreadable = type("Counts\nthem", (Counts,), {})
    message = r"(?s)could not be read again.*\['callback'\] is '.*Counts\\nthem'"
    with pytest.raises(ValueError, match=message):
        train(tiny, tmp_path, unreadable())
    assert Store(str(tmp_path), check=check_training).names() == []
    assert not list(tmp_path.glob("kfit-tmp-*"))


STATES: dict[str, Callable[[State], None]] = {
    "a wait that is a text": set_at("callbacks", 1, "state", "wait", value="x"),
    "a best that is a dict": set_at("callbacks", 1, "state", "best", value={}),
    "weights that are numbers": set_at("callbacks", 1, "state", "best_weights", value=[1.0]),
    "a state with more": set_at("callbacks", 1, "state", "patience", value=100),
    "what no value is encoded as": set_at("callbacks", 0, "attributes", 0, "value", value={}),
    "a key that cannot be one": set_at(
        "callbacks",
        0,
        "attributes",
        0,
        "value",
        value={"$": "dict", "value": [[{"$": "list", "value": []}, 1]]},
    ),
    "texts that take a gigabyte": set_at(
        "callbacks",
        0,
        "attributes",
        0,
        "value",
        value={"$": "texts", "value": ["a"], "dtype": "<U300000000"},
    ),
    "a list that is a number": set_at(
        "callbacks", 0, "attributes", 0, "value", value={"$": "list", "value": 5}
    ),
    "a generator that crashes NumPy": set_at(
        "callbacks",
        0,
        "attributes",
        value=[
            {
                "path": ["generator"],
                "state": {
                    "$": "dict",
                    "value": [
                        ["bit_generator", "MT19937"],
                        [
                            "state",
                            {
                                "$": "dict",
                                "value": [
                                    ["key", {"$": "array", "value": np.ones(624, "uint32")}],
                                    ["pos", 2**31 - 1],
                                ],
                            },
                        ],
                    ],
                },
            }
        ],
    ),
    "a fingerprint of texts": set_at("fingerprint", value={"data": "x"}),
}


def test_a_state_that_cannot_be_a_callbacks_is_damaged(folder: Path, tiny: Any) -> None:
    store = Store(str(folder), keep=1000)
    snapshot = store.read(store.names()[-1])
    names = [each["callback"] for each in snapshot.state["callbacks"]]
    assert names[:2] == ["Counts", "keras.callbacks.EarlyStopping"]
    for change in STATES.values():
        state = copy.deepcopy(snapshot.state)
        change(state)
        store.save(Snapshot(snapshot.about, state))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(tiny, folder) == [0, 1, 2]
    damages = [str(each.message) for each in caught if "is no state of" in str(each.message)]
    assert len(damages) == len(STATES), damages


class Halves(keras.callbacks.EarlyStopping):
    """A subclass of the user's that keeps other values in Keras' attributes."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.wait, self.stopped_epoch = np.float32(epoch / 2), None
        self.best = [logs["loss"], epoch]

    def on_train_end(self, logs: Any = None) -> None:
        """Says nothing."""


class Notes(keras.callbacks.Callback):
    """Adds to the history what is no list of values."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.history.history["best epoch"] = epoch


class Adds(kfit.callbacks.ModelCheckpoint):
    """Adds to the state of kfit's callback."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "more": 1}


def test_what_programs_keep_in_known_callbacks_is_no_damage(tiny: Any, tmp_path: Path) -> None:
    def callbacks() -> list[keras.callbacks.Callback]:
        saves = Adds(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
        return [Halves("loss"), Notes(), saves]

    folder = tmp_path / "backup"
    with pytest.raises(KeyboardInterrupt):
        train(tiny, folder, *callbacks(), Ends())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(tiny, folder, *callbacks()) == [0, 1, 2]
    assert not [each for each in caught if "damaged" in str(each.message)]
