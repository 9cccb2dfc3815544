"""A store is stopped at every operation, loses power, and has its files damaged."""

import errno
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from kfit.checkpoint import snapshot_manifest
from kfit.checkpoint.files import Files
from kfit.checkpoint.schema import LARGEST, at_most
from kfit.checkpoint.snapshot import Snapshot, to_json
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError, FileEntry
from kfit.checkpoint.store import NoGoodSnapshotError, SnapshotName, Store
from tests.mounts import why_not, with_disk
from tests.sweeps import only

FULL_DISK = Path(__file__).parent / "programs" / "full_disk.py"
SAVES = 35


@pytest.fixture(scope="module")
def history(disk: Any) -> Any:
    """A log of operations, and for each how far it was promised, and may have, come."""
    files = disk.Files()
    store = Store("/", files=files)
    promised, begun = [], []

    def until_now(step: int, at_most: int) -> None:
        missing = len(files.log) - len(promised)
        promised.extend([step] * missing)
        begun.extend([at_most] * missing)

    step = 0
    for step in range(1, SAVES + 1):
        if step % 6 == 0:  # the program is started again
            store = Store("/", files=files)
            store.sweep()
            store.probe()
            store.newest()
        store.save(disk.snapshot_of(step))
        # Until it returns, the step before it is what was promised.
        until_now(step - 1, step)
    cleared_from = len(files.log)
    store.clear()
    until_now(0, SAVES)
    return files.log, promised, begun, cleared_from


def restored(disk: Any, state: Any) -> tuple[int, list[str]]:
    """The step that a store finds on a disk, 0 if there is no snapshot, and the damages."""
    snapshot, damages = Store("/", files=disk.Files(state)).newest()
    return (0 if snapshot is None else disk.step_of(snapshot)), damages


def check(disk: Any, history: Any, count: int, **lost: Any) -> None:
    """The old snapshot or the new one is found; while they are deleted, the newest or none."""
    log, promised, begun, cleared_from = history
    found, damages = restored(disk, disk.state_after(log, count, **lost))
    assert not damages
    last = min(count, len(log) - 1)
    assert promised[last] <= found <= begun[last], f"operation {count} of {len(log)}, {lost}"
    if last >= cleared_from:
        assert found in (0, SAVES)


@pytest.mark.parametrize("every", only([7], [1, 7]))
def test_a_process_killed_at_any_operation_leaves_the_old_or_the_new(
    disk: Any, history: Any, every: int
) -> None:
    log = history[0]
    points = 0
    for count, torn in itertools.product(range(0, len(log) + 1, every), (False, True)):
        if not torn or (count and isinstance(log[count - 1], disk.Write)):
            check(disk, history, count, torn=torn)
            points += 1
    print(f"{points} points at which a process was killed")
    assert points >= 1000 // every


@pytest.mark.long
def test_a_loss_of_power_leaves_the_old_or_the_new(disk: Any, history: Any) -> None:
    log = history[0]
    draw, states = random.Random(1), 0
    for count in range(len(log) + 1):
        loose = disk.not_durable(log, count)
        losses = [set(loose), *({i} for i in draw.sample(loose, min(3, len(loose))))]
        losses += [set(draw.sample(loose, draw.randint(0, len(loose)))) for _ in range(3)]
        for lost in losses:
            check(disk, history, count, lost=lost)
            states += 1
    print(f"{states} states after a loss of power")
    assert states >= 5000


def test_without_a_sync_a_loss_of_power_is_noticed(disk: Any) -> None:
    """The model of the disk can tell: a store that syncs nothing does not pass."""

    class Hasty(disk.Files):  # type: ignore[misc, name-defined]
        def sync(self, file: Any) -> None:
            pass

    files = Hasty()
    store = Store("/", files=files)
    for step in (1, 2, 3):
        store.save(disk.snapshot_of(step))
    with pytest.raises(NoGoodSnapshotError):
        restored(disk, disk.state_after(files.log, len(files.log), disk_writes(disk, files.log)))


def disk_writes(disk: Any, log: Any) -> set[int]:
    """The writes that no sync has made durable."""
    return {i for i in disk.not_durable(log, len(log)) if isinstance(log[i], disk.Write)}


