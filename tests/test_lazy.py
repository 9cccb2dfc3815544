"""What type checkers are told of a package are the names that it lists and imports."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    "kfit": "kfit/__init__.py",
    "kfit.callbacks": "callbacks/__init__.py",
    "kfit.checkpoint": "kfit/checkpoint/__init__.py",
    "kfit.datasets": "datasets/__init__.py",
    "kfit.distribute": "kfit/distribute/__init__.py",
}


def told_to_type_checkers(package: str) -> dict[str, str]:
    """The names that a package imports under TYPE_CHECKING, and from where."""
    tree = ast.parse((ROOT / FILES[package]).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", FILES)
def test_the_names_of_a_package(package: str) -> None:
    module, told = importlib.import_module(package), told_to_type_checkers(package)
    assert set(module.__all__) == set(told)
    assert set(dir(module)) >= set(told)
    for name, source in told.items():
        value = getattr(importlib.import_module(source), name)
        assert getattr(module, name) is value
        assert vars(module)[name] is value
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        _ = module.nonsense
