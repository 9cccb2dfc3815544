"""Distinguishes the modules of the user's program from those that are installed."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1024)
def is_written_here(module: str) -> bool:
    """Returns whether a module belongs to the user's program.

    Modules of Python itself, of kfit and of installed packages do not belong to the program.

    Args:
        module: The name of the module.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top in ("kfit", "builtins"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)