@pytest.fixture(scope="module")
def two(disk: Any) -> Any:
    """A disk with the snapshots of step 1 and step 2: their inodes and contents by path."""
    files = disk.Files()
    store = Store("/", files=files)
    names = [store.save(disk.snapshot_of(step)) for step in (1, 2)]
    return files.state, names


def damaged(disk: Any, two: Any, damage: Any, names: Any) -> Any:
    """The disk with `damage` done to one file of each snapshot in `names`."""
    state = disk.State(
        {inode: dict(entries) for inode, entries in two[0].directories.items()},
        {inode: bytearray(content) for inode, content in two[0].files.items()},
    )
    for name in names:
        damage(state, state.directories[state.directories[0][str(name)]])
    return state


def flipping(draw: random.Random) -> Any:
    def damage(state: Any, entries: Any) -> None:
        content = state.files[entries[draw.choice(sorted(entries))]]
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)

    return damage


def truncating(draw: random.Random) -> Any:
    def damage(state: Any, entries: Any) -> None:
        content = state.files[entries[draw.choice(sorted(entries))]]
        del content[draw.randrange(len(content)) :]

    return damage


def check_damages(disk: Any, two: Any, flips: int, truncations: int) -> None:
    draw = random.Random(2)
    for damage in [flipping(draw)] * flips + [truncating(draw)] * truncations:
        found, damages = restored(disk, damaged(disk, two, damage, two[1][1:]))
        # A bit of the manifest's blanks may be one that says nothing; then nothing is lost.
        assert (found, len(damages)) in ((1, 1), (2, 0))


def test_a_damaged_snapshot_is_noticed_and_the_one_before_is_taken(disk: Any, two: Any) -> None:
    check_damages(disk, two, flips=150, truncations=30)


@pytest.mark.long
def test_damages_in_number(disk: Any, two: Any) -> None:
    check_damages(disk, two, flips=10_000, truncations=1_000)


def test_when_all_are_damaged_training_does_not_begin_anew(disk: Any, two: Any) -> None:
    draw = random.Random(3)
    for damage in [truncating(draw)] * 100:
        with pytest.raises(NoGoodSnapshotError, match="2 snapshots, and all are damaged"):
            restored(disk, damaged(disk, two, damage, two[1]))


def _remove(name: str) -> Any:
    def damage(state: Any, entries: Any) -> None:
        del entries[name]

    return damage


def _add(state: Any, entries: Any) -> None:
    entries["extra.h5"] = entries["arrays.h5"]


def _swap(state: Any, entries: Any) -> None:
    entries["arrays.h5"], entries["state.json"] = entries["state.json"], entries["arrays.h5"]


def _empty(state: Any, entries: Any) -> None:
    state.files[entries["manifest.json"]] = bytearray()


def _lists(path: str, *, instead: bool = False) -> Any:
    """Lists another path, such as that of a file outside whose content is that of its own."""

    def damage(state: Any, entries: Any) -> None:
        state.directories[0]["secret"] = entries["state.json"]
        found = snapshot_manifest.parse(bytes(state.files[entries["manifest.json"]]))
        files = {**found.files, path: found.files["state.json"]}
        if instead:
            del files["state.json"]
        changed = snapshot_manifest.dump(found._replace(files=files))
        state.files[entries["manifest.json"]][:] = changed

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(_remove(name) for name in ("manifest.json", "state.json", "arrays.h5")),
        _add,
        _swap,
        _empty,
        _lists("../../secret"),
        _lists("/secret"),
        _lists("/secret", instead=True),
        _lists("absent.json"),
    ],
)
def test_a_snapshot_that_is_not_as_listed_is_refused(disk: Any, two: Any, damage: Any) -> None:
    found, damages = restored(disk, damaged(disk, two, damage, two[1][1:]))
    assert found == 1
    assert len(damages) == 1
    assert str(two[1][1]) in damages[0]


def test_an_index_of_another_program_points_nowhere(disk: Any, tmp_path: Path) -> None:
    """TensorFlow's file `checkpoint` names a newest one, perhaps elsewhere; kfit has none."""
    elsewhere, backup = tmp_path / "elsewhere", tmp_path / "backup"
    elsewhere.mkdir()
    backup.mkdir()
    other = Store(str(elsewhere)).save(disk.snapshot_of(9))
    Store(str(backup)).save(disk.snapshot_of(3))
    for content in ("", "\0" * 40, f'model_checkpoint_path: "{elsewhere / str(other)}"\n'):
        (backup / "checkpoint").write_text(content)
        snapshot, damages = Store(str(backup)).newest()
        assert (disk.step_of(snapshot), damages) == (3, [])
        assert (backup / "checkpoint").read_text() == content


