"""Lets the tests here import their cases, which the workers of `test_matrix.py` import as well."""

import sys
from pathlib import Path

import pytest

# Last, so that an installed kfit is not hidden by the folder of that name.
sys.path.append(str(Path(__file__).parents[2]))
pytest.register_assert_rewrite("tests.exactness.cases.comparison")


@pytest.fixture
def ungathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each replica read its own examples only, so that kfit warns of what these do not show."""
    monkeypatch.setattr("kfit.exactness.whole_batch.may_gather_rows", lambda **_: False)
