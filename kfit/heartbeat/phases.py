"""The phases of a task during `fit`, `evaluate` or `predict`, as numbers and in words."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """The phase of a task: a number that says what the task is doing.

    Each hook of callbacks is a phase, too: the first one has the number `HOOK`.
    """

    OUTSIDE = 0
    """Not in a call of kfit, but in the user's own code; the task cannot count as hung."""
    WORK = 1
    """kfit's own code around the steps, such as building the model and placing its variables."""
    STEP = 2
    """A graph runs whose data is in memory, so that nothing outside of kfit can delay it."""
    READING_STEP = 3
    """A graph runs that may wait for the user's data."""
    INPUT = 4
    """The user's data is read outside of a graph."""
    SKIPPING = 5
    """Data is read and skipped up to the step at which training resumes."""
    TRACING = 6
    """A step is traced or compiled."""
    SAVING = 7
    """Training is at a save point, or restores a snapshot."""
    PEERS = 8
    """The task waits in a collective between hosts, until all tasks have called it."""
    JOINING = 9
    """The task joins its cluster."""
    WORKERS = 10
    """The coordinator of asynchronous training waits for workers to finish steps."""
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
    Phase.SAVING: "saving or restoring the state of training",
    Phase.PEERS: "waiting for its peers",
    Phase.JOINING: "joining its cluster",
    Phase.WORKERS: "waiting for workers to take steps",
}


def hook(name: str) -> int:
    """Returns the phase of a hook, such as `"on_epoch_end"`."""
    return _PHASE_OF[name]


def in_words(phase: int, *, in_user_code: bool = False) -> str:
    """Describes what a task is doing, in words that can follow "the task is".

    Args:
        phase: The phase.
        in_user_code: Whether the user's code was found running.
    """
    if phase >= Phase.HOOK:
        return f"in {HOOKS[phase - Phase.HOOK]}"
    if phase == Phase.READING_STEP and in_user_code:
        return "reading data"
    return _WORDS[Phase(phase)]
