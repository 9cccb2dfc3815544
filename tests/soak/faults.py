"""The faults that the soak test injects into running trainings."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.runs import BACKUP, snapshots
from tests.soak.damage import damage
from tests.soak.processes import TaskProcess, are_gone, tasks_of

SAVE_IN = 12.0
"""Seconds to wait for a save to begin; `BackupAndRestore("auto")` saves every 2 s at most."""

GONE_IN = 30.0
"""Seconds in which all processes of a killed run must have ended."""


@dataclass
class Scene:
    """What a fault can hit.

    Attributes:
        run: The process of `kfit run`.
        mark: The mark of the processes of this life.
        folder: The folder of the training.
        draw: The random generator that chooses victims.
        damaged: The names of the snapshots that were damaged before.
        ended: Returns whether the training has ended.
    """

    run: subprocess.Popen[bytes]
    mark: str
    folder: Path
    draw: random.Random
    damaged: set[str] = field(default_factory=set)
    ended: Callable[[], bool] = lambda: False

    def tasks(self, *kinds: str) -> list[TaskProcess]:
        """The tasks that run now; only those of some types, such as "worker", if any are given."""
        found = tasks_of(self.mark)
        return [task for task in found if not kinds or task.name.split()[0] in kinds]


class Strike(NamedTuple):
    """What a fault has hit.

    Attributes:
        tasks: The tasks that it has hit; empty if it has hit the whole run.
        reached: The last step that they had reported.
        damaged: The name of a snapshot that it has damaged.
        note: Words for the log.
    """

    tasks: Sequence[TaskProcess] = ()
    reached: int = 0
    damaged: str = ""
    note: str = ""


class FaultKind(NamedTuple):
    """A kind of fault.

    Attributes:
        strike: Injects it; returns None if there is nothing to hit yet.
        says: The words by which kfit must name it; `{tasks}` stands for the victims.
        codes: The exit codes of `kfit run` after it; empty if `kfit run` itself goes on.
        says_early: Other words that are right, too, if it hits while the tasks start.
    """

    strike: Callable[[Scene], Strike | None]
    says: str
    codes: tuple[int, ...] = ()
    says_early: str = ""

    def words(self, tasks: Sequence[str], *, is_early: bool) -> str:
        """The regular expression of the words that must name the fault; empty if none must.

        Args:
            tasks: The names of the victims.
            is_early: Whether the tasks had not all begun to train.
        """
        found = [self.says] + [self.says_early] * bool(is_early and self.says_early)
        return "|".join(found).replace("{tasks}", "|".join(tasks))


def _send(signum: int, victims: Sequence[TaskProcess]) -> Strike | None:
    reached = max((task.progress()[1] for task in victims), default=0)
    for task in victims:
        task.signal(signum)
    return Strike(victims, reached) if victims else None


def _one(scene: Scene) -> list[TaskProcess]:
    tasks = scene.tasks()
    return [scene.draw.choice(tasks)] if tasks else []


def _kill_in_save(scene: Scene) -> Strike | None:
    """Kills the chief as soon as a save has begun, or a part of a millisecond to 20 ms later."""
    backup, deadline = scene.folder / BACKUP, time.monotonic() + SAVE_IN
    pause = scene.draw.random() * scene.draw.choice([0.0, 0.002, 0.02])
    chiefs = [task for task in scene.tasks("chief", "worker") if task.name.endswith(" 0")][:1]
    if not chiefs or not chiefs[0].progress()[0]:
        return None
    while not _unfinished(backup):
        if scene.ended() or time.monotonic() > deadline:
            return None
        time.sleep(0.0005)
    time.sleep(pause)
    strike = _send(signal.SIGKILL, chiefs)
    within = "within a save" if _unfinished(backup) else "just after a save"
    return strike and strike._replace(note=within)


def _unfinished(backup: Path) -> bool:
    try:
        return any(name.startswith("kfit-tmp-") for name in os.listdir(backup))
    except FileNotFoundError:
        return False


def _preempt_one(scene: Scene) -> Strike | None:
    """Sends SIGTERM to one task, but not while it joins: see `kfit.distribute.sigterm`."""
    victims = _one(scene)
    return None if any(task.is_joining() for task in victims) else _send(signal.SIGTERM, victims)


def _preempt_run(scene: Scene) -> Strike:
    scene.run.send_signal(signal.SIGTERM)
    return Strike()


def _kill_run(scene: Scene) -> Strike:
    scene.run.kill()
    return Strike()


def _damage(scene: Scene) -> Strike | None:
    """Kills `kfit run` with its tasks, and damages the newest snapshot before the next start.

    There must be another good snapshot to fall back to: if none is left, kfit refuses to train.
    """
    if len(_good(scene)) < 2:
        return None
    scene.run.kill()
    are_gone(scene.mark, GONE_IN)
    good = _good(scene)
    if len(good) < 2:
        return Strike(note="no snapshot to damage was left")
    name = good[-1]
    return Strike(damaged=name, note=damage(scene.folder / BACKUP / name, scene.draw))


def _good(scene: Scene) -> list[str]:
    return [str(name) for name in snapshots(scene.folder) if str(name) not in scene.damaged]


FAULTS: Mapping[str, FaultKind] = {
    "kill one": FaultKind(
        lambda scene: _send(signal.SIGKILL, _one(scene)), "({tasks}) was (killed by SIGKILL|lost)"
    ),
    "kill all workers": FaultKind(
        lambda scene: _send(signal.SIGKILL, scene.tasks("worker")),
        "({tasks}) was (killed by SIGKILL|lost)",
    ),
    "kill in a save": FaultKind(_kill_in_save, "({tasks}) was (killed by SIGKILL|lost)"),
    # All tasks stop after the same step, so another one may be the first to end.
    "preempt one": FaultKind(_preempt_one, r"\w+ \d+ (was|ended) .*preempted"),
    # Before it has joined the cluster, only its peer can find that it does not come.
    "suspend one": FaultKind(
        lambda scene: _send(signal.SIGSTOP, _one(scene)),
        r"({tasks}) hung: stopped by a signal",
        says_early=r"({tasks}) at \S+:\d+ ",
    ),
    # Until `kfit run` has set its handlers, Python ends it by the signal itself; so does Ray.
    "preempt the run": FaultKind(_preempt_run, "", (128 + signal.SIGTERM, -signal.SIGTERM)),
    "kill the run": FaultKind(_kill_run, "", (-signal.SIGKILL,)),
    "damage a snapshot": FaultKind(_damage, "", (-signal.SIGKILL,)),
}


def dealt(cards: Mapping[str, int], mtbf: float, seed: str) -> Iterator[tuple[float, str]]:
    """Draws faults for ever: the seconds until the next one, and its name.

    The times between faults are distributed exponentially. The names are dealt like cards, so that
    none is left out for long.

    Args:
        cards: How many cards of the deck have each name.
        mtbf: The mean of the seconds between two faults.
        seed: The same seed always draws the same faults.
    """
    draw = random.Random(seed)
    while True:
        deck = [name for name, count in cards.items() for _ in range(count)]
        draw.shuffle(deck)
        for name in deck:
            yield draw.expovariate(1 / mtbf), name
