"""Snapshots signed with KFIT_BACKUP_KEY."""

import json
from pathlib import Path
from typing import Any

import pytest

from kfit.checkpoint import signing, snapshot_manifest
from kfit.checkpoint.snapshot import Snapshot, to_json
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.store import NoGoodSnapshotError, Store

KEY = b"a key of this test alone"


def save(folder: Path, step: int, key: bytes) -> Any:
    return Store(str(folder), key=key).save(Snapshot({"step": step}, {"step": step}))


def test_a_snapshot_of_a_stranger_is_refused_and_the_one_before_is_taken(tmp_path: Path) -> None:
    save(tmp_path, 1, KEY)
    for key in (b"", b"the key of a stranger"):
        forged = save(tmp_path, 2, key)
        found, damages = Store(str(tmp_path), key=KEY).newest()
        assert found is not None
        assert found.state == {"step": 1}
        assert (
            "is not signed with the key of the environment variable KFIT_BACKUP_KEY" in damages[-1]
        )
        with pytest.raises(DamagedSnapshotError, match="not signed"):
            Store(str(tmp_path), key=KEY).read(forged)


def test_a_changed_manifest_with_a_new_checksum_is_refused(tmp_path: Path) -> None:
    name = save(tmp_path, 1, KEY)
    path = tmp_path / str(name) / snapshot_manifest.NAME
    content = json.loads(path.read_bytes())
    content["about"]["more"] = 1
    del content["sha256"]
    signed = content.pop("signature")
    checksum = snapshot_manifest._digest(content)
    path.write_bytes(to_json({**content, "signature": signed, "sha256": checksum}))
    assert Store(str(tmp_path), key=b"").read(name).state == {"step": 1}
    with pytest.raises(DamagedSnapshotError, match="not signed"):
        Store(str(tmp_path), key=KEY).read(name)
    for found in (None, 3, [], "ü"):
        path.write_bytes(to_json({**content, "signature": found, "sha256": checksum}))
        with pytest.raises(DamagedSnapshotError, match="not signed"):
            Store(str(tmp_path), key=KEY).read(name)


def test_without_the_key_a_signed_snapshot_is_read(tmp_path: Path) -> None:
    name = save(tmp_path, 1, KEY)
    assert Store(str(tmp_path), key=b"").read(name).state == {"step": 1}


def test_snapshots_from_before_the_key_do_not_begin_anew(tmp_path: Path) -> None:
    save(tmp_path, 1, b"")
    with pytest.raises(NoGoodSnapshotError, match="not signed"):
        Store(str(tmp_path), key=KEY).newest()


def test_the_key_is_that_of_the_environment(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv(signing.VARIABLE, raising=False)
    assert Store(str(tmp_path)).key == b""
    monkeypatch.setenv(signing.VARIABLE, KEY.decode())
    assert Store(str(tmp_path)).key == KEY
    assert KEY.decode() not in repr(Store(str(tmp_path)))
    monkeypatch.setenv(signing.VARIABLE, "short")
    with pytest.raises(ValueError, match="`KFIT_BACKUP_KEY` has 5 characters"):
        Store(str(tmp_path))
