"""Where tasks other than the chief write what nobody keeps.

A task removes what it has written there. One that is killed cannot, so `kfit run` and `kfit.launch`
make one folder for all tasks of a run, and remove it when the run ends.
"""

from __future__ import annotations

import os

ASIDE = "KFIT_ASIDE"
"""The environment variable with the path of the folder."""
PREFIX = "kfit-not-chief-"
"""How the names of temporary folders begin to which such a task writes."""


def root_aside() -> str | None:
    """Returns the folder in which a task makes its temporary folders; None for the system's own."""
    folder = os.environ.get(ASIDE, "")
    return folder if os.path.isdir(folder) else None
