"""A warning that several tasks of a run give is printed by the first of them only.

The tasks of `kfit run` run the same program, so what kfit warns of is mostly the same on all of
them. As long as a task is alone, or has no supervisor, it prints its warnings.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from kfit.heartbeat.layout import VARIABLE


def is_told_by_another(warning: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether another task of this attempt of a run has given a warning already.

    If none has, this task is recorded as the one that gives it.

    Args:
        warning: The text of the warning, with its place.
        environ: The environment variables. `VARIABLE` contains the path of the task's heartbeat,
            whose name begins with the number of the attempt. With `--verbose` all tasks warn.
    """
    heartbeat = environ.get(VARIABLE)
    if not heartbeat or environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return False
    folder, name = os.path.split(heartbeat)
    digest = hashlib.sha256(warning.encode(errors="replace")).hexdigest()[:16]
    path = os.path.join(folder, f"{name.partition('-')[0]}-warned-{digest}")
    try:
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(name)
                return False
        except FileExistsError:
            with open(path, encoding="utf-8") as file:
                return file.read() != name
    except (OSError, ValueError):
        return False
