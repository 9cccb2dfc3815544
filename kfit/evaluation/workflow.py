"""`kfit.train_and_evaluate`: the same program trains on some tasks and evaluates on another."""

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
from kfit.heartbeat.tracebacks import for_user
from kfit.trainer import Trainer

Part = Literal["train", "evaluate", "both"]


class Outcome(NamedTuple):
    """The result of `train_and_evaluate` on one task (process) of the cluster.

    Attributes:
        history: The History that `fit` returned; None on an evaluator, which does not train.
        evaluations: All evaluations of the training in order, as dicts that are equal to the lines
            of `evaluations.jsonl`: NaN and infinity are None. Only the task that writes this file
            has the evaluations: the evaluator or, without an evaluator, the chief. On other tasks
            the list is empty.
    """

    history: keras.callbacks.History | None
    evaluations: list[Evaluation]


@for_user
def train_and_evaluate(trainer: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec) -> Outcome:
    """Trains a model, and evaluates each of its checkpoints once.

    All tasks of the cluster must call this function with the same arguments. The chief and the
    workers train and write checkpoints. If the cluster has an evaluator, the evaluator evaluates
    each new checkpoint, records the results and passes the model to the exporters. On the evaluator
    the function returns when training has ended and the last checkpoint is evaluated. Without an
    evaluator, the tasks that train evaluate between their training steps, and write the same files.
    The weights after training are the same with and without an evaluator, unless training and
    evaluation share a `shuffle` of tf.data or a generator, which a warning tells.

    A task that is killed and started again resumes where it was. No checkpoint is evaluated twice.
    A damaged checkpoint is skipped with a warning.

    Example:
        >>> trainer = kfit.Trainer(model)
        >>> trainer.compile(optimizer="adam", loss="mse")
        >>> kfit.train_and_evaluate(
        ...     trainer,
        ...     kfit.TrainSpec(model_dir="job", x=x, y=y, batch_size=128, epochs=10),
        ...     kfit.EvalSpec(x=x_test, y=y_test, exporters=kfit.BestExporter()),
        ... )

    Args:
        trainer: The `kfit.Trainer` of the model, compiled.
        train_spec: The data to train on, how long to train, and where to write the files.
        eval_spec: The data to evaluate on, how often to evaluate, and what to export.

    Returns:
        The History of training and the records of the evaluations.

    Raises:
        ValueError: If an argument is wrong.
        ClusterError: If the description of the cluster is wrong, or contradicts
            `eval_spec.evaluator`.
        TrainingIdleError: On an evaluator, if no checkpoint has appeared for `idle_timeout_secs`,
            or if training has ended and its last checkpoint has been deleted.
        DirectoryInUseError: If another live task writes to the same directory.
        ForeignFileError: If a file that kfit would replace was not written by kfit.
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
        both = EvaluatedCheckpoints(trainer, train_spec, eval_spec)
        return Outcome(_fit(trainer, train_spec, both), both.evaluations)
    journal_dir = None if eval_spec.newest_only else eval_spec.directory(train_spec.model_dir)
    return Outcome(_fit(trainer, train_spec, Checkpoints(train_spec, journal_dir)), [])


def part_here(eval_spec: EvalSpec) -> Part:
    """Returns whether this task of `train_and_evaluate` trains, evaluates, or does both.

    Args:
        eval_spec: A specification. Its attribute `evaluator` says whether a separate task, the
            evaluator, evaluates. If the attribute is None, there is an evaluator if the cluster's
            list of tasks contains one.

    Returns:
        "evaluate" on an evaluator. On all other tasks "train" if there is an evaluator, and "both"
        if there is none.

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
    callbacks = [*spec.each_callback, checkpoints]
    if spec.max_steps is not None:
        callbacks.append(StopAtStep(spec.max_steps, adds_epochs=spec.epochs is None))
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
