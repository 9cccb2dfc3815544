"""Which modules are of the user's own program."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1024)
def is_written_here(module: str) -> bool:
    """Whether a module is of the user's own program, and of no package that was installed."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top in ("kfit", "builtins"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)
