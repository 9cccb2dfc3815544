"""train_and_evaluate: the same program runs on the tasks that train and on the evaluator."""

from __future__ import annotations

from typing import Literal, NamedTuple

import keras

from kfit.cluster.cluster import ClusterError
from kfit.cluster.resolvers import current_cluster
from kfit.evaluation.checkpoints import Checkpoints, StopAtStep
from kfit.evaluation.evaluator import evaluate_checkpoints
from kfit.evaluation.inline_evaluation import EvaluatedCheckpoints, open_journal
from kfit.evaluation.journal import Evaluation
from kfit.evaluation.specs import EvalSpec, TrainSpec
from kfit.trainer import Trainer

Part = Literal["train", "evaluate", "both"]


class Outcome(NamedTuple):
    """The result of `train_and_evaluate`.

    Attributes:
        history: The History of `fit`; None on an evaluator.
        evaluations: All evaluations of the training in order, as in `evaluations.jsonl`. Only the
            task that records them has them: the evaluator or, without one, the chief. On other
            tasks the list is empty.
    """

    history: keras.callbacks.History | None
    evaluations: list[Evaluation]


def train_and_evaluate(trainer: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec) -> Outcome:
    """Trains, and evaluates each checkpoint once. All tasks must call it with the same arguments.

    The chief and the workers train and write checkpoints. If the cluster has an evaluator, that
    task evaluates each new checkpoint, records the results and exports the best model; there the
    function returns when training has ended and the last checkpoint is evaluated. Without an
    evaluator, the tasks that train evaluate between their steps, with the same outputs. Training
    gives the same weights either way.

    A task that is killed and started again resumes where it was. No checkpoint is evaluated twice.
    A damaged checkpoint is left out, with a warning.

    Example:
        >>> trainer = kfit.Trainer(model)
        >>> trainer.compile(optimizer="adam", loss="mse")
        >>> kfit.train_and_evaluate(
        ...     trainer,
        ...     kfit.TrainSpec(model_dir="job", x=x, y=y, batch_size=128, epochs=10),
        ...     kfit.EvalSpec(x=x_test, y=y_test, exporters=kfit.BestExporter()),
        ... )

    Args:
        trainer: A trainer, compiled.
        train_spec: The data to train on, how long to train, and where to write.
        eval_spec: The data to evaluate on, and how often to do so.

    Returns:
        The History and the evaluations.

    Raises:
        ValueError: If an argument is wrong.
        ClusterError: If the description of the cluster is wrong, or contradicts
            `eval_spec.evaluator`.
        TrainingIdleError: On an evaluator, if no checkpoint has appeared for `idle_timeout_secs`.
        DirectoryInUseError: If another live task writes to the same directory.
    """
    for argument, given, kind in (
        ("trainer", trainer, Trainer),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(given, kind):
            raise ValueError(f"`{argument}` must be a kfit.{kind.__name__}. Received: {given!r}")
    part = part_here(eval_spec)
    if part == "evaluate":
        with open_journal(train_spec, eval_spec) as journal:
            evaluate_checkpoints(trainer, train_spec, eval_spec, journal)
            return Outcome(None, journal.evaluations)
    if part == "both":
        both = EvaluatedCheckpoints(train_spec, eval_spec)
        return Outcome(_fit(trainer, train_spec, both), both.evaluations)
    journal_dir = None if eval_spec.newest_only else eval_spec.directory(train_spec.model_dir)
    return Outcome(_fit(trainer, train_spec, Checkpoints(train_spec, journal_dir)), [])


def part_here(eval_spec: EvalSpec) -> Part:
    """Returns whether this task trains, evaluates, or does both.

    Returns:
        "evaluate" on an evaluator, "train" on other tasks if there is an evaluator, else "both".

    Raises:
        ClusterError: If this task is an evaluator, but `eval_spec.evaluator` is False.
    """
    cluster = current_cluster()
    if cluster is not None and cluster.is_evaluator:
        if eval_spec.evaluator is False:
            raise ClusterError(
                "`evaluator` is False in the EvalSpec, so the tasks that train evaluate, but "
                f"`task` is {cluster.task}: start no evaluator, or leave `evaluator` out"
            )
        return "evaluate"
    is_listed = cluster is not None and "evaluator" in cluster.addresses
    has_evaluator = is_listed if eval_spec.evaluator is None else eval_spec.evaluator
    return "train" if has_evaluator else "both"


def _fit(trainer: Trainer, spec: TrainSpec, checkpoints: Checkpoints) -> keras.callbacks.History:
    callbacks = [*spec.callbacks, checkpoints]
    if spec.max_steps is not None:
        callbacks.append(StopAtStep(spec.max_steps))
    x, y, sample_weight = spec.data()
    return trainer.fit(
        x,
        y,
        sample_weight=sample_weight,
        batch_size=spec.batch_size,
        epochs=spec.last_epoch(x),
        steps_per_epoch=spec.steps_per_epoch,
        shuffle=spec.shuffle,
        class_weight=spec.class_weight,
        callbacks=callbacks,
        verbose=spec.verbose,
    )
