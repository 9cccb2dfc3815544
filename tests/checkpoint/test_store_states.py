"""Whatever happens to a directory of snapshots, in any order: a model of it, kept apart.

Processes begin, save, are killed at any operation, are replaced while they still save, and lose
power; files are damaged. Each start may be of another number of workers than the one before.
"""

import contextlib
import errno
import json
import math
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.store import NoGoodSnapshotError, SnapshotName, Store
from tests.checkpoint.made_up_processes import Process
from tests.state_machines import run_machine

FILES = ["arrays.h5", "manifest.json", "state.json"]
FOREIGN = "notes.txt"


class Snapshots(RuleBasedStateMachine):
    """The directory and its processes, and what must be in it.

    Attributes:
        live: The process that has the lock, or None.
        replaced: Processes that had it, were replaced by a restart, and are still saving.
        on_disk: The snapshots that were in the directory after the last rule.
        were_whole: Those that nobody has damaged.
        contents: The files that each snapshot was written with.
        promised: The snapshots whose save has returned.
        workers: By the step of each save, the number of workers that it was made by.
    """

    def __init__(self, disk: Any, folder: Path) -> None:
        super().__init__()
        self.disk = disk
        self.files = disk.Files()
        self.directory = tempfile.mkdtemp(dir=folder)
        self.live: Process | None = None
        self.replaced: list[Process] = []
        self.on_disk: set[SnapshotName] = set()
        self.were_whole: set[SnapshotName] = set()
        self.contents: dict[SnapshotName, dict[str, bytes]] = {}
        self.promised: set[SnapshotName] = set()
        self.workers: dict[int, int] = {}
        self.saves = 0
        self.runs = 0

    # What is on the disk.

    def content(self, name: SnapshotName) -> dict[str, bytes]:
        listed = self.files.list(f"/{name}")
        return {file: self.files.open(f"/{name}/{file}").read() for file in listed}

    def is_whole(self, name: SnapshotName) -> bool:
        """Whether a snapshot has the files that it was written with, and no others."""
        now, written = self.content(name), self.contents.get(name)
        if written is None or sorted(now) != FILES:
            return False
        return self.is_vouched_for(name) and all(
            now[file] == written[file] for file in ("arrays.h5", "state.json")
        )

    def is_vouched_for(self, name: SnapshotName) -> bool:
        """Whether a snapshot's manifest says what it said; blanks may differ."""
        now = self.content(name).get("manifest.json", b"")
        try:
            return bool(json.loads(now) == json.loads(self.contents[name]["manifest.json"]))
        except (ValueError, KeyError):
            return False

    def whole(self) -> set[SnapshotName]:
        return {name for name in self.on_disk if self.is_whole(name)}

    def left_over(self) -> list[str]:
        """Temporary folders, without those in which somebody else has put a file."""
        return [
            name
            for name in self.files.list("/")
            if re.match("kfit-(tmp|trash)-", name) and FOREIGN not in self.files.list(f"/{name}")
        ]

    def may_delete(
        self, process: Process, name: SnapshotName, known: set[SnapshotName] | None = None
    ) -> bool:
        """Whether a process has enough newer snapshots that it knows to be good."""
        good = sorted((process.trusted if known is None else known) & self.on_disk)
        return (
            len(good) >= process.keep
            and name < good[-process.keep]
            and name.lock_count <= process.store.lock_count
            and name not in process.needed
        )

    @property
    def busy(self) -> list[Process]:
        """The processes whose work is under way."""
        return [each for each in (self.live, *self.replaced) if each is not None and each.kind]

    def compare(self, *ended: Process, power_was_lost: bool = False) -> None:
        """Takes over what has come and gone on the disk, if it may have.

        Args:
            *ended: The processes whose work has ended, besides those whose work is under way.
            power_was_lost: Whether what was not synced may be gone, or back.
        """
        before, processes = self.on_disk, [*self.busy, *ended]
        now = set(Store("/", files=self.files).names())
        self.on_disk = before | now
        for name in now - before:
            if name in self.contents:
                assert power_was_lost, f"{name} is back"
                continue
            (writer,) = [
                each
                for each in processes
                if (each.step, each.store.lock_count) == (name.step, name.lock_count)
            ]
            assert writer.kind in ("", "save")
            writer.trusted.add(name)
            try:
                assert self.disk.step_of(Store("/", files=self.files).read(name)) == name.step
            except DamagedSnapshotError:
                # Its folder was swept away while it was written, by the process that replaced it.
                assert writer in self.replaced
            else:
                self.contents[name] = self.content(name)
        for name in now - self.contents.keys() if power_was_lost else ():
            # A file that was swept away, while a replaced process wrote it, may be back as well.
            with contextlib.suppress(DamagedSnapshotError):
                Store("/", files=self.files).read(name)
                self.contents[name] = self.content(name)
        for name in before - now:
            assert any(
                each.kind == "clear" or self.may_delete(each, name) for each in processes
            ) or (power_was_lost and name not in self.promised), f"{name} is gone"
        self.on_disk = now
        whole = self.whole()
        assert self.were_whole & now <= whole, "a snapshot was damaged by kfit, or not synced"
        self.were_whole = whole
        if self.promised:
            assert max(now) >= max(self.promised)
        elif before and max(before) not in now and not power_was_lost:
            assert not self.whole(), "the newest was deleted before an older one"

    def expect_restored(self, restore: Callable[[], Any], floor: SnapshotName | None) -> None:
        """What is restored is one snapshot, whole, and none that is older than the newest whole.

        Args:
            restore: Reads the newest snapshot, as `Store.newest` does.
            floor: The newest whole snapshot when the reading began; None if there was none.
        """
        try:
            snapshot, damages = restore()
        except NoGoodSnapshotError:
            assert self.on_disk
            assert not self.whole() or self.replaced
            return
        if snapshot is None:
            assert not self.on_disk or self.replaced
            return
        step = self.disk.step_of(snapshot)
        (found,) = [name for name in self.contents if name.step == step]
        assert floor is None or found >= floor
        # Whatever the number of workers is now: training takes over the rows that it can use.
        assert snapshot.about["num_workers"] == self.workers[step]
        if not self.replaced:
            assert found == max(self.whole())
            newer = sorted((name for name in self.on_disk if name > found), reverse=True)
            assert [line.partition(":")[0] for line in damages] == [str(name) for name in newer]

    def newest_whole(self) -> SnapshotName | None:
        return max(self.whole(), default=None)

    # Processes begin and end.

    def enter(self, environ: dict[str, str], keep: int, operations: float, workers: int) -> None:
        self.live = Process(self.disk, self.files, self.directory, environ, keep, workers)
        self.floor = self.newest_whole()
        self.was_alone = not self.replaced
        self.live.start("begin", self.live.begin)
        self.advance_one(self.live, operations)

    @precondition(lambda self: self.live is None)
    @rule(
        supervised=st.booleans(),
        keep=st.sampled_from([2, 3]),
        operations=st.just(math.inf) | st.integers(0, 20),
        workers=st.integers(1, 3),
    )
    def begin(self, supervised: bool, keep: int, operations: float, workers: int) -> None:
        self.runs += 1
        run = {"KFIT_RUN": f"run {self.runs}", "KFIT_GENERATION": "0"}
        self.enter(run if supervised else {}, keep, operations, workers)

    @precondition(lambda self: self.live is not None and self.live.environ)
    @rule(operations=st.just(math.inf) | st.integers(0, 20), workers=st.integers(1, 3))
    def replace(self, operations: float, workers: int) -> None:
        """The task is started again, though its old process has not ended; that goes on saving."""
        old = self.live
        assert old is not None
        start = int(old.environ["KFIT_GENERATION"]) + 1
        self.live = None
        if old.kind == "save":
            self.replaced.append(old)
        else:
            old.die()
        self.enter({**old.environ, "KFIT_GENERATION": str(start)}, old.keep, operations, workers)
        if old in self.replaced:
            assert not old.lock.is_held

    @precondition(lambda self: self.live is not None)
    @rule(environ=st.sampled_from(["none", "another", "the same"]))
    def second_run(self, environ: str) -> None:
        assert self.live is not None
        environs = {
            "none": {},
            "another": {"KFIT_RUN": "another run", "KFIT_GENERATION": "9"},
            "the same": self.live.environ,
        }
        with pytest.raises(DirectoryInUseError, match="in use by another callback"):
            DirectoryLock(self.directory, environs[environ])
        assert self.live.lock.is_held

    @precondition(lambda self: self.live is not None)
    @rule(torn=st.booleans())
    def kill(self, torn: bool) -> None:
        assert self.live is not None
        log, dead = self.files.log, self.live
        if torn and dead.kind and log and isinstance(log[-1], self.disk.Write):
            written = log[-1]
            rest = len(written.data) // 2
            log[-1] = written._replace(data=written.data[:rest])
            del self.files.state.files[written.inode][written.offset + rest :]
        dead.die()
        self.live = None
        self.compare(dead)

    @precondition(lambda self: self.on_disk or self.live is not None)
    @rule(data=st.data(), lock=st.sampled_from(["kept", "zeros", "gone"]))
    def lose_power(self, data: Any, lock: str) -> None:
        """All processes end; any of what was not synced may be lost."""
        old, dead = self.files, [*self.replaced, *([self.live] if self.live else [])]
        for process in dead:
            process.die()
        loose = self.disk.not_durable(old.log, len(old.log))
        some = st.sets(st.sampled_from(loose)) if loose else st.nothing()
        lost = data.draw(st.just(set(loose)) | some)
        self.files = self.disk.Files(self.disk.state_after(old.log, len(old.log), lost=lost))
        self.files.kinds, self.files._inodes = old.kinds, old._inodes
        self.files.log = [each for index, each in enumerate(old.log) if index not in lost]
        self.files.log += [self.disk.Sync(inode) for inode in old.kinds]
        self.live, self.replaced = None, []
        path = Path(self.directory) / ".kfit-lock"
        if lock == "zeros" and path.exists():
            path.write_bytes(bytes(path.stat().st_size))
        elif lock == "gone":
            path.unlink(missing_ok=True)
        self.compare(*dead, power_was_lost=True)

    @precondition(lambda self: self.live is not None)
    @rule()
    def end(self) -> None:
        """The program is interrupted by a signal, so it waits for its save."""
        assert self.live is not None
        if self.live.kind:
            self.advance_one(self.live, math.inf)
        if self.live is not None:
            self.live.lock.release()
            self.live = None

    @precondition(lambda self: self.is_ready)
    @rule(operations=st.just(math.inf) | st.integers(0, 20))
    def succeed(self, operations: float) -> None:
        """The program has succeeded: its snapshots are deleted."""
        assert self.live is not None
        self.promised.clear()
        self.live.start("clear", self.live.store.clear)
        self.advance_one(self.live, operations)

    # Snapshots are saved.

    @property
    def is_ready(self) -> bool:
        return self.live is not None and not self.live.kind

    @precondition(lambda self: self.is_ready)
    @rule(step=st.integers(0, 9), operations=st.just(math.inf) | st.integers(0, 40))
    def save(self, step: int, operations: float) -> None:
        """Training goes on meanwhile, if the save has not ended after so many operations."""
        assert self.live is not None
        self.begin_save(step)
        self.advance_one(self.live, operations)

    @precondition(lambda self: self.is_ready)
    @rule(
        step=st.integers(0, 9),
        operations=st.integers(0, 40),
        error=st.sampled_from([errno.ENOSPC, errno.EIO]),
    )
    def save_in_vain(self, step: int, operations: int, error: int) -> None:
        assert self.live is not None
        self.begin_save(step)
        before = set(self.left_over())
        assert self.live.advance(operations, OSError(error, os.strerror(error)))
        with contextlib.suppress(OSError):
            name = self.live.result()
            self.promised.add(name)
            self.live.good.add(name)
        assert not [name for name in set(self.left_over()) - before if "-tmp-" in name]
        self.compare(self.live)

    def begin_save(self, step: int) -> None:
        """Steps come again after a restore; the numbers of the saves tell them apart here."""
        assert self.live is not None
        self.saves += 1
        self.live.step = 1000 * step + self.saves
        process = self.live
        self.workers[process.step] = process.workers
        snapshot = self.disk.snapshot_of(process.step, workers=process.workers)
        process.start("save", lambda: process.save(snapshot))

    @precondition(lambda self: self.busy)
    @rule(index=st.integers(0, 3), operations=st.just(math.inf) | st.integers(1, 10))
    def advance(self, index: int, operations: float) -> None:
        self.advance_one(self.busy[index % len(self.busy)], operations)

    def advance_one(self, process: Process, operations: float) -> None:
        """Lets a process do so many operations, and checks what it has done if it is ready."""
        is_over, kind = process.advance(operations), process.kind
        if not is_over:
            self.compare()
            return
        if kind == "begin":
            self.compare(process)
            self.end_begin(process)
        elif kind == "clear":
            self.compare(process)
            process.result()
            assert all(FOREIGN in self.content(name) for name in self.on_disk) or self.replaced
            process.lock.remove()
            self.live = None
        else:
            self.end_save(process)

    def end_begin(self, process: Process) -> None:
        def restore() -> Any:
            snapshot, damages = process.result()
            if snapshot is not None:
                step = snapshot.about["step"]
                (found,) = [name for name in self.contents if name.step == step]
                process.trusted.add(found)
                process.good.add(found)
                if step % 2:
                    process.needed.add(found)
            return snapshot, damages

        self.expect_restored(restore, self.floor)
        if self.was_alone:
            assert self.left_over() == []
        if not process.trusted and self.on_disk:  # the program ends with NoGoodSnapshotError
            process.die()
            self.live = None

    def end_save(self, process: Process) -> None:
        if process in self.replaced:
            # Its temporary folder may have been swept away.
            with contextlib.suppress(OSError):
                process.result()
            self.compare(process)
            self.replaced.remove(process)
            with pytest.raises(DirectoryInUseError):
                process.save(self.disk.snapshot_of(1))
            process.die()
            return
        name = process.result()
        self.compare(process)
        assert name in self.contents
        assert name == max(self.on_disk)
        self.promised.add(name)
        process.good.add(name)
        for old in self.on_disk:
            if self.may_delete(process, old, process.good):
                assert FOREIGN in self.content(old), f"{old} is still there"
                assert not self.is_vouched_for(old)

    # Files are damaged.

    @precondition(lambda self: self.on_disk and "begin" not in [each.kind for each in self.busy])
    @rule(
        newest=st.integers(1, 3),
        file=st.sampled_from(FILES),
        kind=st.sampled_from(["flip", "truncate", "delete", "add"]),
        place=st.floats(0, 1, exclude_max=True),
        bit=st.integers(0, 7),
    )
    def damage(self, newest: int, file: str, kind: str, place: float, bit: int) -> None:
        name = sorted(self.on_disk)[-newest:][0]
        content = bytearray(self.content(name).get(file, b""))
        if kind == "add":
            file, content = FOREIGN, bytearray(b"mine")
        path, at = f"/{name}/{file}", int(place * len(content))
        self.were_whole.discard(name)
        if self.files.is_file(path):
            self.files.remove(path)
        if kind == "flip" and content:
            content[at] ^= 1 << bit
        elif kind == "truncate":
            del content[at:]
        if kind != "delete":
            with self.files.create(path) as damaged:
                rest = memoryview(bytes(content))
                while rest:
                    rest = rest[damaged.write(rest) :]
                self.files.sync(damaged)
        self.files.sync_directory(f"/{name}")
        if self.files.list(f"/{name}") == [FOREIGN]:  # so it is no snapshot any more
            self.on_disk.discard(name)
            self.promised &= self.on_disk  # older ones may have been deleted since
        self.compare()

    @precondition(lambda self: self.on_disk and not self.busy and not self.whole())
    @rule()
    def move_away(self) -> None:
        """The user does what the error says."""
        for name in self.on_disk:
            for file in self.content(name):
                self.files.remove(f"/{name}/{file}")
            self.files.remove_directory(f"/{name}")
        self.files.sync_directory("/")
        self.on_disk, self.promised = set(), set()
        self.compare()

    # What holds after each rule.

    @invariant()
    def what_would_be_restored_is_whole_and_the_newest(self) -> None:
        floor = self.newest_whole()
        operations = len(self.files.log)
        self.expect_restored(Store("/", files=self.files).newest, floor)
        assert len(self.files.log) == operations, "reading has changed the disk"

    def teardown(self) -> None:
        for process in [*self.replaced, *([self.live] if self.live else [])]:
            process.die()


