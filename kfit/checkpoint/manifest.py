"""The manifest of a snapshot: what its files must be, checked before one of them is parsed."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from kfit.checkpoint.snapshot import to_json

NAME = "manifest.json"
FORMAT = 1
LARGEST = 1 << 24
"""Bytes of a manifest; what is larger is none."""


class DamagedSnapshotError(ValueError):
    """A snapshot is not what was written."""


class FileEntry(NamedTuple):
    """What one file of a snapshot must be: its size in bytes and its SHA-256."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """What a snapshot holds.

    Attributes:
        about: The snapshot's `about`.
        files: Its files by name.
    """

    about: dict[str, Any]
    files: dict[str, FileEntry]


def dump(manifest: Manifest) -> bytes:
    """The manifest as JSON, with its own SHA-256 over the rest of it."""
    content = {
        "format": FORMAT,
        "about": manifest.about,
        "files": {name: entry._asdict() for name, entry in manifest.files.items()},
    }
    return to_json({**content, "sha256": _digest(content)})


def parse(text: bytes) -> Manifest:
    """Reads a manifest.

    Raises:
        DamagedSnapshotError: If anything in it is not as it was written.
    """
    content = parse_json(NAME, text)
    if not isinstance(content, dict) or content.pop("sha256", None) != _digest(content):
        raise DamagedSnapshotError(f"{NAME} does not have the SHA-256 that it names")
    if content.get("format") != FORMAT:
        raise DamagedSnapshotError(
            f"{NAME} has format {content.get('format')!r}; this kfit reads {FORMAT}"
        )
    try:
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        return Manifest(dict(content["about"]), files)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedSnapshotError(f"{NAME} lacks what a manifest has: {error!r}") from None


def parse_json(name: str, text: bytes) -> Any:
    """The values of a JSON file.

    Raises:
        DamagedSnapshotError: If it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedSnapshotError(f"{name} is no JSON: {error}") from None


def _digest(content: Any) -> str:
    return hashlib.sha256(to_json(content)).hexdigest()
