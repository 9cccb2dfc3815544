"""Public names of a package that are imported at their first use (PEP 562)."""

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    namespace: dict[str, Any],
    names_of: Mapping[str, Collection[str]],
    submodules: Collection[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns what a package assigns to `__getattr__`, `__dir__` and `__all__`.

    Type checkers learn the names from imports of the package under `TYPE_CHECKING`.

    Args:
        namespace: The `globals()` of the package, where a name stays once it was used.
        names_of: The public names, by the full name of the module that each is in.
        submodules: Modules of the package that are public names themselves.
    """
    package = namespace["__name__"]
    module_of = {name: module for module, names in names_of.items() for name in names}
    public = sorted({*module_of, *submodules})

    def import_name(name: str) -> Any:
        """Imports a public name at its first use."""
        if name in module_of:
            namespace[name] = getattr(importlib.import_module(module_of[name]), name)
        elif name in submodules:
            namespace[name] = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return namespace[name]

    def list_names() -> list[str]:
        """Lists the names that were not used yet too, for completion."""
        return sorted({*namespace, *public})

    return import_name, list_names, public