@pytest.mark.parametrize(
    "error",
    only(
        [errno.ENOSPC, errno.EIO],
        [
            *(errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT),
            *(errno.EACCES, errno.EXDEV, errno.EINTR),
        ],
    ),
)
def test_a_write_that_fails_leaves_the_older_snapshots(disk: Any, error: int) -> None:
    """At each operation of a save in turn; a later save works."""

    class Failing(disk.Files):  # type: ignore[misc, name-defined]
        left = 1 << 30

        def _do(self, operation: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise OSError(error, os.strerror(error))
            super()._do(operation)

    failed = hidden = 0
    for at in range(1, 100):
        files = Failing()
        store = Store("/", files=files)
        store.save(disk.snapshot_of(1))
        store.save(disk.snapshot_of(2))
        files.left = at
        try:
            store.save(disk.snapshot_of(3))
        except OSError as raised:
            failed += raised.errno == error
        else:
            if files.left > 0:
                assert failed == at - 1 - hidden
                break
            hidden += 1
            # What could not be deleted is out of sight, and is deleted the next time.
            assert restored(disk, files.state) == (3, [])
            assert any(name.startswith("kfit-trash-") for name in files.list("/"))
            continue
        assert restored(disk, files.state)[0] in (2, 3)
        assert not [name for name in files.list("/") if name.startswith("kfit-tmp-")]
        store.save(disk.snapshot_of(4))
        assert restored(disk, files.state) == (4, [])
    assert failed > 10


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """And a folder for temporary files that is on another disk: a save puts nothing there."""
    if reason := why_not():
        pytest.skip(reason)
    folder, temporary = tmp_path / "disk", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        with_disk(folder, "size=4m", [sys.executable, str(FULL_DISK), str(folder)]),
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.removeprefix("RESULT "))
    assert told["error"] == "ENOSPC"
    assert sorted(SnapshotName.parse(name).step for name in told["names"]) == [1, 2]
    assert told["after"] == [2, [2.0], []]
    assert told["later"] == [4, [4.0], []]
    assert os.listdir(temporary) == []


