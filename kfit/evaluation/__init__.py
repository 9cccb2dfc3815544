"""Training on some tasks and evaluating on another: the workflow of `tf.estimator`, on Keras 3.

    model_dir/
        checkpoints/        what the tasks that train write, and the evaluator reads (`checkpoints`)
        eval/               what was found: a line and a TensorBoard point each (`journal`)
        export/             the best model (`exporters`)

`train_and_evaluate` says which part this task has; the evaluator's is in `evaluator` and `watch`,
that of tasks which evaluate their own training in `in_training`.
"""

from kfit.evaluation.checkpoint_poller import TrainingIdleError
from kfit.evaluation.exporters import BestExporter, Exporter
from kfit.evaluation.specs import EvalSpec, TrainSpec
from kfit.evaluation.workflow import Outcome, train_and_evaluate

__all__ = [
    "BestExporter",
    "EvalSpec",
    "Exporter",
    "Outcome",
    "TrainSpec",
    "TrainingIdleError",
    "train_and_evaluate",
]
