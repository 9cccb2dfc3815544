"""Leaves out TensorFlow's start-up messages where the kernel of a notebook imports TensorFlow.

A kernel reads what libraries write to the file descriptor of stderr, and sends it to the notebook
like everything that Python prints to `sys.stderr`. ipykernel calls hooks before it sends a text; so
no file descriptor is changed, and the terminal of the notebook's server still has every byte.

A plain program has no such hooks. To leave the messages out there, kfit would have to replace the
file descriptor while TensorFlow is imported: stderr would be no terminal meanwhile, and the last
words of a crash could be lost. `kfit run` leaves them out, since it reads the output of a process
that is not its own.
"""

from __future__ import annotations

import os
from typing import Any

from kfit.heartbeat.terminal import in_notebook
from kfit.supervisor.start_up_messages import is_start_up_message


def leave_out_start_up_messages(stream: Any) -> None:
    """Has a notebook leave out TensorFlow's start-up messages from now on.

    Nothing is left out while `TF_CPP_MIN_LOG_LEVEL` is 0, which asks TensorFlow for all messages.

    Args:
        stream: `sys.stderr`. If it is no stream of a notebook, nothing is done.
    """
    if in_notebook(stream):
        # Each thread has its own hooks, and this is the thread that sends.
        stream.pub_thread.schedule(lambda: stream.register_hook(_WithoutMessages()))


class _WithoutMessages:
    """A hook of ipykernel's streams, which changes the texts that a kernel sends."""

    def __init__(self) -> None:
        self._leaves_out = False  # whether the end of a message is still to come

    def __call__(self, sent: dict[str, Any]) -> dict[str, Any] | None:
        """Returns what the kernel sends; None if nothing is left of its text."""
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
            return sent
        kept = []
        for line in sent["content"]["text"].splitlines(keepends=True):
            is_left_out = self._leaves_out or is_start_up_message(line)
            self._leaves_out = is_left_out and not line.endswith("\n")
            if not is_left_out:
                kept.append(line)
        sent["content"]["text"] = "".join(kept)
        return sent if kept else None