def test_signals_that_interrupt_a_save_change_nothing(disk: Any, tmp_path: Path) -> None:
    """Each interrupts a system call of the save, which the system then reports as EINTR."""
    came = []
    before = signal.signal(signal.SIGALRM, lambda *_: came.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        Store(str(tmp_path)).save(disk.snapshot_of(3, size=10_000_000))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert len(came) > 5
    assert disk.step_of(Store(str(tmp_path)).newest()[0]) == 3


def test_what_could_not_be_read_again_is_not_saved(disk: Any) -> None:
    files = disk.Files()
    store = Store("/", files=files, check=lambda _: None)
    first = store.save(disk.snapshot_of(1))

    def refuse(snapshot: Snapshot) -> None:
        raise TypeError(f"step {snapshot.about['step']} is none")

    store.check_own = refuse
    about = {"data": "x" * snapshot_manifest.LARGEST}
    too_large = Snapshot({**disk.snapshot_of(2).about, **about}, {})
    for snapshot, says in (
        (disk.snapshot_of(2), "could not be read again.*step 2 is none"),
        (too_large, "could not be read again.*more than 16777216 bytes"),
    ):
        with pytest.raises(ValueError, match=says):
            store.save(snapshot)
        assert files.list("/") == [str(first)]


def test_names_rank_by_lock_count_then_by_order(disk: Any) -> None:
    """A task from before a restart cannot put its snapshot in front, nor delete a newer one."""
    files = disk.Files()
    old = Store("/", files=files)
    old.save(disk.snapshot_of(10))
    new = Store("/", files=files)
    new.save(disk.snapshot_of(11))
    for step in (500, 501, 502, 503):
        old.save(disk.snapshot_of(step))
    assert restored(disk, files.state) == (11, [])
    # A step may come again, after going back to an earlier state.
    new.save(disk.snapshot_of(5))
    assert restored(disk, files.state) == (5, [])
    assert SnapshotName.parse("g0001-00000012-step-7") == SnapshotName(1, 12, 7)
    assert SnapshotName.parse("step-7") is None
    for other in ("g00001-00000012-step-7", "g0001-00000012-step-07", "g0001-00000012-step-\u0667"):
        assert SnapshotName.parse(other) is None


def test_numbers_of_a_stranger_make_no_snapshot_unreadable(disk: Any) -> None:
    files = disk.Files()
    old = Store("/", files=files, check=check_lock_count)
    good = [old.save(disk.snapshot_of(step)) for step in (1, 2)]
    # One has the greatest numbers of all; the others are beyond what a name can have.
    names = [SnapshotName(LARGEST, LARGEST, 1), SnapshotName(LARGEST, 1, 1)]
    others = [
        SnapshotName(LARGEST + 1, 1, 1),
        SnapshotName(10**20, 1, 1),
        SnapshotName(1, 10**25, 1),
    ]
    for name in (*names, *others):
        files.make_directory(f"/{name}")
        assert (SnapshotName.parse(str(name)) is None) == (name in others)
    assert SnapshotName.parse(f"g{'1' * 5000}-00000001-step-1") is None
    for step in range(3, 6):
        store = Store("/", files=files, check=check_lock_count)
        good.append(store.save(disk.snapshot_of(step)))
        snapshot, damages = Store("/", files=files, check=check_lock_count).newest()
        assert (snapshot.about["step"], len(damages)) == (step, len(names))
    assert set(good[-2:]) <= set(store.names())
    assert good == sorted(good)


def check_lock_count(snapshot: Snapshot) -> None:
    at_most(LARGEST)(snapshot.about["lock_count"], "the lock count")


def test_a_copy_under_the_name_of_a_later_start_is_damaged(disk: Any, tmp_path: Path) -> None:
    store = Store(str(tmp_path), key=b"k" * 32)
    name = store.save(disk.snapshot_of(1))
    copy = SnapshotName(9999, 1, 1)
    shutil.copytree(tmp_path / str(name), tmp_path / str(copy))
    assert store.about(name) is not None
    assert store.about(copy) is None
    with pytest.raises(DamagedSnapshotError, match=r"is of lock count 1$"):
        store.read(copy)


def test_no_message_is_as_long_as_a_stranger_wants(disk: Any, tmp_path: Path) -> None:
    store, entry = Store(str(tmp_path)), FileEntry(0, "")
    contents: list[dict[str, Any]] = [
        {"about": {"step": 1}, "files": dict.fromkeys(("x" * 10**6, "y"), entry._asdict())},
        {"about": {"step": 1}, "files": {"x" * 10**6: 1}},
        {"format": "x" * 10**6},
        {"about": {"step": "x" * 10**6}, "files": {}},
    ]
    for serial, content in enumerate(contents, 1):
        folder = tmp_path / str(SnapshotName(1, serial, 1))
        folder.mkdir()
        listed = {"format": snapshot_manifest.FORMAT, **content}
        digest = hashlib.sha256(to_json(listed)).hexdigest()
        (folder / "manifest.json").write_bytes(to_json({**listed, "sha256": digest}))
        for number in range(100):
            (folder / f"{number}{'z' * 200}").touch()
    for serial in range(100, 300):
        (tmp_path / str(SnapshotName(1, serial, 1))).mkdir()
    with pytest.raises(NoGoodSnapshotError, match=r"holds 204 snapshots.* and 199 more") as caught:
        store.newest()
    assert len(str(caught.value)) < 6000
    for name in store.names()[:4]:
        with pytest.raises(DamagedSnapshotError) as damage:
            store.read(name)
        assert len(str(damage.value)) <= 1000
    with pytest.warns(UserWarning, match=r"it contains '0z+, .* and 95 more") as told:
        store.clear()
    assert max(len(str(each.message)) for each in told) < 1000


def test_the_newest_good_ones_are_kept(disk: Any) -> None:
    files = disk.Files()
    store = Store("/", 3, files)
    for step in range(1, 8):
        store.save(disk.snapshot_of(step))
    assert [name.step for name in store.names()] == [5, 6, 7]
    # What an earlier run left is not deleted before there are enough good ones of this.
    again = Store("/", 3, files)
    again.newest()
    again.save(disk.snapshot_of(8))
    assert [name.step for name in again.names()] == [5, 6, 7, 8]
    again.save(disk.snapshot_of(9))
    assert [name.step for name in again.names()] == [7, 8, 9]


def test_a_real_directory(disk: Any, tmp_path: Any) -> None:
    store = Store(str(tmp_path))
    store.probe()
    name = store.save(disk.snapshot_of(3, size=3_000_000))
    assert os.stat(tmp_path / str(name)).st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / str(name) / "arrays.h5").st_mode & 0o777 == 0o600
    assert disk.step_of(store.newest()[0]) == 3
    left = tmp_path / f"kfit-tmp-{uuid.uuid4().hex}"
    left.mkdir()
    (left / "arrays.h5").write_bytes(b"half")
    store.sweep()
    assert os.listdir(tmp_path) == [str(name)]
    store.clear()
    assert os.listdir(tmp_path) == []


