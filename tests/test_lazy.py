"""What type checkers are told of a package are the names that it lists and imports."""

import ast
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kfit.lazy import closest_name

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
    assert {name for name in dir(module) if not name.startswith("__") or name in told} == set(told)
    for name, source in told.items():
        value = getattr(importlib.import_module(source), name)
        assert getattr(module, name) is value
        assert vars(module)[name] is value
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_help_has_no_other_names_of_kfit_than_the_public_ones() -> None:
    import kfit

    text = pydoc.plaintext.document(kfit)
    sections = {part.partition("\n")[0]: part for part in re.split(r"\n(?=[A-Z])", text)}
    classes = re.findall(r"^    class (\w+)[(:\n]", sections["CLASSES"], re.M)
    functions = re.findall(r"^    (\w+)\(", sections["FUNCTIONS"], re.M)
    modules = {name for name in kfit.__all__ if inspect.ismodule(getattr(kfit, name))}
    assert {*classes, *functions} == {*kfit.__all__} - modules
    assert set(sections) <= {
        *("NAME", "DESCRIPTION", "PACKAGE CONTENTS", "SUBMODULES", "CLASSES", "FUNCTIONS"),
        *("DATA", "VERSION", "FILE"),
    }
    assert sections.get("DATA", "DATA\n    __all__").splitlines()[1].startswith("    __all__")
    # Python lists the files of a package in any case, so its description says which are public.
    told = re.search(r"Of these, only(.*?)are public", sections["DESCRIPTION"], re.S)
    assert told is not None
    assert set(re.findall(r"``(\w+)``", told[1])) == modules


@pytest.mark.parametrize(
    ("package", "name", "meant"),
    [
        ("kfit", "Fit", "fit"),
        ("kfit", "verify", "kfit.Trainer.verify"),
        ("kfit.callbacks", "BackupAndRestor", "BackupAndRestore"),
        ("kfit.callbacks", "EarlyStopping", "keras.callbacks.EarlyStopping"),
        ("kfit.distribute", "Miror", "Mirrored"),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(
    package: str, name: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import keras  # noqa: F401  it is not imported only to look for the name

    with pytest.raises(AttributeError, match=f"{name!r}. Did you mean {meant!r}\\?") as raised:
        getattr(importlib.import_module(package), name)
    assert [entry.path.name for entry in raised.traceback] == [Path(__file__).name]
    sys.__excepthook__(raised.type, raised.value, None)
    assert capsys.readouterr().err.count("Did you mean") == 1


KNOWN = ["mirrored", "multi_worker", "one_device"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("miror", "mirrored"), ("multiworker", "multi_worker"), ("mirrored", "mirrored"), ("x", None)],
)
def test_the_name_that_is_most_alike(given: str, meant: str | None) -> None:
    assert closest_name(given, iter(KNOWN)) == meant


def test_how_much_alike_two_names_must_be() -> None:
    assert closest_name("clusta", ["cluster"]) == "cluster"
    assert closest_name("clusta", ["cluster"], likeness=0.9) is None


def test_import_kfit_does_not_load_what_only_an_error_needs() -> None:
    code = "import kfit, sys; print('difflib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
