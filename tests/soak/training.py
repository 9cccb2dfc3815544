"""Trains once while faults come, and writes down what happened and what was violated."""

import os
import random
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.runs import snapshots, start
from tests.soak import end_checks, life_checks
from tests.soak.faults import FAULTS, Scene, Strike
from tests.soak.kinds import Kind
from tests.soak.processes import MARK, TaskProcess, processes_of, tasks_of
from tests.soak.records import Fault, Life, Record, Violation
from tests.soak.said import epochs_told

PATIENCE = 240.0
"""Seconds after which a training without a further step, start or fault counts as hanging."""

ENDS_IN = 120.0
"""Seconds in which a run must end that was told to end."""

STACKS_IN = 2.0
"""Seconds in which the stacks of tasks that hang are printed."""

LOOK_EVERY = 0.2
SEARCH_EVERY = 1.0
"""Seconds between two looks at the tasks' progress, and between two searches for the tasks."""


class Training:
    """One training of a kind, whose process is started again whenever a fault has ended it.

    Args:
        kind: The kind.
        folder: An empty folder for all that the training writes.
        epochs: The number of epochs.
        options: The options of the program.
        faults: The seconds until each next fault, and its name (`faults.dealt`).
        draw: The random generator that chooses victims.
        say: Prints a line.
    """

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        epochs: int,
        options: Sequence[str],
        faults: Iterator[tuple[float, str]],
        draw: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self.record = Record(kind.name)
        self.files = folder / "run"
        self._kind, self._folder, self._epochs, self._options = kind, folder, epochs, options
        self._coming, self._draw, self._say = faults, draw, say
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True)
        self._of_ray = ""
        self._damaged: set[str] = set()
        self._committed: set[int] = set()
        self._began = time.monotonic()
        self._due, self._next = self._began, ""
        self._draw_next()

    def run(self, untouched: tuple[str, Path] | None) -> Record:
        """Trains until training has ended, or a promise is broken.

        Args:
            untouched: What the same training has printed and written that nobody touched; None if
                there is none.
        """
        # Ray's sockets are files whose paths must be short.
        with (
            _Watching(self.files, self._committed),
            tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as self._of_ray,
        ):
            while True:
                life = self._live()
                self._check_life(life)
                if life.code == 0 or self.record.violations:
                    break
        self.record.seconds = (life.ended or time.monotonic()) - self._began
        self.record.steps_again = life_checks.steps_again(self.record.lives)
        if not self.record.violations:
            self._check_end(life, untouched)
        return self.record

    def _live(self) -> Life:
        """Starts the training once, injects faults, and waits until its process has ended."""
        number = len(self.record.lives)
        life = Life(number, uuid.uuid4().hex, time.monotonic())
        self.record.lives.append(life)
        output = self._folder / f"output-{number}"
        process = start(
            self._kind.command(self.files, *self._options),
            self.files,
            output,
            **{MARK: life.mark, "TMPDIR": str(self._temporary), "RAY_FILES": self._of_ray},
        )
        try:
            self._watch(life, process, output)
        finally:
            process.kill()
            life.code = process.wait()
            life.ended = time.monotonic()
            life.text = output.read_text(errors="replace")
        return life

    def _watch(self, life: Life, process: "subprocess.Popen[bytes]", output: Path) -> None:
        scene = Scene(
            process,
            life.mark,
            self.files,
            self._draw,
            self._damaged,
            lambda: bool(epochs_told(output.read_text(errors="replace"))),
        )
        last_news, latest = time.monotonic(), (0, 0)
        searched, tasks = 0.0, scene.tasks()
        while process.poll() is None:
            now = time.monotonic()
            is_due = now >= self._due and not life.codes and not scene.ended()
            if is_due or now - searched >= SEARCH_EVERY:
                searched, tasks = now, scene.tasks()
            news = self._look(life, tasks, now)
            if news != latest:
                last_news, latest = now, news
            if is_due and self._inject(life, scene, tasks):
                last_news, searched = time.monotonic(), 0.0
            elif now - last_news > (ENDS_IN if life.codes else PATIENCE):
                what = f"no step, start or end for {now - last_news:.0f} s"
                self._violated("I5", f"{what}; {self._stuck(life, tasks)}")
                self._end(life)
                return
            time.sleep(LOOK_EVERY)

    def _look(self, life: Life, tasks: Sequence[TaskProcess], now: float) -> tuple[int, int]:
        """Notes how far the tasks are; returns the attempt and the step."""
        reached = generation = 0
        for task in tasks:
            life.ports |= task.ports
            life.folders.add(os.path.dirname(task.heartbeat))
            beats, step = task.progress()
            generation = max(generation, task.generation)
            if beats:
                reached = max(reached, step)
                life.first_steps.setdefault(task.generation, step)
                last = life.last_steps.get(task.generation, 0)
                life.last_steps[task.generation] = max(last, step)
        for fault in self.record.faults:
            # Asynchronous training goes on in the same attempt when a worker is lost.
            is_later = fault not in life.faults or generation > fault.generation
            goes_on = is_later or not self._kind.is_exact
            if fault.recovered is None and goes_on and reached > fault.reached:
                fault.recovered = now
        return generation, reached

    def _inject(self, life: Life, scene: Scene, tasks: Sequence[TaskProcess]) -> bool:
        """Injects the next fault; returns False if there is nothing to hit yet."""
        name = self._next
        trains = [task for task in tasks if task.name.startswith("chief")] or tasks
        fault = Fault(
            name,
            at=time.monotonic(),
            generation=max((task.generation for task in tasks), default=self._generation(life)),
            tasks=[],
            says="",
            in_fit=len(trains) > 0 and all(task.progress()[0] for task in trains),
        )
        strike: Strike | None = FAULTS[name].strike(scene)
        if strike is None:
            return False
        if strike.damaged:
            self._damaged.add(strike.damaged)
        if strike.tasks:
            fault.at = time.monotonic()
            fault.generation = strike.tasks[0].generation
            fault.tasks = [task.name for task in strike.tasks]
            fault.says = FAULTS[name].words(fault.tasks, is_early=not fault.in_fit)
        fault.damaged, fault.note = strike.damaged, strike.note
        fault.reached = max(strike.reached, life.last_steps.get(fault.generation, 0))
        if fault.generation in life.last_steps:
            life.last_steps[fault.generation] = fault.reached
        # Whatever is on the disk now, the next attempt finds there.
        good = [each for each in snapshots(self.files) if str(each) not in self._damaged]
        fault.newest = good[-1] if good else None
        life.codes = FAULTS[name].codes
        if life.codes and any(other.generation == fault.generation for other in life.faults):
            life.codes += (137,)  # a task that was killed, or could not stop, before the signal
        life.faults.append(fault)
        self._say(
            f"  {fault.at - self._began:6.1f} s: {name}: "
            f"{', '.join(fault.tasks) or 'the run'} of attempt {life.number}.{fault.generation} "
            f"at step {fault.reached} {strike.damaged} {strike.note}".rstrip()
        )
        self._draw_next()
        return True

    def _draw_next(self) -> None:
        pause, self._next = next(self._coming)
        self._due += pause

    def _generation(self, life: Life) -> int:
        """The attempt that was last seen."""
        return max([*life.last_steps, *(fault.generation for fault in life.faults)], default=0)

    def _check_life(self, life: Life) -> None:
        found = life_checks.check_end(self._kind, life, self._epochs)
        found += life_checks.check_causes(self._kind, life)
        found += life_checks.check_resumes(self.record.lives[-2:], self._committed)
        found += life_checks.check_leftovers(life)
        for violation in found:
            self._violated(*violation)

    def _check_end(self, life: Life, untouched: tuple[str, Path] | None) -> None:
        told = end_checks.take_figures(self.record, life.text)
        found = end_checks.check_steps(self._kind, told, self._epochs)
        found += end_checks.check_examples(self._kind, told, self.record.faults)
        found += end_checks.check_files(self.files, self._temporary)
        found += end_checks.check_lock(self.files)
        if untouched is not None:
            found += end_checks.check_bits(life.text, self.files, *untouched)
        for violation in found:
            self._violated(*violation)

    def _violated(self, promise: str, what: str) -> None:
        self.record.violations.append(Violation(promise, what))
        self._say(f"  VIOLATION of {promise}: {what}")

    def _stuck(self, life: Life, tasks: Sequence[TaskProcess]) -> str:
        progress = {task.name: task.progress() for task in tasks}
        return f"life {life.number}, the tasks have made {progress}"

    def _end(self, life: Life) -> None:
        """Kills all processes of a life that hangs; its violation is noted.

        Before, its tasks print the stacks of their threads, which kfit has them do at SIGUSR2.
        """
        for task in tasks_of(life.mark):
            task.signal(signal.SIGUSR2)
        time.sleep(STACKS_IN)
        for process, _ in list(processes_of(life.mark)):
            process.kill()


class _Watching(threading.Thread):
    """A thread that notes the steps of all snapshots that are ever on the disk.

    Args:
        folder: The folder of the training.
        committed: The set to which the steps are added.
    """

    def __init__(self, folder: Path, committed: set[int]) -> None:
        super().__init__(daemon=True)
        self._folder, self._committed = folder, committed
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            self._committed |= {name.step for name in snapshots(self._folder)}

    def __enter__(self) -> "_Watching":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
