"""Where kfit differs in the tests of Keras and of tf_keras, test by test, with the reason."""

import re
from importlib.util import find_spec

DIFFERENCES: list[tuple[str, int, str]] = [
    (
        "test_loss_scaling_prevents_underflow",
        1,
        "its model has an attribute `layers`, which a keras.Model reserves and a bare trainer not",
    ),
    (
        "test_swap_ema_weights_with_tf_distribute$",
        1,
        "it trains in the scope of a strategy of its own, which is refused by name",
    ),
    (
        "test_retracing$",
        2,
        "it counts calls while a step is traced, and each replica makes its own",
    ),
]
"""Pattern of a test's id, the least number of replicas on which it fails, and why."""


def reason_of(nodeid: str, replicas: int) -> str | None:
    """Why a test is expected to fail, or None if it is not."""
    for pattern, least, reason in DIFFERENCES:
        if replicas >= least and re.search(pattern, nodeid):
            return reason
    return None


TF_KERAS: list[tuple[str, str, str]] = [
    (
        r"::test_evaluate_with_(dataset_with_)?partial_batch",
        "`steps` must be an integer",
        "it gives a number of steps as a float, which is refused by name",
    ),
    (
        r"::test_no_target_model",
        "unexpected keyword argument 'inputs'",
        "Keras 3 has no `inputs` in `add_loss`",
    ),
    (
        r"::test_fit_with_dictionary_in_the_dataset_b135161171",
        "automatically infer the shape of the Lambda's output",
        "Keras 3 wants to know the shape of what its Lambda returns",
    ),
    (
        r"::test_learning_phase_value",
        "only 0-dimensional arrays can be converted",
        "it reads an array of one axis as a number, which NumPy refuses since 2.4",
    ),
    (
        r"::test_on_dataset_with_unknown_cardinality_test",
        "ValueError not raised",
        "it is for TPUs in graph mode, which want to know the size of a dataset; kfit does not",
    ),
    (
        r"::test_(distributed_dataset_test|host_training_loop_dataset_unknown_size)",
        "ValueError not raised",
        "it expects that a number of steps is asked for, which kfit can do without",
    ),
    (
        r"::test_distributed_datasets_from_function",
        "`steps_per_epoch` .* must be given",
        "the error has other words",
    ),
    (
        r"::test_host_training_loop_(last_partial_execution|truncate_to_epoch)",
        r"Lists differ: \[(19, 39, 59|499, 499)\]",
        "Keras 3 numbers the last step of an execution as if all of its steps were taken",
    ),
    (
        r"add_metric_(in_call|object)",
        "^Exception encountered when calling Bias",
        "Keras 3 has no `add_metric`",
    ),
    (
        r"::test_(correctness_of_add_loss_with_merge_call|distribution\w+_callable_add_loss)",
        "^(NotImplementedError)?$",
        "a functional model of Keras 3 has no `add_loss`",
    ),
    (
        r"add_metric_outside_call|symbolic_add_loss|test_fit_and_evaluate.*functional",
        "A KerasTensor cannot be used as input to a TensorFlow function",
        "Keras 3 takes none of TensorFlow's functions between layers",
    ),
    (
        r"test_fit_and_evaluate.*sequential",
        "no attribute 'get_output_at'",
        "a layer of Keras 3 does not know where it was called",
    ),
    (
        r"TestModelCapturesStrategy::test_fit_and_evaluate",
        "could not be lifted out",
        "Keras 3 builds models in a graph, where no tf.Variable begins with a computed value",
    ),
    (
        r"::test_dataset_wrong_input_shape",
        "`x` does not fit the model. Each example has the shape",
        "the error names `x` and both shapes in other words",
    ),
    (
        r"::test_optimizer_in_cross_replica_context_raises_error_test_distribution_OneDevice",
        "no attribute 'merge_call'",
        "it does not train: the error that Keras 3 and TensorFlow raise there has other words",
    ),
    (
        r"::test_gradient_clipping",
        "Only one of `clipnorm`, `clipvalue`",
        "Keras 3 clips in one way only",
    ),
    (
        r"::test_custom_gradient_transformation",
        "gradient_transformers",
        "Keras 3 has no `gradient_transformers`",
    ),
    (
        r"SubclassedModel::test_dnn_correctness_with_partial_last_batch_eval_test_\w+_Mirrored",
        "ValueError not raised",
        "it is for TPUs in graph mode, which refuse subclassed models; kfit trains them",
    ),
    (
        r"::test_incorrectly_use_multiple_cores_for_stateful_lstm_model",
        "ValueError not raised|each global batch must have as many examples as its state has rows",
        "it is for TPUs, which refuse layers with state on several cores; kfit trains them",
    ),
    (
        r"ModelCheckpointTest::testCheckpointExists_test_fileformat_(tf|h5_\w+weightsonly_True)",
        "must end in `(.weights.h5|.keras)`",
        "Keras 3 wants these names of files",
    ),
    (
        r"WorkerTrainingStateTest::testCheckpointExists",
        "has length of 0, expected 1",
        "it looks for the files that tf_keras writes",
    ),
    (
        r"TestModelCapturesStrategy::test_optimizer",
        "must end in `.weights.h5`",
        "Keras 3 wants these names of files",
    ),
    *(
        []
        if find_spec("portpicker")
        else [
            (
                r"::test_unimplemented_parameter_server_strategy",
                "portpicker",
                "it is on the ParameterServerStrategy of TensorFlow 1, and needs portpicker",
            )
        ]
    ),
    (
        r"::test_wide_deep_model",
        "Could not interpret optimizer identifier",
        "Keras 3 compiles with one optimizer",
    ),
]
"""Pattern of a test's id, pattern of the error that it ends with, and why."""


def reason_of_tf_keras(nodeid: str, error: BaseException | None) -> str | None:
    """Why a test of tf_keras is expected to fail, or None if it is not, or not with this error.

    Args:
        nodeid: The test.
        error: What it raised; None if it passed.
    """
    for pattern, expected, reason in TF_KERAS:
        if re.search(pattern, nodeid) and (error is None or re.search(expected, str(error))):
            return reason
    return None
