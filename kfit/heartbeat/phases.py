"""The phases of a task: what it is doing during `fit`, `evaluate` or `predict`.

A task is a process that trains. It reports its phase to its supervisor (`kfit run`).
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """A number that says what a task (a process that trains) is doing.

    The task reports this number to its supervisor (`kfit run`), which decides by the phase how long
    the task may go without progress before it counts as hung. Each hook of callbacks has a number,
    too: `HOOK` is the number of the first hook.
    """

    OUTSIDE = 0
    """In no call of kfit, but in the user's own code. The task cannot count as hung."""
    WORK = 1
    """kfit's own code around the steps, such as building the model and placing its variables."""
    STEP = 2
    """A graph runs whose data is in memory, so nothing outside of kfit can delay it."""
    READING_STEP = 3
    """A graph runs that may wait for the user's data."""
    INPUT = 4
    """The user's data is read outside of a graph."""
    SKIPPING = 5
    """A resumed training takes over its state, and reads data and skips it, up to its step."""
    TRACING = 6
    """A step is traced or compiled."""
    SAVING = 7
    """Callbacks may save the state of training."""
    PEERS = 8
    """The task waits for the other tasks in an operation that all tasks must call."""
    JOINING = 9
    """The task joins its cluster."""
    WORKERS = 10
    """The chief of asynchronous training waits for workers to finish steps."""
    RESTORING = 11
    """A snapshot to resume from is looked for, read and verified."""
    HOOK = 32
    """The number of the first hook of callbacks."""


HOOKS = (
    "on_epoch_begin",
    "on_epoch_end",
    *(
        f"on_{mode}_{moment}"
        for mode in ("train", "test", "predict")
        for moment in ("begin", "end", "batch_begin", "batch_end")
    ),
)

_PHASE_OF = {name: Phase.HOOK + index for index, name in enumerate(HOOKS)}

_WORDS = {
    Phase.OUTSIDE: "outside of `fit`, `evaluate` and `predict`",
    Phase.WORK: "preparing a step",
    Phase.STEP: "in a step",
    Phase.READING_STEP: "in a step, or reading data for it",
    Phase.INPUT: "reading data",
    Phase.SKIPPING: "reading on to the step at which training resumes",
    Phase.TRACING: "tracing or compiling a step",
    Phase.SAVING: "saving the state of training",
    Phase.RESTORING: "restoring the state of training",
    Phase.PEERS: "waiting for its peers",
    Phase.JOINING: "joining its cluster",
    Phase.WORKERS: "waiting for workers to take steps",
}


def hook(name: str) -> int:
    """Returns the number for the phase in which a task is in a hook of callbacks.

    Args:
        name: The name of the hook, such as `"on_epoch_end"`.
    """
    return _PHASE_OF[name]


def in_words(phase: int, *, in_user_code: bool = False) -> str:
    """Returns what a task is doing, in words that can follow "the task is".

    Args:
        phase: The `Phase` of the task; or, while it is in a method of a callback such as
            `on_epoch_end`, the number that `hook` returns for this method.
        in_user_code: Whether the user's code was found running. If so, a task in the phase
            `READING_STEP` (a step, or reading data for it) is said to read data.
    """
    if phase >= Phase.HOOK:
        return f"in {HOOKS[phase - Phase.HOOK]}"
    if phase == Phase.READING_STEP and in_user_code:
        return "reading data"
    return _WORDS[Phase(phase)]
