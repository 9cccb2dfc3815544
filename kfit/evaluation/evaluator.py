"""The evaluator: evaluates each checkpoint of a training in a task of its own."""

from __future__ import annotations

import time
import warnings
from typing import Any

from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.state import Part
from kfit.checkpoint.store import SnapshotName, Store
from kfit.evaluation.checkpoint_poller import LOOK_INTERVAL, CheckpointPoller, is_repeated
from kfit.evaluation.journal import Evaluation, Journal
from kfit.evaluation.specs import EvalSpec, TrainSpec
from kfit.trainer import Trainer


def evaluate_checkpoints(
    trainer: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec, journal: Journal
) -> None:
    """Evaluates the checkpoints of a training until the training has ended.

    for each new checkpoint, in order:
        read and verify it; skip it if it is damaged, or of the step that was evaluated last
        evaluate it
        record the result in the journal, and export the model

    Args:
        trainer: The model, and the strategy to evaluate it on. Afterwards the model has the weights
            of the last checkpoint.
        train_spec: The specification of the training.
        eval_spec: The data to evaluate on, and when to do so.
        journal: The record of the results, and of the last checkpoint that was evaluated.

    Raises:
        TrainingIdleError: If no checkpoint has appeared for `idle_timeout_secs`.
        SnapshotMismatchError: If the checkpoints are of another model.
    """
    watch = CheckpointPoller(train_spec, eval_spec)
    while (name := watch.next_after(journal.evaluated)) is not None:
        repeated = is_repeated(name, journal.evaluated, watch.names())
        snapshot = None if repeated else _read(train_spec.checkpoint_dir, name, watch)
        if snapshot is None:
            journal.pass_over(name)
            continue
        began = time.monotonic()
        x, y, sample_weight = eval_spec.data()
        metrics = trainer.evaluate(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=eval_spec.batch_size,
            steps=eval_spec.steps,
            callbacks=list(eval_spec.callbacks),
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
    """Returns the record of an evaluation, as the journal stores it.

    Args:
        name: The checkpoint.
        place: The training's position at the checkpoint: `epoch`, `step` and `step_in_epoch`.
        metrics: The loss and the metrics.
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
    """Returns a line of text that reports an evaluation to the user."""
    values = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in evaluation["metrics"].items()
    )
    return f"Evaluated step {evaluation['step']}, after epoch {evaluation['epoch']}: {values}"


def _parts(spec: EvalSpec) -> tuple[Part, ...]:
    """Returns the parts of a checkpoint to restore: for exporters the optimizer's state as well."""
    return ("model", "optimizer") if spec.each_exporter else ("model",)


def _read(directory: str, name: SnapshotName, watch: CheckpointPoller) -> Snapshot | None:
    """Reads and verifies a checkpoint; warns and returns None if it is damaged or was deleted."""
    try:
        try:
            return Store(directory).read(name)
        except DamagedSnapshotError:
            # A network file system may show a directory before the files in it.
            time.sleep(LOOK_INTERVAL)
            return Store(directory).read(name)
    except (DamagedSnapshotError, FileNotFoundError) as error:
        if name in watch.names():
            warnings.warn(
                f"{directory}: the checkpoint {name} is damaged and NOT evaluated: {error}",
                stacklevel=2,
            )
        else:
            warnings.warn(
                f"{directory}: the checkpoint {name} was deleted before it was evaluated",
                stacklevel=2,
            )
        return None
