"""Lets a package import its public names only when they are first used (PEP 562)."""

import difflib
import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    namespace: dict[str, Any],
    names_of: Mapping[str, Collection[str]],
    submodules: Collection[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Makes the functions by which a package imports its public names at their first use.

    A package calls this in its `__init__.py`, so that importing the package is fast. Type checkers
    must not see the call, since to them a `__getattr__` means that every name exists: the package
    imports the names under `if TYPE_CHECKING`, and calls this under `else`.

    Args:
        namespace: The `globals()` of the package. A name that was imported is stored there.
        names_of: For each module that defines public names, by its full name, the list of these
            names.
        submodules: Modules of the package that are public names themselves.

    Returns:
        Three values, for the package's `__getattr__`, `__dir__` and `__all__`.
    """
    package = namespace["__name__"]
    module_of = {name: module for module, names in names_of.items() for name in names}
    public = sorted({*module_of, *submodules})

    def import_name(name: str) -> Any:
        """Imports a public name at its first use; becomes the package's `__getattr__`."""
        if name in module_of:
            namespace[name] = getattr(importlib.import_module(module_of[name]), name)
        elif name in submodules:
            namespace[name] = importlib.import_module(f"{package}.{name}")
        else:
            alike = difflib.get_close_matches(name, public, n=1)
            hint = f". Did you mean {alike[0]!r}?" if alike else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        return namespace[name]

    def list_names() -> list[str]:
        """Lists the public names, imported or not; becomes the package's `__dir__`."""
        return sorted({*public, *(name for name in namespace if name.startswith("__"))})

    return import_name, list_names, public
