"""Which line of an error's message is its summary."""

import pytest

from kfit.heartbeat.errors import TaskError, is_surely_consequence
from kfit.heartbeat.summaries import is_among, message_of, summary_of, summary_of_lines


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
        'in user code:\n\n    File "train.py", line 5, in train_step  *\n        self.crop(x)\n\n'
        "    ValueError: Exception encountered when calling Crop.call().\n    \n"
        f"    \x1b[1m{LABEL}\x1b[0m\n    \n    Arguments received by Crop.call():\n"
        "      • data=3\n      • training=True\n",
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


MISSING = "worker 0 waited 20 s for its peers; 1 of 1 did not answer:"
PEER = "worker 1 at a:1: nothing listens there"


def test_what_a_message_lists_belongs_to_its_first_line() -> None:
    assert summary_of(OSError(f"{MISSING}\n  {PEER}\nStart all")) == f"OSError: {MISSING} {PEER}"
    many = "\n".join(f"  {number}" for number in range(5))
    assert summary_of(ValueError(f"many:\n{many}\nStart")) == "ValueError: many: 0; 1; 2; ..."
    assert summary_of(ValueError("none:\nStart")) == "ValueError: none:"


ADVICE = "Start the missing tasks, with the same addresses in TF_CONFIG."
TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 5, in <module>', "    f()"]
KERAS = [
    *(*TRACEBACK, "ValueError: Exception encountered when calling Own.call()."),
    *("", f"\x1b[1m{LABEL}\x1b[0m", "", "Arguments received by Own.call():", "  • training=True"),
]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["kfit: error: wrong"], "kfit: error: wrong"),
        (["x", f"kfit: error: {MISSING}", f"  {PEER}", ADVICE], f"kfit: error: {MISSING} {PEER}"),
        (KERAS, f"ValueError: {LABEL}"),
        ([*KERAS[:3], "keras.KerasError: no", *KERAS[-2:]], "KerasError: no"),
        ([*KERAS[-2:]], "  • training=True"),
        ([*KERAS, "gave up"], "gave up"),
        ([*TRACEBACK, "ValueError: wrong", "gave up"], "gave up"),
    ],
)
def test_of_what_a_process_printed_last_the_reason_is_taken(
    lines: list[str], expected: str
) -> None:
    assert summary_of_lines(lines) == expected


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        ("ValueError: no", ["ValueError: no"]),
        ("KerasError: no", ["keras.src.KerasError: no", "", "Arguments:"]),
        ("OSError: long ...", ["OSError: long text"]),
        ("AError: b is gone.", ["kfit: this task fails because another one has: b is gone."]),
        (f"kfit: error: {MISSING} {PEER}", [f"kfit: error: {MISSING}", f"  {PEER}", "Start"]),
        (f"E: {MISSING} {PEER}", [f"a.E: {MISSING}", f"  {PEER}"]),
    ],
)
def test_what_was_printed_is_recognized(error: str, lines: list[str]) -> None:
    assert is_among(error, ["x", *lines])
    assert not is_among(error, ["x", "", "Other:"])


def test_the_error_of_a_graph_is_named_without_that_of_tensorflow() -> None:
    class UnknownError(Exception):
        pass

    text = "Graph execution error:\n\nExchangeError: worker 1 is gone\nTraceback"
    assert summary_of(UnknownError(text)) == "ExchangeError: worker 1 is gone"


class WithoutMessageError(Exception):
    def __str__(self) -> str:
        return f"at {self.missing}"  # type: ignore[attr-defined]


class WithNumberError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


@pytest.mark.parametrize("error", [WithoutMessageError(), WithNumberError()])
def test_an_error_whose_message_fails_has_the_text_of_python(error: Exception) -> None:
    assert message_of(error) == "<exception str() failed>"
    assert summary_of(error) == f"{type(error).__name__}: <exception str() failed>"
    assert TaskError.of(error).summary == summary_of(error)
    assert not is_surely_consequence(error)
