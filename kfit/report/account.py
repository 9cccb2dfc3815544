"""Collects the figures of a `fit` while it runs, and carries its totals over restarts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kfit.heartbeat import Phase
from kfit.heartbeat.clock import BUILDING, SIZE, VALIDATION, clock_of_thread
from kfit.heartbeat.phases import HOOKS, hook
from kfit.report.figures import PHASES
from kfit.report.lost_steps import Attempt
from kfit.report.report import Report

_NAMES: dict[int, str] = {
    Phase.TRACING: "tracing",
    Phase.INPUT: "input",
    Phase.STEP: "steps",
    Phase.READING_STEP: "steps",
    Phase.WORKERS: "steps",
    Phase.PEERS: "exchange",
    Phase.JOINING: "exchange",
    BUILDING: "building",
    VALIDATION: "validation",
    Phase.SAVING: "saving",
    Phase.RESTORING: "resuming",
    Phase.SKIPPING: "resuming",
}
"""The name in the report of each phase; hooks are "callbacks", all others "rest"."""

_SHORTEST = 2.0
"""A `fit` of fewer seconds prints no line at its end."""


@dataclass
class Totals:
    """The figures of a training since it first began, over all restarts.

    Attributes:
        began: When the training first began, in seconds since 1970.
        step: The number of steps that count.
        step_seconds: The seconds of these steps.
        examples: The number of their examples; None if it is not known.
        restarts: How often the training was started again and resumed.
        restores: How often a snapshot was restored.
        again: The number of steps that were lost and done again; None if it is not known.
    """

    began: float = field(default_factory=time.time)
    step: int = 0
    step_seconds: float = 0.0
    examples: int | None = 0
    restarts: int = 0
    restores: int = 0
    again: int | None = 0


class Account:
    """The figures of one `fit`, which the loops and callbacks add to while it runs.

    It must be created in the thread that calls `fit`, and `running` must be entered at once.

    Attributes:
        totals: The figures since the training first began.
        num_replicas: The number of replicas, on all tasks.
        num_tasks: The number of tasks.
        expected_examples: The number of examples of all epochs; None if it is not known.
        in_memory: Whether the data is arrays in memory.
        saves_as_allowed: Whether snapshots are saved as often as a share of the time allows.
        watching: The callbacks, by class, for which each step is a graph call of its own.
        step_parts: The seconds of the parts of one step, if they were measured.
        has_parts: Whether each task reads its own part of the data.
        shows: Whether this task prints a line, or the report, when the `fit` has ended.
        profiles: Whether the report is printed, and not only a line.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.num_replicas = self.num_tasks = 1
        self.expected_examples: int | None = None
        self.watching: tuple[str, ...] = ()
        self.step_parts: dict[str, float] = {}
        self.has_parts = self.in_memory = self.shows = self.profiles = False
        self.saves_as_allowed = False
        self._id = uuid.uuid4().hex
        self._clock = clock_of_thread()
        self._ledger = [0] * SIZE
        self._began = time.monotonic()
        self._ended: float | None = None
        self._final: list[float] = []
        self._building = self._marked = 0.0
        self._steps = 0
        self._examples: int | None = 0
        self._unshared: int | None = 0
        self._in_tracing = self._unshared_in_tracing = 0  # of the examples
        self._traced = 0  # the time of tracing, in ns, until the last steps
        self._first_step: float | None = None
        self._first_input = 0.0
        self._exchange: float | None = None
        self._saved: list[tuple[int, float]] = []
        self._waited = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context of the `fit`, whose time is counted."""
        with self._clock.ledger() as self._ledger:
            self._began = time.monotonic()
            try:
                yield
            finally:
                self.stop()

    def stop(self) -> None:
        """Ends the time that counts; later calls do nothing."""
        if self._ended is None:
            self._final = self._times()
            self._ended = time.time()

    def summary(self) -> str | None:
        """Returns what to print when the `fit` has ended; None if nothing is to be printed.

        It is the report of a profiled `fit`, and otherwise a line, but only if the `fit` has taken
        some seconds, so that many short calls stay quiet.
        """
        if not self.shows:
            return None
        report = self.report()
        if self.profiles:
            return str(report)
        return report.line if report.seconds >= _SHORTEST and report.steps else None

    @property
    def mean_batch_size(self) -> int | None:
        """The rounded mean number of examples of a step; None if it is not known."""
        if not self._examples or not self._steps:
            return None
        return round(self._examples / self._steps)

    def enter_loop(self) -> None:
        """Records that the parts of the `fit` are built."""
        times = self._times()
        self._building = times[Phase.WORK] + times[Phase.OUTSIDE]

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Context of a validation, all of whose time counts as that of the validation."""
        with self._clock.ledger(VALIDATION):
            yield

    def took(self, steps: int, examples: int | None, exchange: float | None) -> None:
        """Adds steps that this task has taken.

        Args:
            steps: The number of steps.
            examples: The number of their examples, of this task alone if it reads its own part of
                the data; None if it is not known.
            exchange: The seconds of exchanges between tasks in these steps; None if not measured.
        """
        if self._first_step is None:
            self._first_step = time.monotonic() - self._began
            self._first_input = self._times()[Phase.INPUT]
        self._steps += steps
        self.totals.step += steps
        known = self._unshared is not None and examples is not None
        self._unshared = (self._unshared or 0) + (examples or 0) if known else None
        before, self._traced = self._traced, self._ledger[Phase.TRACING]
        if self._traced != before:
            self._unshared_in_tracing += examples or 0
        if exchange is not None:
            self._exchange = (self._exchange or 0.0) + exchange

    @property
    def unshared_examples(self) -> int:
        """The examples of this task since `share_examples` was last called; -1 if unknown."""
        return -1 if self._unshared is None else self._unshared

    def share_examples(self, counts: list[int]) -> None:
        """Adds the examples of the steps that all tasks have taken since the last call.

        Args:
            counts: The number of each task (`unshared_examples`); below 0 if it is not known.
        """
        own, in_tracing = self._unshared, self._unshared_in_tracing
        self._unshared = self._unshared_in_tracing = 0
        added = None if min(counts) < 0 else sum(counts) if self.has_parts else counts[0]
        self._examples = _sum(self._examples, added)
        if added and own:  # the other tasks have traced the same steps
            self._in_tracing += round(added * in_tracing / own)
        self.totals.examples = _sum(self.totals.examples, added)

    def saved(self, size: int, seconds: float) -> None:
        """Adds a snapshot that was written; any thread may call the method.

        Args:
            size: Its size in bytes.
            seconds: How long it took to write.
        """
        self._saved.append((size, seconds))

    def waited_for_save(self, seconds: float) -> None:
        """Adds time in seconds that training has waited for a snapshot."""
        self._waited += seconds

    def state_dict(self, fit: int = 0) -> dict[str, Any]:
        """Returns the totals as plain values, for a snapshot.

        Args:
            fit: The number of the `fit` in the program.
        """
        totals = {**vars(self.totals), "step_seconds": self._step_seconds()}
        return {**totals, "account": self._id, **Attempt.of_environment().state_dict(fit)}

    def restored(self, kept: Mapping[str, Any] | None, step: int, *, complete: bool) -> None:
        """Goes on from the totals of a snapshot, which was restored with the training's progress.

        Args:
            kept: What `state_dict` has returned for the snapshot; None if the snapshot lacks it.
            step: The step of the snapshot.
            complete: Whether no step was taken after the snapshot before training ended.
        """
        totals = self.totals
        is_own = kept is not None and kept.get("account") == self._id
        earlier = 0 if complete else None
        restarts = 0 if is_own else 1
        if is_own:
            earlier = max(0, totals.step - step)
        elif kept is not None and not complete:
            attempt = Attempt.of_environment()
            earlier = attempt.lost_since(kept, step)
            restarts = attempt.starts_since(kept)
        kept = {} if kept is None else kept
        known = {name: kept[name] for name in vars(totals) if name in kept}
        before = totals if is_own else Totals(**known)
        self.totals = Totals(
            began=before.began,
            step=step,
            step_seconds=kept.get("step_seconds", 0.0),
            examples=kept.get("examples"),
            restarts=before.restarts + restarts,
            restores=before.restores + 1,
            again=_sum(before.again, earlier),
        )
        self._marked = self._steps_now()

    def report(self) -> Report:
        """Returns the report of the `fit` until now, or of all of it if it has ended."""
        times, totals = self._times(), self.totals
        seconds = sum(times)
        now = time.time() if self._ended is None else self._ended
        # The clock of the system may have been set back since the training began.
        total = max(now - totals.began, seconds, self._step_seconds())
        hooks = {name: times[hook(name)] for name in HOOKS if times[hook(name)]}
        saved = list(self._saved)
        return Report(
            phases=self._phases(times),
            seconds=seconds,
            hooks=hooks,
            steps=self._steps,
            examples=self._examples,
            examples_in_tracing=self._in_tracing,
            seconds_to_first_step=self._first_step,
            first_input=self._first_input,
            exchange_in_steps=self._exchange,
            num_replicas=self.num_replicas,
            num_tasks=self.num_tasks,
            total_steps=totals.step,
            total_examples=totals.examples,
            expected_examples=self.expected_examples,
            total_seconds=total,
            goodput=self._step_seconds() / total if total else 0.0,
            restarts=totals.restarts,
            restores=totals.restores,
            steps_again=totals.again,
            snapshots=len(saved),
            snapshot_bytes=sum(size for size, _ in saved),
            snapshot_seconds=sum(each for _, each in saved),
            snapshot_wait=self._waited,
            saves_as_allowed=self.saves_as_allowed,
            in_memory=self.in_memory,
            single_steps=self.watching,
            step_parts=dict(self.step_parts),
        )

    def _phases(self, times: list[float]) -> dict[str, float]:
        phases = dict.fromkeys(PHASES, 0.0)
        for place, seconds in enumerate(times):
            other = "callbacks" if place >= Phase.HOOK else "rest"
            phases[_NAMES.get(place, other)] += seconds
        phases["rest"] -= self._building
        phases["building"] += self._building
        return phases

    def _times(self) -> list[float]:
        if self._ended is not None:
            return self._final
        return [each / 1e9 for each in self._clock.times(self._ledger)]

    def _steps_now(self) -> float:
        times = self._times()
        return sum(times[place] for place, name in _NAMES.items() if name == "steps")

    def _step_seconds(self) -> float:
        """Returns the seconds of all steps that count, since the training first began."""
        return self.totals.step_seconds + self._steps_now() - self._marked


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
