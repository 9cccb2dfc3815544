"""The tests that docs/reliability.md and docs/security.md name are there, and can run."""

import ast
import re
from pathlib import Path

import pytest

from tests.soak.table import HEADER

ROOT = Path(__file__).parents[2]
RELIABILITY, SECURITY = "reliability.md", "security.md"


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def named(page: str) -> list[tuple[str, str]]:
    """The files and the names of the tests on a page."""
    return re.findall(r"`([\w/]+\.py)::(test_\w+)`", text_of(page))


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page: the cells of the header, and of each row."""
    text = text_of(page)
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    lines = [[line for line in table.splitlines() if not line.startswith("|--")] for table in found]
    return [[line.strip("| ").split(" | ") for line in table] for table in lines]


@pytest.mark.parametrize(("page", "least"), [(RELIABILITY, 50), (SECURITY, 40)])
def test_the_tests_of_the_page_are_there(page: str, least: int) -> None:
    assert len(named(page)) > least
    for file, name in named(page):
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
        assert found, f"{file}::{name}"
        decorators = [ast.unparse(each).partition("(")[0] for each in found[0].decorator_list]
        assert "pytest.mark.skip" not in decorators, name


@pytest.mark.parametrize(("page", "least"), [(RELIABILITY, 30), (SECURITY, 20)])
def test_each_fault_and_each_promise_has_a_test(page: str, least: int) -> None:
    listed = [row for header, *rows in tables(page) if header[-1] == "tests" for row in rows]
    assert len(listed) > least
    assert [row[0] for row in listed if "::test_" not in row[-1]] == []


@pytest.mark.parametrize("page", [RELIABILITY, SECURITY])
def test_the_page_says_what_is_not_promised(page: str) -> None:
    _, _, said = text_of(page).partition("\n## What is not promised\n")
    assert said.count("\n- ") >= 5


def test_the_figures_of_the_soak_are_those_that_it_prints() -> None:
    header = HEADER.strip("| ").split(" | ")
    [rows] = [rows for first, *rows in tables(RELIABILITY) if first == header]
    assert all(len(row) == len(header) for row in rows)
