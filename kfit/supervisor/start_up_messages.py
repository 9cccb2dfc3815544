"""Recognizes the messages of TensorFlow on stderr that tell the user nothing.

Most are printed when TensorFlow is imported and first used. They concern CUDA, oneDNN and the
instructions of the CPU, need no action, and are repeated by each task. From TensorFlow 2.21 on,
most of them are printed whatever TF_CPP_MIN_LOG_LEVEL is, since they come before the logging is set
up.

When tasks end, the last ones may find that the first one, which coordinates them, has ended before.
TensorFlow reports that as an error, also at the end of a successful run. If a task has failed,
the supervisor names it.

Where a step fails on several devices, there is a line for each value that a device was waiting for.
The error itself follows.
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
    "Local rendezvous recv item cancelled",
    r"(?:\w+::StartAbort )?UNAVAILABLE: Failed to send RPC to coordination service",
)
_START_UP = re.compile(
    "|".join(
        (
            "WARNING: All log messages before absl::InitializeLog",
            "To enable the following instructions:.*rebuild TensorFlow",
            # The two lines that follow the failure to send an RPC.
            "Additional GRPC error information from remote target .*CoordinationService/",
            ":UNKNOWN:Error received from peer ",
            f"{_BEGINNING}(?:{'|'.join(_MESSAGES)})",
        )
    )
)


_FIXED_BEGINNINGS = (
    *(f"{level}0000 " for level in "IWE"),
    "WARNING: All log messages before",
    "To enable the following instructions:",
    "Additional GRPC error information",
    ":UNKNOWN:Error received from peer",
)
# A date, or the beginning of one.
_DATE = re.compile(r"\d{1,4}$|\d{4}-[\d-]{0,5}$|\d{4}-\d\d-\d\d [\d:.]*")


def is_start_up_message(line: str) -> bool:
    """Returns whether a line is one of the messages of TensorFlow that tell the user nothing.

    Args:
        line: A line of a task's stderr.
    """
    return _START_UP.match(line) is not None


class StartUpFilter:
    """A filter of a task's stderr that removes TensorFlow's start-up messages and no other byte.

    Everything else passes at once, parts of lines too, so that a progress bar on stderr moves. Only
    the beginning of a line that may become such a message is held until the line ends.
    """

    def __init__(self) -> None:
        self._held = b""
        self._is_inside = False  # whether the beginning of the present line has passed

    def feed(self, chunk: bytes) -> bytes:
        """Adds a chunk of output, and returns what may be printed now."""
        passed = []
        for piece in (self._held + chunk).splitlines(keepends=True):
            # `splitlines` also splits at carriage returns, after which a bar writes its next state.
            is_ended = piece.endswith(b"\n")
            if self._is_inside or not _may_begin(piece):
                passed.append(piece)
                self._is_inside = not is_ended
            elif not is_ended:
                self._held = piece
                return b"".join(passed)
            elif not is_start_up_message(piece.decode(errors="replace")):
                passed.append(piece)
        self._held = b""
        return b"".join(passed)

    def flush(self) -> bytes:
        """Returns what is still held, when the output has ended."""
        held, self._held = self._held, b""
        return b"" if is_start_up_message(held.decode(errors="replace")) else held


def _may_begin(line: bytes) -> bool:
    """Returns whether a line, or the beginning of one, may be a start-up message."""
    text = line.decode(errors="replace")
    fixed = any(text.startswith(each) or each.startswith(text) for each in _FIXED_BEGINNINGS)
    return fixed or _DATE.match(text) is not None
