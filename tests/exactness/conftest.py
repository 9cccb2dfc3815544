"""Lets the tests here import their cases, which the workers of `test_matrix.py` import as well."""

import sys
from pathlib import Path

import pytest

# Last, so that an installed kfit is not hidden by the folder of that name.
sys.path.append(str(Path(__file__).parents[2]))
pytest.register_assert_rewrite("tests.exactness.cases.comparison")
