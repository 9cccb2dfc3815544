"""Which line of an error's message is its summary."""

import pytest

from kfit.heartbeat.errors import TaskError
from kfit.heartbeat.summaries import summary_of


class InvalidArgumentError(Exception):
    """By its name that of TensorFlow, which nothing here imports."""


STACK = """
Detected at node loss/Softmax defined at (most recent call last):
  File "train.py", line 5, in <module>

  File "keras/src/losses/loss.py", line 67, in __call__
    return self.call(y_true, y_pred)

"""
LABEL = "Received a label value of 9 which is outside the valid range of [0, 1).  Label values: 8"
NODE = "\n\t [[{{node loss/Softmax}}]] [Op:__inference_function_831]"


@pytest.mark.parametrize(
    "message",
    [
        f"Graph execution error:\n{STACK}{LABEL}{NODE}",
        f"Graph execution error:\n{STACK}{STACK}2 root error(s) found.\n"
        f"  (0) INVALID_ARGUMENT:  {LABEL}\n\t [[{{{{node a}}}}]]\n  (1) INVALID_ARGUMENT:  other\n"
        "0 successful operations.\n0 derived errors ignored. [Op:__inference_function_1]",
        "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
        "<stack traces unavailable>\nDetected at node a defined at (most recent call last):\n"
        "<stack traces unavailable>\nError in user-defined function passed to MapDataset:1 "
        f"transformation with iterator: Iterator::Root::Prefetch::Map: {LABEL}{NODE}",
        f"Graph execution error:\n\n{LABEL} [[{{{{node a}}}}]] [Op:__inference_function_1]",
        f"{{{{function_node __wrapped__Softmax_device_/job:w/cpu:0}}}} {LABEL} [Op:Softmax] name: ",
        f"Exception encountered when calling Dense.call().\n\n\x1b[1m{LABEL}\x1b[0m\n\nArguments:",
        f'in user code:\n\n    File "train.py", line 5, in loss  *\n        f(x)\n\n    {LABEL}\n',
    ],
)
def test_the_reason_is_taken_and_not_the_headline(message: str) -> None:
    assert TaskError.of(InvalidArgumentError(message)).summary.endswith(f"Error: {LABEL}")


def test_the_class_is_named_once() -> None:
    text = 'in user code:\n\n    File "a.py", line 5, in f  *\n\n    ValueError: wrong\n'
    assert summary_of(ValueError(text)) == "ValueError: wrong"


def test_a_headline_without_a_reason_stays() -> None:
    error = InvalidArgumentError("Graph execution error:\n\n\t [[{{node a}}]]")
    assert summary_of(error) == "InvalidArgumentError: Graph execution error:"
    assert summary_of(ValueError()) == "ValueError"
