"""Training on some tasks and evaluating on another: the workflow of `tf.estimator`, on Keras 3.

    model_dir/
        checkpoints/        written by the tasks that train, read by the evaluator (`checkpoints`)
        eval/               results: a JSON line and TensorBoard points per evaluation (`journal`)
        export/             the best model (`exporters`)

A checkpoint here is a snapshot: the whole state of a training after one step, in a folder of its
own. The journal is the record of all evaluations.

`train_and_evaluate` (in `workflow`) decides whether this task trains, evaluates, or does both. The
evaluator's code is in `evaluator` and `checkpoint_poller`; the code for tasks that evaluate between
their own training steps is in `inline_evaluation`.
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
