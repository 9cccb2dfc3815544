"""The table of cases: who writes one marks it as such, and nothing else needs to name it."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

Case = Callable[[int], tuple[Any, ...]]
_CASES: dict[str, dict[str, Case]] = {}


def case(function: Case) -> Case:
    """Notes a case: a function of the number of examples, to `(model, data)` or with arguments."""
    _CASES.setdefault(function.__module__, {})[function.__name__] = function
    return function


def cases_of(*topics: ModuleType) -> dict[str, Case]:
    """The cases of these modules by name, in the order in which they are written."""
    found: dict[str, Case] = {}
    for topic in topics:
        cases = _CASES[topic.__name__]
        if twice := found.keys() & cases.keys():
            raise ValueError(f"{topic.__name__} has {sorted(twice)} again; give each its own name.")
        found |= cases
    return found
