"""What the soak test writes down: the faults, the lives of a training, and what was violated."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kfit.checkpoint.store import SnapshotName


class Violation(NamedTuple):
    """A promise of kfit that was broken.

    Attributes:
        promise: Its number, I1 to I10, as `promises.py` lists them.
        what: What was seen.
    """

    promise: str
    what: str


@dataclass
class Fault:
    """A fault that was injected.

    Attributes:
        name: Its name in `faults.FAULTS`.
        at: When, by `time.monotonic()`.
        generation: The number of the attempt of `kfit run` that it hit.
        tasks: The names of the tasks that it hit; empty if it hit the whole run.
        says: A regular expression of the words by which kfit must name it.
        reached: The last step that any task had reported before it.
        in_fit: Whether all tasks that train had reported steps in this attempt.
        newest: The newest undamaged snapshot on the disk; None if there was none.
        damaged: The name of the snapshot that it damaged; empty if it damaged none.
        note: Further words for the log.
        recovered: When a later attempt had passed `reached`; None until then.
    """

    name: str
    at: float
    generation: int
    tasks: list[str]
    says: str
    reached: int = 0
    in_fit: bool = False
    newest: SnapshotName | None = None
    damaged: str = ""
    note: str = ""
    recovered: float | None = None


@dataclass
class Life:
    """One process of `kfit run`, from its start to its end; a training may need several.

    Attributes:
        number: Its number, from 0.
        mark: A text in the environment of all its processes, by which they are found.
        began: When it was started, by `time.monotonic()`.
        ended: When its process had ended; None while it runs.
        code: The exit code of its process; None while it runs.
        codes: The exit codes that are right after the fault that ends it; empty if none does.
        text: All it has printed.
        faults: The faults in the order of their times.
        ports: The ports of its tasks.
        folders: The folders of its tasks' heartbeats.
        first_steps: For each attempt, the first step that a task has reported.
        last_steps: For each attempt, the last step that a task has reported.
    """

    number: int
    mark: str
    began: float
    ended: float | None = None
    code: int | None = None
    codes: tuple[int, ...] = ()
    text: str = ""
    faults: list[Fault] = field(default_factory=list)
    ports: set[int] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    first_steps: dict[int, int] = field(default_factory=dict)
    last_steps: dict[int, int] = field(default_factory=dict)


@dataclass
class Record:
    """All that is known of one training.

    Attributes:
        kind: The name of its kind in `kinds.KINDS`.
        seconds: From its first start to its last end.
        lives: Its lives.
        violations: What was violated. Nothing is ever removed from this list.
        step_seconds: The seconds of the steps that count, by kfit's own report.
        own_goodput: The goodput by kfit's own report.
        steps: The number of steps that count.
        steps_again: The number of steps that were lost, and done again.
        snapshot_bytes: The size of a snapshot.
    """

    kind: str
    seconds: float = 0.0
    lives: list[Life] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    step_seconds: float = 0.0
    own_goodput: float = 0.0
    steps: int = 0
    steps_again: int = 0
    snapshot_bytes: int = 0

    @property
    def faults(self) -> list[Fault]:
        """The faults of all lives."""
        return [fault for life in self.lives for fault in life.faults]

    @property
    def goodput(self) -> float:
        """The share of the wall time, starts of processes included, that went into good steps."""
        return self.step_seconds / self.seconds if self.seconds else 0.0
