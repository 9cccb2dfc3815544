"""The evaluator: a task (process) that does not train, but evaluates a training's checkpoints."""

from __future__ import annotations

import time
from typing import Any

from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.state import Part
from kfit.checkpoint.store import SnapshotName, Store
from kfit.checkpoint.training_schema import check_training
from kfit.evaluation.checkpoint_poller import LOOK_INTERVAL, CheckpointPoller, is_repeated
from kfit.evaluation.journal import Evaluation, Journal
from kfit.evaluation.specs import EvalSpec, TrainSpec
from kfit.heartbeat.tracebacks import warn_user
from kfit.trainer import Trainer


def evaluate_checkpoints(
    trainer: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec, journal: Journal
) -> None:
    """Evaluates the checkpoints of a training, one after the other, until the training has ended.

    It is the whole work of an evaluator, a task that does not train. The evaluator waits for each
    new checkpoint, verifies and evaluates it, records the result in the journal, and passes the
    model to the exporters. It skips a checkpoint that is damaged, or that has the same weights as
    the checkpoint before.

    Args:
        trainer: The trainer of the model. Afterwards the model has the weights of the last
            checkpoint.
        train_spec: A specification that says where the training writes its checkpoints, and when it
            ends.
        eval_spec: The data to evaluate on, when to evaluate, and what to export.
        journal: The files to which results are written. They also contain the name of the last
            evaluated checkpoint, after which this call continues.

    Raises:
        TrainingIdleError: If no checkpoint has appeared for `eval_spec.idle_timeout_secs`, or if
            training has ended and its last checkpoint has been deleted.
        SnapshotMismatchError: If a checkpoint is of another model.
    """
    watch = CheckpointPoller(train_spec, eval_spec)
    while (name := watch.next_after(journal.evaluated, journal.training)) is not None:
        store = Store(train_spec.checkpoint_dir, check=check_training)
        journal.belong_to(watch.training)
        if is_repeated(name, journal.evaluated, watch.names()) and store.about(name) is not None:
            journal.pass_over(name)
            continue
        snapshot = _read(store, name, watch)
        if snapshot is None:
            watch.pass_over(name)
            continue
        began = time.monotonic()
        x, y, sample_weight = eval_spec.data()
        metrics = trainer.evaluate(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=eval_spec.batch_size,
            steps=eval_spec.steps,
            callbacks=list(eval_spec.each_callback),
            verbose=0,
            return_dict=True,
            snapshot=snapshot,
            parts=_parts(eval_spec),
        )
        found = evaluation_of(name, snapshot.about, metrics, time.monotonic() - began)
        journal.write(name, found, trainer.model)
        if eval_spec.verbose:
            print(as_line(found), flush=True)


def evaluation_of(
    name: SnapshotName, place: dict[str, Any], metrics: dict[str, Any], seconds: float
) -> Evaluation:
    """Returns the record of an evaluation: the dict that is written to `evaluations.jsonl`.

    Args:
        name: The name of the checkpoint that was evaluated.
        place: The position of training when the checkpoint was saved: a dict with `epoch`, `step`
            and `step_in_epoch`.
        metrics: The values of the loss and the metrics by their names.
        seconds: How long the evaluation took.
    """
    return {
        "step": place["step"],
        "epoch": place["epoch"],
        "step_in_epoch": place["step_in_epoch"],
        "time": time.time(),
        "seconds": round(seconds, 3),
        "checkpoint": str(name),
        "metrics": metrics,
    }


def as_line(evaluation: Evaluation) -> str:
    """Returns the line of text that tells the user the step and the metrics of an evaluation."""
    values = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in evaluation["metrics"].items()
    )
    return f"kfit: evaluated step {evaluation['step']}, after epoch {evaluation['epoch']}: {values}"


def _parts(spec: EvalSpec) -> tuple[Part, ...]:
    """Returns which parts of a checkpoint are restored before it is evaluated.

    These are the model's weights. If there are exporters or callbacks, the optimizer's state is
    restored, too: exporters may save it, and a TensorBoard counts its iterations.
    """
    return ("model", "optimizer") if spec.each_exporter or spec.each_callback else ("model",)


def _read(store: Store, name: SnapshotName, watch: CheckpointPoller) -> Snapshot | None:
    """Reads and verifies a checkpoint.

    If the checkpoint is damaged, cannot be read or was deleted, it warns and returns None.

    Args:
        store: The directory of the checkpoints.
        name: The name of the checkpoint.
        watch: The poller of the directory, which tells whether the checkpoint still exists.
    """
    try:
        try:
            return store.read(name)
        except (DamagedSnapshotError, OSError):
            # A network file system may show a directory before the files in it.
            time.sleep(LOOK_INTERVAL)
            return store.read(name)
    except (DamagedSnapshotError, OSError) as error:
        place = f"{store.directory}: the checkpoint {name}"
        if name in watch.names():
            warn_user(f"{place} is damaged and NOT evaluated: {error}")
        else:
            warn_user(f"{place} was deleted before it was evaluated")
        return None
