"""Recognizes the messages that TensorFlow prints on stderr when it is imported and first used.

They concern CUDA, oneDNN and the instructions of the CPU, need no action, and are repeated by each
task. From TensorFlow 2.21 on, most of them are printed whatever TF_CPP_MIN_LOG_LEVEL is, since they
come before the logging is set up.
"""

from __future__ import annotations

import re

_BEGINNING = (
    r"(?:[IWE]0000 [\d:.]+ +\d+ \S+\.cc:\d+\]"  # from 2.18 on
    r"|\d{4}-\d\d-\d\d [\d:.]+: [IWE] \S+\.cc:\d+\]) "
)
_MESSAGES = (
    "oneDNN custom operations are on",
    "Could not find cuda drivers",
    "Could not find TensorRT",
    "Unable to register cu",
    "computation placer already registered",
    "This TensorFlow binary is optimized",
    "TF-TRT Warning",
    "failed call to cuInit",
)
_START_UP = re.compile(
    "|".join(
        (
            "WARNING: All log messages before absl::InitializeLog",
            "To enable the following instructions:.*rebuild TensorFlow",
            f"{_BEGINNING}(?:{'|'.join(_MESSAGES)})",
        )
    )
)


def is_start_up_message(line: str) -> bool:
    """Returns whether a line is one of the messages that TensorFlow prints when it is first used.

    Args:
        line: A line of a task's stderr.
    """
    return _START_UP.match(line) is not None
