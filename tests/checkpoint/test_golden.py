"""Snapshots written once and for all: today's code reads them, or refuses them by name."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from kfit.checkpoint import snapshot_manifest
from kfit.checkpoint.snapshot import to_json
from kfit.checkpoint.snapshot_manifest import FORMAT
from kfit.checkpoint.store import NoGoodSnapshotError, Store
from kfit.checkpoint.training_schema import check_training
from tests.checkpoint.golden import contents

NAME = "g0001-00000001-step-3"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / NAME).iterdir()}


def assert_same(one: Any, other: Any, place: str = "state") -> None:
    """Asserts that two trees are equal, with the types of their leaves and to the last bit."""
    if isinstance(other, (np.ndarray, np.generic)):
        other = np.asarray(other)
        assert isinstance(one, np.ndarray), place
        assert (one.dtype, one.shape) == (other.dtype, other.shape), place
        assert one.tobytes() == other.tobytes(), place
        return
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            assert_same(one[key], other[key], f"{place}[{key!r}]")
    elif isinstance(one, list):
        assert len(one) == len(other), place
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{place}[{index}]")
    elif isinstance(one, float) and math.isnan(other):
        assert math.isnan(one), place
    else:
        assert one == other, place


def test_the_present_format_is_read_with_every_value() -> None:
    """Raise `FORMAT` if this fails: kfit no longer reads what it has written."""
    folder = contents.FOLDER / f"format-{FORMAT}"
    assert folder.is_dir(), "write it by `python -m tests.checkpoint.golden.contents`"
    before = files_of(folder)
    found, damages = Store(str(folder), check=check_training, key=b"").newest()
    assert damages == []
    assert found is not None
    assert_same(found.about, {**contents.about(), "lock_count": 1}, "about")
    assert_same(found.state, contents.state())
    assert files_of(folder) == before


def test_the_present_format_is_still_written(tmp_path: Path) -> None:
    """What an earlier kfit of this format reads; where h5py puts the arrays may change."""
    contents.write(tmp_path / "again")
    golden = files_of(contents.FOLDER / f"format-{FORMAT}")
    again = files_of(tmp_path / "again")
    assert again["state.json"] == golden["state.json"]
    manifests = [json.loads(files["manifest.json"]) for files in (again, golden)]
    for manifest in manifests:
        del manifest["sha256"], manifest["files"]["arrays.h5"]
    assert manifests[0] == manifests[1]
    golden_arrays = arrays_of(contents.FOLDER / f"format-{FORMAT}")
    assert arrays_of(tmp_path / "again") == golden_arrays
    assert len(golden_arrays) > len(contents.DTYPES)


def arrays_of(folder: Path) -> dict[str, Any]:
    """What an HDF5 file holds: the form, the bytes and the attributes of each data set."""
    with h5py.File(folder / NAME / "arrays.h5", "r") as file:
        return {
            name: (each.shape, each.dtype, np.asarray(each[()]).tobytes(), dict(each.attrs))
            for name, each in file.items()
        }


@pytest.mark.parametrize("number", sorted({1, FORMAT}))
def test_golden_snapshots_are_never_changed(number: int) -> None:
    """The digest of each format that there ever was; add that of a new one."""
    digest = hashlib.sha256()
    for name, content in sorted(files_of(contents.FOLDER / f"format-{number}").items()):
        digest.update(name.encode() + hashlib.sha256(content).digest())
    assert digest.hexdigest() == {
        1: "d709d63cb1ab30862d88d35acc956b87373688b026e29ee26ca3bbd5fb76985c",
    }.get(number)


def earlier() -> list[Path]:
    found = sorted(contents.FOLDER.glob("format-*"))
    return [folder for folder in found if folder.name != f"format-{FORMAT}"]


def test_earlier_formats_are_refused_by_name() -> None:
    for folder in earlier():
        number = folder.name.removeprefix("format-")
        with pytest.raises(NoGoodSnapshotError, match=f"format {number}; this kfit reads {FORMAT}"):
            Store(str(folder), key=b"").newest()


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1, str(FORMAT), None])
def test_a_golden_snapshot_of_another_format_is_refused_by_name(
    tmp_path: Path, number: Any
) -> None:
    """All else agrees, the checksums among it."""
    (tmp_path / NAME).mkdir()
    for name, content in files_of(contents.FOLDER / f"format-{FORMAT}").items():
        (tmp_path / NAME / name).write_bytes(content)
    path = tmp_path / NAME / snapshot_manifest.NAME
    manifest = json.loads(path.read_bytes())
    del manifest["sha256"]
    manifest["format"] = number
    checksum = hashlib.sha256(to_json(manifest)).hexdigest()
    path.write_bytes(to_json({**manifest, "sha256": checksum}))
    says = f"{NAME}: {snapshot_manifest.NAME} has format {number!r}; this kfit reads {FORMAT}"
    with pytest.raises(NoGoodSnapshotError) as refused:
        Store(str(tmp_path), key=b"").newest()
    assert says in str(refused.value)
    assert "move the directory away" in str(refused.value)
