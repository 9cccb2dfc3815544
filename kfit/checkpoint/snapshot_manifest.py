"""The manifest of a snapshot: the sizes and checksums that the snapshot's other files must have.

Before these files are parsed, they are compared with the manifest, so that damage is noticed. But
whoever can write to the directory can compute the checksums anew. If the environment variable
KFIT_BACKUP_KEY is set, the manifest is signed with the key that it has, and a snapshot without a
valid signature counts as damaged.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, NamedTuple

from kfit.checkpoint.snapshot import to_json
from kfit.cluster.printable import printable
from kfit.cluster.signing import key_from, signature
from kfit.user_files.foreign_json import parse_json

NAME = "manifest.json"
FORMAT = 1
KEY_VARIABLE = "KFIT_BACKUP_KEY"
"""The environment variable with the key that signs snapshots."""
LARGEST = 1 << 24
"""The largest size of a manifest in bytes; a larger file is rejected."""


class DamagedSnapshotError(ValueError):
    """An error that is raised if the files of a snapshot differ from what was written.

    Args:
        text: What is wrong. It may quote what a stranger has written, so it is cut and escaped.
    """

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class FileEntry(NamedTuple):
    """The size in bytes and the SHA-256 that one file of a snapshot must have."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """The content of a snapshot's manifest, the file by which damage to the snapshot is noticed.

    Attributes:
        about: The description of the snapshot (`Snapshot.about`).
        files: The size and checksum of each file of the snapshot except the manifest, by name.
    """

    about: dict[str, Any]
    files: dict[str, FileEntry]


def dump(manifest: Manifest, key: bytes = b"") -> bytes:
    """Encodes a manifest as JSON, together with a SHA-256 of its own content.

    Args:
        manifest: The manifest.
        key: The key that signs the content, too; empty for no signature.
    """
    content = {
        "format": FORMAT,
        "about": manifest.about,
        "files": {name: entry._asdict() for name, entry in manifest.files.items()},
    }
    signed = {"signature": signature(key, to_json(content)).hex()} if key else {}
    return to_json({**content, **signed, "sha256": _digest(content)})


def backup_key() -> bytes:
    """Returns the key that signs snapshots, from the environment; empty if they are not signed.

    Raises:
        ValueError: If the key is too short.
    """
    return key_from(KEY_VARIABLE)


def parse(text: bytes, key: bytes = b"") -> Manifest:
    """Parses the JSON of a manifest and verifies its checksum and its signature.

    Args:
        text: The JSON.
        key: The key with which the manifest must be signed; if empty, a signature is not looked at.

    Raises:
        DamagedSnapshotError: If the manifest is too large, differs from what was written, has
            another format, or is not signed with the key.
    """
    if len(text) > LARGEST:
        raise DamagedSnapshotError(f"{NAME} has more than {LARGEST} bytes")
    content = decoded(NAME, text)
    if not isinstance(content, dict):
        raise DamagedSnapshotError(f"{NAME} does not have the SHA-256 that it names")
    checksum, found = content.pop("sha256", None), content.pop("signature", None)
    if checksum != _digest(content):
        raise DamagedSnapshotError(f"{NAME} does not have the SHA-256 that it names")
    if key and not _is_signed(key, content, found):
        raise DamagedSnapshotError(
            f"{NAME} is not signed with the key of the environment variable {KEY_VARIABLE}"
        )
    if content.get("format") != FORMAT:
        raise DamagedSnapshotError(
            f"{NAME} has format {content.get('format')!r:.50}; this kfit reads {FORMAT}"
        )
    about, files = content.get("about"), content.get("files")
    if not isinstance(about, dict) or not isinstance(files, dict):
        raise DamagedSnapshotError(f"{NAME} has no valid `about` or `files`")
    return Manifest(about, {name: _entry(name, found) for name, found in files.items()})


def _entry(name: str, found: Any) -> FileEntry:
    """Returns the size and checksum of a file, as the manifest lists them.

    Raises:
        DamagedSnapshotError: If it does not list them.
    """
    if isinstance(found, dict) and found.keys() == set(FileEntry._fields):
        size, sha256 = found["size"], found["sha256"]
        if type(size) is int and size >= 0 and isinstance(sha256, str):
            return FileEntry(size, sha256)
    raise DamagedSnapshotError(f"{NAME} has no valid size and SHA-256 of {name!r:.50}")


def decoded(name: str, text: bytes) -> Any:
    """Parses the content of a JSON file.

    Args:
        name: The name of the file, for the error message.
        text: The content of the file.

    Raises:
        DamagedSnapshotError: If the content is not valid JSON.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        raise DamagedSnapshotError(f"{name} is no JSON: {error}") from None


def _digest(content: Any) -> str:
    return hashlib.sha256(to_json(content)).hexdigest()


def _is_signed(key: bytes, content: Any, found: object) -> bool:
    expected = signature(key, to_json(content)).hex()
    if not isinstance(found, str) or not found.isascii():  # `compare_digest` takes no other text
        return False
    return hmac.compare_digest(found, expected)
