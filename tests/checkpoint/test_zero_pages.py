"""What a file with holes holds is copied, and the holes take no memory."""

import mmap
import random
from pathlib import Path

import pytest

from kfit.checkpoint import snapshot_manifest, store
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError, FileEntry, Manifest
from kfit.checkpoint.store import SnapshotName, Store
from kfit.checkpoint.zero_pages import copy_without_zeros

SIZE = 1 << 28


@pytest.mark.parametrize("start", [0, 1, 5000])
def test_the_bytes_are_those_of_the_source(start: int) -> None:
    draw = random.Random(1)
    parts = [bytes(draw.choice((1, 4095, 4096, 9000))) for _ in range(20)]
    source = b"".join(part if draw.random() < 0.5 else draw.randbytes(len(part)) for part in parts)
    target = mmap.mmap(-1, start + len(source), mmap.MAP_PRIVATE)
    copy_without_zeros(source, target, start)
    assert target[:] == bytes(start) + source


def resident() -> int:
    """The bytes of memory that this process takes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_file_with_holes_takes_no_memory_before_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, entry = SnapshotName(1, 1, 1), FileEntry(SIZE, "0" * 64)
    folder = tmp_path / str(name)
    folder.mkdir()
    with (folder / "arrays.h5").open("wb") as file:
        file.truncate(SIZE)
    (folder / "state.json").write_bytes(b"{}")
    found = {"arrays.h5": entry, "state.json": FileEntry(2, "0" * 64)}
    (folder / "manifest.json").write_bytes(snapshot_manifest.dump(Manifest({"step": 1}, found)))
    taken = []

    def hashed(*arguments: object) -> str:
        before = resident()
        digest = own(*arguments)
        taken.append(resident() - before)
        return "0" * 64 if len(taken) == 1 else digest

    own = store._hashed
    monkeypatch.setattr(store, "_hashed", hashed)
    with pytest.raises(DamagedSnapshotError, match=r"arrays\.h5 does not have the SHA-256"):
        Store(str(tmp_path), key=b"").read(name)
    assert len(taken) == 2
    assert max(taken) < SIZE / 4
