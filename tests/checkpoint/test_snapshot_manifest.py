"""A manifest knows every change of itself."""

import json
from typing import Any

import pytest

from kfit.checkpoint import snapshot_manifest
from kfit.checkpoint.snapshot import to_json
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError, FileEntry, Manifest


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


def test_another_format_is_named() -> None:
    text = snapshot_manifest.dump(Manifest({}, {}))
    other = json.loads(text)
    del other["sha256"]
    other["format"] = 99
    other["sha256"] = snapshot_manifest._digest(other)
    with pytest.raises(DamagedSnapshotError, match="format 99; this kfit reads 1"):
        snapshot_manifest.parse(to_json(other))
