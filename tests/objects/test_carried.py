"""What callables carry with them is found, and can be given other values."""

from functools import partial
from typing import Any

from kfit.objects.carried import carried_by


def function(a: int, b: Any = (1,), *, c: Any = None, d: Any = ()) -> list[Any]:
    return [a, b, c, d]


def test_defaults_of_a_function() -> None:
    held, changing = carried_by(function)
    assert held == {"b": (1,), "c": None, "d": ()}
    assert changing == ["b", "d"]
    before = function.__defaults__, function.__kwdefaults__
    try:
        held["b"], held["d"] = [2], [4]
        assert function(0) == [0, [2], None, [4]]
    finally:
        function.__defaults__, function.__kwdefaults__ = before


def test_arguments_of_a_partial() -> None:
    bound = partial(function, [1], d=[2])
    held, changing = carried_by(bound)
    assert held == {"args[0]": [1], "d": [2]}
    assert changing == ["args[0]", "d"]
    held["args[0]"], held["d"] = [3], [4]
    assert bound() == [[3], (1,), None, [4]]


def test_the_object_of_a_method() -> None:
    values: list[int] = []
    assert carried_by(values.append) == ({"self": values}, ["self"])
    assert carried_by("text") == ({}, [])


def test_defaults_that_belong_to_another_function_are_none_of_its_own() -> None:
    def wrapper(*args: Any, c: Any = 3) -> None:
        """Has the defaults of what it wraps, as wrappers of the package `decorator` have."""

    wrapper.__defaults__ = (1, [2])
    assert carried_by(wrapper) == ({"c": 3}, [])
