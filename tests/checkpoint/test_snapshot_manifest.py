"""A manifest knows every change of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from kfit.checkpoint import snapshot_manifest
from kfit.checkpoint.snapshot import Snapshot, to_json
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError, FileEntry, Manifest
from kfit.checkpoint.store import NoGoodSnapshotError, Store


def test_a_manifest_knows_every_change_of_itself() -> None:
    kept = Manifest({"step": 3, "loss": float("nan")}, {"state.json": FileEntry(4, "0" * 64)})
    text = snapshot_manifest.dump(kept)
    assert snapshot_manifest.parse(text).files == kept.files
    assert snapshot_manifest.parse(text).about["step"] == 3
    for index in range(len(text)):
        for bit in range(8):
            changed = bytearray(text)
            changed[index] ^= 1 << bit
            try:
                found = snapshot_manifest.parse(bytes(changed))
            except DamagedSnapshotError:
                continue
            assert found.files == kept.files
            assert found.about["step"] == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "SHA-256"),
        (b"{}", "SHA-256"),
    ],
)
def test_what_is_no_manifest(text: Any, reason: Any) -> None:
    with pytest.raises(DamagedSnapshotError, match=reason):
        snapshot_manifest.parse(text)


ENTRY = {"size": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "changed",
    [
        *({"about": wrong} for wrong in ("text", [["a", 1]], [""], None, 3)),
        *({"files": wrong} for wrong in ("text", ["state.json"], None, 3)),
        *({"files": {"a": wrong}} for wrong in (None, [], {}, "text", {**ENTRY, "more": 1})),
        *({"files": {"a": {**ENTRY, "size": wrong}}} for wrong in (-1, True, 1.0, None, "1")),
        {"files": {"a": {**ENTRY, "sha256": 1}}},
    ],
)
def test_another_form_with_a_new_checksum_is_damaged(changed: Any) -> None:
    content = json.loads(snapshot_manifest.dump(Manifest({}, {})))
    del content["sha256"]
    content |= changed
    checksum = snapshot_manifest._digest(content)
    with pytest.raises(DamagedSnapshotError, match=r"manifest\.json has no valid "):
        snapshot_manifest.parse(to_json({**content, "sha256": checksum}))


def test_another_format_is_named() -> None:
    text = snapshot_manifest.dump(Manifest({}, {}))
    other = json.loads(text)
    del other["sha256"]
    other["format"] = 99
    other["sha256"] = snapshot_manifest._digest(other)
    with pytest.raises(DamagedSnapshotError, match="format 99; this kfit reads 1"):
        snapshot_manifest.parse(to_json(other))


def test_a_description_that_is_no_dict_and_one_that_is_too_deep() -> None:
    for about in ("ab", [["step", 1]], 3):
        content = json.loads(snapshot_manifest.dump(Manifest({}, {})))
        content |= {"about": about}
        del content["sha256"]
        text = to_json({**content, "sha256": snapshot_manifest._digest(content)})
        with pytest.raises(DamagedSnapshotError, match="has no valid `about`"):
            snapshot_manifest.parse(text)
    for depth in range(100, 3000, 50):  # Python parses some that it cannot write
        deep = b'{"about": ' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(DamagedSnapshotError, match=r"too deep|no JSON|SHA-256"):
            snapshot_manifest.parse(deep)


def test_half_a_character_comes_back(tmp_path: Path) -> None:
    """JSON may hold what no encoding has."""
    about, state = {"step": 1, "model": "\ud800"}, {"\ud800": ["a\udfff"]}
    name = Store(str(tmp_path), key=KEY).save(Snapshot(about, state))
    found = Store(str(tmp_path), key=KEY).read(name)
    assert (found.about["model"], found.state) == ("\ud800", state)


# Snapshots signed with KFIT_BACKUP_KEY.

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
    for found in (None, 3, [], "ü", "\ud800"):
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
    monkeypatch.delenv(snapshot_manifest.KEY_VARIABLE, raising=False)
    assert Store(str(tmp_path)).key == b""
    monkeypatch.setenv(snapshot_manifest.KEY_VARIABLE, KEY.decode())
    assert Store(str(tmp_path)).key == KEY
    assert KEY.decode() not in repr(Store(str(tmp_path)))
    monkeypatch.setenv(snapshot_manifest.KEY_VARIABLE, "short")
    with pytest.raises(ValueError, match="`KFIT_BACKUP_KEY` has 5 characters"):
        Store(str(tmp_path))
