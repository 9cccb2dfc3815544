"""Distinguishes the modules of the user's program from those that are installed."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1024)
def is_written_here(module: str) -> bool:
    """Returns whether a module belongs to the user's program.

    Modules of Python itself, of kfit and of installed packages do not belong to the program. But
    the package that was started does, although it may be installed, as in a container.

    Args:
        module: The name of the module.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top in ("kfit", "builtins"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_installed = bool({"site-packages", "dist-packages"} & set(Path(file).parts))
    return not is_installed or top in _started()


def _started() -> set[str]:
    """Returns the package that was started by `python -m package` or by a command that it installs.

    The result is empty if a script was started.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {spec.name.partition(".")[0]}
    folder = os.path.dirname(getattr(main, "__file__", None) or "")
    if main is None or folder != sysconfig.get_path("scripts"):
        return set()
    # The command imports a function of the package, and calls it.
    called = [each for each in vars(main).values() if callable(each)]
    return {str(getattr(each, "__module__", "")).partition(".")[0] for each in called}