def test_what_is_parsed_is_what_was_verified(disk: Any, tmp_path: Any) -> None:
    """A file that a hard link of a stranger changes as soon as it was read, and at each opening."""

    class Changing(Files):
        def open(self, path: str) -> Any:
            file = super().open(path)
            content = file.read()
            if path.endswith(("state.json", "arrays.h5")):
                other = theirs / os.path.basename(path)
                (links / os.path.basename(path)).write_bytes(other.read_bytes())
                changed.append(os.path.basename(path))
            return io.BytesIO(content)

    changed: list[str] = []
    ours, links = tmp_path / "ours", tmp_path / "links"
    ours.mkdir()
    (tmp_path / "theirs").mkdir()
    name = Store(str(ours)).save(disk.snapshot_of(3))
    theirs = tmp_path / "theirs" / str(Store(str(tmp_path / "theirs")).save(disk.snapshot_of(4)))
    shutil.copytree(ours / str(name), links, copy_function=os.link)
    assert disk.step_of(Store(str(ours), files=Changing()).read(name)) == 3
    assert sorted(changed) == ["arrays.h5", "state.json"]
    with pytest.raises(DamagedSnapshotError, match="SHA-256"):
        Store(str(ours)).read(name)


def test_a_backup_by_hard_links_is_read(disk: Any, tmp_path: Any) -> None:
    """What `cp -al` makes."""
    (tmp_path / "one").mkdir()
    name = Store(str(tmp_path / "one")).save(disk.snapshot_of(3))
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=os.link)
    for folder in ("one", "two"):
        assert disk.step_of(Store(str(tmp_path / folder)).read(name)) == 3


def test_links_are_not_followed(disk: Any, tmp_path: Any) -> None:
    store = Store(str(tmp_path / "backup"), files=_made(tmp_path / "backup"))
    name = store.save(disk.snapshot_of(3))
    path = tmp_path / "backup" / str(name) / "arrays.h5"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoGoodSnapshotError):
        store.newest()
    other = name._replace(serial=9)
    (tmp_path / "backup" / str(other)).symlink_to(path.parent)
    with pytest.raises(DamagedSnapshotError, match="no directory"):
        store.verify(other)


def _made(path: Any) -> Files:
    path.mkdir()
    return Files()


def test_two_snapshots_at_least(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="`keep` must be at least 2"):
        Store(str(tmp_path), 1)


