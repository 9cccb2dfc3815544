"""Says in a few words what the tasks of a run are doing, for a line that lives for a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kfit.heartbeat import Phase, Pulse

_WAITING = (Phase.PEERS, Phase.JOINING, Phase.WORKERS)


def activity(
    names: Sequence[str],
    pulses: Mapping[str, Pulse],
    now: float,
    started: float,
    least: float = 1.0,
) -> str:
    """Returns what the first task has been doing for some time, and for whom it waits.

    Args:
        names: The names of the tasks, the chief first.
        pulses: What each running task has last reported, by its name.
        now: The time, as of `time.monotonic()`.
        started: When the tasks were started.
        least: Seconds of the same state after which it is worth a line.

    Returns:
        Words such as "worker 0 is tracing or compiling a step (12 s)". They are empty if the task
        makes progress, or runs code outside of `fit`, `evaluate` and `predict`.
    """
    running = [name for name in names if name in pulses]
    if not running:
        return ""
    name, pulse = running[0], pulses[running[0]]
    if not pulse.pid:
        seconds = now - started
        return f"{name} is starting ({seconds:.0f} s)" if seconds >= least else ""
    if not pulse.in_call:
        return ""
    seconds = now - max(pulse.time, pulse.meeting_since or 0.0)
    if seconds < least:
        return ""
    text = f"{name} is {pulse.doing} ({seconds:.0f} s)"
    busy = [other for other in running[1:] if not _waits(pulses[other])]
    if _waits(pulse) and busy:
        other = pulses[busy[0]]
        text += f"; {busy[0]} is {other.doing if other.pid else 'starting'}"
    return text


def _waits(pulse: Pulse) -> bool:
    return pulse.meeting_since is not None or (pulse.in_call and pulse.phase in _WAITING)
