"""Where a task can be while it runs `fit`, `evaluate` or `predict`, in numbers and in words."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """What a task is doing. Hooks have numbers of their own, from `HOOK` on; see `hook`."""

    OUTSIDE = 0
    """Not in a call of kfit: the user's own code, which is not judged."""
    WORK = 1
    """kfit's own code around the steps: building the model, placing its variables."""
    STEP = 2
    """A graph runs; its data is in memory, so that nothing outside of kfit can delay it."""
    READING_STEP = 3
    """A graph runs, and may wait for the user's data in it."""
    INPUT = 4
    """The user's data is read outside of a graph."""
    SKIPPING = 5
    """The data is read on to the place at which training resumes."""
    TRACING = 6
    """A step is traced or compiled."""
    SAVING = 7
    """Training is at a save point, or restores a snapshot."""
    PEERS = 8
    """The task waits until all have said their own."""
    JOINING = 9
    """The task joins its cluster."""
    WORKERS = 10
    """The coordinator of asynchronous training waits for workers to take steps."""
    HOOK = 32
    """The first hook of callbacks."""


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
    """Returns the phase of a hook, as `on_epoch_end`."""
    return _PHASE_OF[name]


def in_words(phase: int, *, in_user_code: bool = False) -> str:
    """Returns what a task is doing, to be put after "it is".

    Args:
        phase: The phase.
        in_user_code: Whether code of the user's was seen to run.
    """
    if phase >= Phase.HOOK:
        return f"in {HOOKS[phase - Phase.HOOK]}"
    if phase == Phase.READING_STEP and in_user_code:
        return "reading data"
    return _WORDS[Phase(phase)]
