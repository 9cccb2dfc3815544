"""The tests that docs/reliability.md names are there, and none of them is always left out."""

import ast
import re
from pathlib import Path

from tests.soak.table import HEADER

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def named() -> list[tuple[str, str]]:
    """The files and the names of the tests on the page."""
    return re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))


def tables() -> list[list[list[str]]]:
    """The tables of the page: the cells of the header, and of each row."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    lines = [[line for line in table.splitlines() if not line.startswith("|--")] for table in found]
    return [[line.strip("| ").split(" | ") for line in table] for table in lines]


def test_the_tests_of_the_page_are_there() -> None:
    assert len(named()) > 50
    for file, name in named():
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
        assert found, f"{file}::{name}"
        decorators = [ast.unparse(each).partition("(")[0] for each in found[0].decorator_list]
        assert "pytest.mark.skip" not in decorators, name


def test_each_fault_has_a_test() -> None:
    faults = [row for header, *rows in tables() if header[-1] == "tests" for row in rows]
    assert len(faults) > 30
    assert [row[0] for row in faults if "::test_" not in row[-1]] == []


def test_the_figures_of_the_soak_are_those_that_it_prints() -> None:
    header = HEADER.strip("| ").split(" | ")
    [rows] = [rows for first, *rows in tables() if first == header]
    assert all(len(row) == len(header) for row in rows)
