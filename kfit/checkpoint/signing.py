"""The key with which snapshots are signed, so that those of strangers are refused.

The checksums of a snapshot show damage, but whoever can write to the directory can compute them
anew. If the environment variable KFIT_BACKUP_KEY is set, the manifest of each snapshot, which has
the checksums of its other files, is signed with the key, and a snapshot without a valid signature
counts as damaged.
"""

from __future__ import annotations

import hashlib
import hmac
import os

VARIABLE = "KFIT_BACKUP_KEY"
"""The environment variable with the key."""

SHORTEST = 16
"""The least number of characters of a key, so that nobody can guess it."""


def backup_key() -> bytes:
    """Returns the key from the environment; empty if snapshots are not signed.

    Raises:
        ValueError: If the key is too short.
    """
    text = os.environ.get(VARIABLE, "")
    if text and len(text) < SHORTEST:
        raise ValueError(
            f"`{VARIABLE}` has {len(text)} characters; expected at least {SHORTEST}, so that "
            "nobody can guess it, such as the output of `openssl rand -hex 16`"
        )
    return text.encode()


def signature(key: bytes, content: bytes) -> str:
    """Returns the signature of some content (HMAC-SHA256, RFC 2104), as hexadecimal digits.

    Args:
        key: The key.
        content: What is signed.
    """
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def is_signed(key: bytes, content: bytes, found: object) -> bool:
    """Returns whether a value is the signature of some content.

    Args:
        key: The key.
        content: What must be signed.
        found: The value, as it was read from a file.
    """
    return isinstance(found, str) and hmac.compare_digest(
        found.encode(), signature(key, content).encode()
    )
