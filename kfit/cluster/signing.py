"""Signatures by a key that the environment gives, so that what strangers made is refused.

Messages between the tasks of a run are signed with KFIT_SECRET (`secret.py`), and snapshots
with KFIT_BACKUP_KEY (`checkpoint/snapshot_manifest.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping

SHORTEST = 16
"""The least number of characters of a key, so that nobody can guess it."""


def key_from(variable: str, environ: Mapping[str, str] | None = None) -> bytes:
    """Returns the key that an environment variable has; empty if it has none.

    Args:
        variable: The name of the variable.
        environ: The environment variables; by default those of this process.

    Raises:
        ValueError: If the key is too short.
    """
    text = (os.environ if environ is None else environ).get(variable, "")
    if text and len(text) < SHORTEST:
        raise ValueError(
            f"`{variable}` has {len(text)} characters; expected at least {SHORTEST}, so that "
            "nobody can guess it, such as the output of `openssl rand -hex 16`"
        )
    return text.encode()


def signature(key: bytes, content: bytes) -> bytes:
    """Returns the signature of some content: its HMAC-SHA256 (RFC 2104), 32 bytes.

    Args:
        key: The key.
        content: What is signed.
    """
    return hmac.new(key, content, hashlib.sha256).digest()
