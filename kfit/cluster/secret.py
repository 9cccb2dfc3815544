"""The secret of a run, by which its tasks (processes) recognize each other's messages.

Whoever can reach a task's port can send it messages, and claim to be another task. So tasks sign
their messages by a secret that only the tasks of the run know. `kfit run --workers N` and
`kfit.launch` make a new secret for each run. In a cluster of several hosts, the job must set the
environment variable KFIT_SECRET to the same text on all tasks; job files of `kfit manifest` do so.

Without a secret, messages are signed with an empty key. Such a signature proves nothing, so kfit
does not trust what callers say then.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from kfit.cluster.addresses import ClusterError
from kfit.cluster.signing import key_from

VARIABLE = "KFIT_SECRET"
"""The environment variable with the secret of the run."""


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
    try:
        return key_from(VARIABLE, environ)
    except ValueError as error:
        raise ClusterError(f"{error}, the same on all tasks") from error