def _files_of(folder: Any) -> dict[str, Any]:
    """Everything in a folder and below: the content of files, where links lead."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.readlink(path)
        else:
            found[str(path.relative_to(folder))] = path.is_file() and path.read_bytes()
    return found


def test_what_others_keep_beside_snapshots_stays(disk: Any, tmp_path: Any) -> None:
    """Folders that begin as kfit's do, and links with kfit's very names to what is elsewhere."""
    outside, backup = tmp_path / "outside", tmp_path / "backup"
    left = f"kfit-tmp-{uuid.uuid4().hex}"
    for folder in (outside, backup / "tmp-results", backup / "trash-can", backup / "g0001-notes"):
        folder.mkdir(parents=True)
        (folder / "thesis.tex").write_text("mine")
    (backup / "kfit-tmp-1").mkdir()
    (backup / "kfit-tmp-1" / "arrays.h5").write_text("mine")
    (backup / left).symlink_to(outside)
    (backup / "g0007-00000007-step-7").symlink_to(outside)
    (backup / "g0008-00000008-step-8").mkdir()
    (backup / "g0008-00000008-step-8" / "notes.txt").write_text("mine")
    before = _files_of(tmp_path)
    store = Store(str(backup))
    store.sweep()
    store.probe()
    for step in range(1, 6):
        store.save(disk.snapshot_of(step))
    assert [name.lock_count for name in store.names()] == [7, 9, 9]
    store.clear()
    assert _files_of(tmp_path) == before


def test_what_others_put_into_a_snapshot_stays_where_it_is(disk: Any, tmp_path: Any) -> None:
    store = Store(str(tmp_path))
    names = [store.save(disk.snapshot_of(step)) for step in (1, 2)]
    notes = [tmp_path / str(name) / "notes.txt" for name in names]
    left = tmp_path / f"kfit-trash-{uuid.uuid4().hex}"
    left.mkdir()
    for path in (*notes, left / "arrays.h5", left / "notes.txt"):
        path.write_text("mine")
    with pytest.warns(UserWarning, match="contains 'notes.txt', which kfit did not write"):
        store.save(disk.snapshot_of(3))
    assert os.listdir(notes[0].parent) == ["notes.txt"]
    with pytest.warns(UserWarning, match=f"{left.name} is left there"):
        store.sweep()
    with pytest.warns(UserWarning, match=f"{names[1]} is left there"):
        store.clear()
    left_there = (*notes, left / "arrays.h5", left / "notes.txt")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(left_there)
    # What is left of them is no snapshot, damaged or not: training begins anew.
    assert Store(str(tmp_path)).newest() == (None, [])


def test_a_snapshot_whose_folder_was_exchanged_for_a_link(disk: Any, tmp_path: Any) -> None:
    """Between two looks at it; the file of the same name behind the link stays."""
    files = _made(tmp_path / "backup")
    store = Store(str(tmp_path / "backup"), files=files)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "arrays.h5").write_text("mine")
    (tmp_path / "backup" / "folder").symlink_to(tmp_path / "outside")
    path = str(tmp_path / "backup" / "folder")
    for act in (
        lambda: files.remove(os.path.join(path, "arrays.h5")),
        lambda: files.list(path),
        lambda: files.create(os.path.join(path, "state.json")),
        lambda: files.rename(os.path.join(path, "arrays.h5"), str(tmp_path / "backup" / "x")),
        lambda: files.remove_directory(path),
    ):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            act()
    assert os.listdir(tmp_path / "outside") == ["arrays.h5"]
    assert store.names() == []


def test_a_backup_directory_behind_a_link_of_the_users_own(disk: Any, tmp_path: Any) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "backup").symlink_to(tmp_path / "scratch")
    store = Store(str(tmp_path / "backup"))
    name = store.save(disk.snapshot_of(1))
    assert os.listdir(tmp_path / "scratch") == [str(name)]
    assert disk.step_of(Store(str(tmp_path / "backup")).newest()[0]) == 1


def test_a_folder_with_a_snapshots_name_and_files_of_others(disk: Any, tmp_path: Any) -> None:
    """Nothing vouches for its manifest.json, so all of it stays."""
    folder = tmp_path / "g0001-00000001-step-1"
    folder.mkdir()
    for name in ("manifest.json", "thesis.tex"):
        (folder / name).write_text("mine")
    store = Store(str(tmp_path))
    store.save(disk.snapshot_of(2))
    with pytest.warns(UserWarning, match=f"{folder.name} is left there"):
        store.save(disk.snapshot_of(3))
    with pytest.warns(UserWarning, match=f"{folder.name} is left there"):
        store.clear()
    assert _files_of(tmp_path).keys() == {
        folder.name,
        f"{folder.name}/manifest.json",
        f"{folder.name}/thesis.tex",
    }


def test_a_large_file_is_synced_in_parts(disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for part in (1 << 30, 1 << 25):
        files = disk.Files()
        syncs: list[Any] = []

        def sync(file: Any, files: Any = files, syncs: list[Any] = syncs) -> None:
            syncs.append(file)
            type(files).sync(files, file)

        monkeypatch.setattr(files, "sync", sync)
        monkeypatch.setattr("kfit.checkpoint.store._SYNCED", part)
        Store("/", files=files).save(disk.snapshot_of(1, size=1 << 25))  # of 128 MB
        counts.append(len(syncs))
    assert counts[1] - counts[0] in (3, 4, 5)
