"""Lets a package import its public names only when they are first used (PEP 562).

For a name that is unknown, it finds the one that was meant; others use this function as well.
"""

import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any


def lazy_names(
    namespace: dict[str, Any],
    names_of: Mapping[str, Collection[str]],
    submodules: Collection[str] = (),
    others: str = "",
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
        others: The full name of a module or a class. If it has a name that the package has not, the
            error of an unknown name says so.

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
            try:
                raise _unknown(name, package, public, others)
            except AttributeError as error:
                error.__traceback__ = None  # without this line, which tells the user nothing
                raise
        return namespace[name]

    def list_names() -> list[str]:
        """Lists the public names, imported or not; becomes the package's `__dir__`."""
        return sorted({*public, *(name for name in namespace if name.startswith("__"))})

    return import_name, list_names, public


def _unknown(name: str, package: str, public: Iterable[str], others: str) -> AttributeError:
    """Returns the error of an unknown name, which says what was probably meant."""
    alike = closest_name(name, public)
    # Keras is not imported only for the text of an error: many tools ask modules for names.
    if others and not name.startswith("_") and "keras" in sys.modules:
        import pkgutil  # only here, so that `import kfit` is faster

        alike = f"{others}.{name}" if hasattr(pkgutil.resolve_name(others), name) else alike
    hint = f". Did you mean {alike!r}?" if alike else ""
    # Without its name, Python would look for the one that was meant as well.
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)


def closest_name(given: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Returns the known name that is most like a given one, for "did you mean ...?" in an error.

    Args:
        given: What the user wrote.
        known: The names that exist.
        likeness: How much alike two names must be: 0 for any two names, 1 for equal ones.

    Returns:
        The name; None if none is like the given one.
    """
    import difflib  # only for an error, so that `import kfit` is faster

    found = difflib.get_close_matches(given, list(known), n=1, cutoff=likeness)
    return found[0] if found else None
