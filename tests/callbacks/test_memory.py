"""What Keras' own callbacks remember, and the files that they wrote too far."""

import os
from typing import Any

import keras
import pytest
import tensorflow as tf

from kfit.callbacks import BackupAndRestore
from kfit.checkpoint.memory import _REMEMBERS, CallbackMemory


@pytest.mark.parametrize(("kind", "attributes"), _REMEMBERS)
def test_keras_keeps_its_memory_where_it_is_looked_for(kind: Any, attributes: Any) -> None:
    """A version of Keras that renames one of these turns this red."""
    made = {
        keras.callbacks.ModelCheckpoint: lambda: kind("x.keras", save_freq=1),
    }.get(kind, kind)()
    made.set_model(keras.Sequential())
    for hook in ("on_train_begin",):
        getattr(made, hook)()
    if isinstance(made, keras.callbacks.ModelCheckpoint):
        made.on_epoch_begin(0)
    for attribute in attributes:
        assert hasattr(made, attribute), f"{kind.__name__}.{attribute}"


def events(folder: Any) -> list[tuple[str, int]]:
    """Every scalar that was written: its tag and step, over all files, in no order."""
    found = []
    for path in folder.rglob("events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [(v.tag, event.step) for v in event.summary.value if v.tag != "keras"]
    return sorted(found)


@pytest.mark.parametrize("update_freq", ["epoch", 1])
def test_tensorboard_has_no_step_twice(training: Any, tmp_path: Any, update_freq: Any) -> None:
    import kfit

    machine = training.Machine(kfit.distribute.OneDevice(), validation_data=training.data(20))

    def board(folder: str) -> Any:
        return keras.callbacks.TensorBoard(tmp_path / folder, update_freq=update_freq)

    machine.run([board("untouched")])
    backup = BackupAndRestore(tmp_path / "backup", save_freq=4)
    machine.cut_at(10, [board("cut"), backup])
    machine.cut_at(7, [board("cut"), backup])
    machine.run([board("cut"), backup])
    assert events(tmp_path / "cut") == events(tmp_path / "untouched")
    assert len(events(tmp_path / "cut")) > 20


def test_what_others_wrote_stays(tmp_path: Any) -> None:
    board = keras.callbacks.TensorBoard(tmp_path)
    for name in ("train/notes.txt", "evaluator/events.out.tfevents.1.a.2.v2"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    memory = CallbackMemory([board])
    memory.load_state_dict(
        [board],
        [
            {
                "callback": "TensorBoard",
                "state": {"train_batch": 3, "test_batch": 2, "files": {}},
            }
        ],
    )
    assert os.path.exists(tmp_path / "train/notes.txt")
    assert os.path.exists(tmp_path / "evaluator/events.out.tfevents.1.a.2.v2")
    assert board._global_train_batch == 3


def test_a_log_that_is_appended_to(training: Any, tmp_path: Any) -> None:
    import kfit

    machine = training.Machine(kfit.distribute.OneDevice())
    (tmp_path / "log.csv").write_text("epoch,accuracy,loss\n0,0.1,0.2\n")

    def log() -> Any:
        return keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True)

    backup = BackupAndRestore(tmp_path / "backup", save_freq=3)
    machine.cut_at(10, [log(), backup])
    machine.run([log(), backup])
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,accuracy,loss"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "0", "1", "2", "3"]


def test_averaged_weights_stay_where_they_are(training: Any, tmp_path: Any) -> None:
    """SwapEMAWeights leaves the averages in the model at the end of an epoch."""
    import kfit

    machine = training.Machine(kfit.distribute.OneDevice(), validation_data=training.data(20))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    machine.model.compile(keras.optimizers.SGD(0.1, use_ema=True), loss)

    def callbacks() -> Any:
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]

    machine.run(callbacks())
    expected = machine.digest
    for cut, save_freq in ((8, "epoch"), (11, 2)):
        backup = BackupAndRestore(tmp_path / "backup", save_freq=save_freq)
        machine.cut_at(cut, [*callbacks(), backup])
        machine.run([*callbacks(), backup])
        assert machine.digest == expected
