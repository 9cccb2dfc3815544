"""Parameters of tests that go through many cases of one mechanism: a sample is run each day."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def sweep(cases: Iterable[Any], every: int = 2, *, whole: Iterable[Any] = ()) -> list[Any]:
    """Returns parameters for `pytest.mark.parametrize`; all but each second case are marked long.

    Args:
        cases: The parameters; a tuple for several arguments.
        every: 3 leaves each third case among the daily tests, and so on.
        whole: Cases that are daily tests wherever they stand.
    """
    kept = list(whole)
    return [
        case if turn % every == 0 or case in kept else _long(case)
        for turn, case in enumerate(cases)
    ]


def only(daily: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Returns parameters for `pytest.mark.parametrize`; all but the daily ones are marked long."""
    return [case if case in daily else _long(case) for case in cases]


def halves(cases: Mapping[str, Any]) -> list[Any]:
    """Returns two parameters for a test that takes many cases at once, each with half of them.

    Every second one, from the first on, is taken by the daily test, the others by a long one.
    """
    some, others = ({name: cases[name] for name in list(cases)[first::2]} for first in (0, 1))
    return [
        pytest.param(some, id="some"),
        pytest.param(others, id="others", marks=pytest.mark.long),
    ]


def _long(case: Any) -> Any:
    values, marks, name = (case, (), None)
    if isinstance(case, type(pytest.param())):
        values, marks, name = case.values, case.marks, case.id
    elif not isinstance(case, tuple):
        values = (case,)
    return pytest.param(*values, marks=[*marks, pytest.mark.long], id=name)
