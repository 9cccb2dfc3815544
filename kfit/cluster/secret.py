"""The secret of a run, by which its tasks (processes) recognize each other's messages.

Whoever can reach a task's port can send it messages, and claim to be another task. So tasks sign
their messages by a secret that only the tasks of the run know. `kfit run --workers N` and
`kfit.launch` make a new secret for each run. In a cluster of several hosts, the job must set the
environment variable KFIT_SECRET to the same text on all tasks; job files of `kfit manifest` do so.

Without a secret, messages are signed with an empty key. Such a signature proves nothing, so kfit
does not trust what callers say then.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping

from kfit.cluster.addresses import ClusterError

VARIABLE = "KFIT_SECRET"
"""The environment variable with the secret of the run."""

SHORTEST = 16
"""The least number of characters of a secret, so that nobody can guess it."""


def new_secret() -> str:
    """Returns a new random secret: 32 hexadecimal digits."""
    return secrets.token_hex(16)


def secret_of_run(environ: Mapping[str, str] | None = None) -> bytes:
    """Returns the secret of the run that this process belongs to; empty if it has none.

    Args:
        environ: The environment variables; by default those of this process.

    Raises:
        ClusterError: If the secret is too short.
    """
    text = (os.environ if environ is None else environ).get(VARIABLE, "")
    if text and len(text) < SHORTEST:
        raise ClusterError(
            f"`{VARIABLE}` has {len(text)} characters; expected at least {SHORTEST}, so that "
            "nobody can guess it, such as the output of `openssl rand -hex 16`, the same on all "
            "tasks"
        )
    return text.encode()


def signature(secret: bytes, content: bytes) -> bytes:
    """Returns the signature of a message (HMAC-SHA256, RFC 2104).

    Args:
        secret: The secret of the run.
        content: The message.
    """
    return hmac.new(secret, content, hashlib.sha256).digest()