@pytest.mark.parametrize(
    ("examples", "steps"),
    [
        pytest.param(15, 30, id="few"),
        pytest.param(3000, 60, id="many", marks=pytest.mark.long),
    ],
)
def test_whatever_happens_the_newest_whole_snapshot_is_restored(
    disk: Any, tmp_path: Path, examples: int, steps: int
) -> None:
    run_machine(lambda: Snapshots(disk, tmp_path), examples, steps)


def test_other_numbers_of_workers_one_after_the_other(disk: Any, tmp_path: Path) -> None:
    """A sequence of the machine above: a save is cut off, and a replaced process goes on saving."""
    machine = Snapshots(disk, tmp_path)
    machine.begin(supervised=True, keep=2, operations=math.inf, workers=3)
    machine.save(step=1, operations=math.inf)
    machine.save(step=2, operations=9)
    machine.replace(operations=math.inf, workers=1)
    machine.save(step=2, operations=math.inf)
    machine.advance(index=1, operations=math.inf)
    machine.what_would_be_restored_is_whole_and_the_newest()
    machine.kill(torn=False)
    machine.begin(supervised=False, keep=2, operations=math.inf, workers=2)
    machine.save(step=3, operations=12)
    machine.kill(torn=True)
    machine.begin(supervised=False, keep=2, operations=math.inf, workers=3)
    machine.what_would_be_restored_is_whole_and_the_newest()
    snapshot, damages = Store("/", files=machine.files).newest()
    assert snapshot is not None
    assert (snapshot.about["num_workers"], damages) == (1, [])
    machine.teardown()
