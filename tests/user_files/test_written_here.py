"""Which modules are of the program's own."""

import importlib
import sys
import sysconfig
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from kfit.user_files.written_here import is_written_here


@pytest.mark.parametrize("module", ["os.path", "builtins", "kfit.trainer", "keras", "numpy.random"])
def test_what_was_installed_is_not(module: str) -> None:
    importlib.import_module(module)
    assert not is_written_here(module)


def test_what_the_program_brings_is() -> None:
    assert is_written_here(__name__)
    assert is_written_here("never.imported")


def test_it_is_by_the_file_that_a_module_lies_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("lies_here", "/home/me"), ("lies_there", "/usr/lib/dist-packages")):
        module = types.ModuleType(name)
        module.__file__ = f"{folder}/{name}.py"
        monkeypatch.setitem(sys.modules, name, module)
    assert is_written_here("lies_here")
    assert not is_written_here("lies_there")


@pytest.mark.parametrize("how", ["python -m", "command", "script"])
def test_the_package_that_was_started_is_though_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As in a container, whose image has installed the training program."""
    main, package = types.ModuleType("__main__"), types.ModuleType("started_prog.cli")
    package.__file__ = "/usr/lib/python3/site-packages/started_prog/cli.py"
    monkeypatch.setitem(sys.modules, "started_prog.cli", package)
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__file__ = "/home/me/train.py"
    if how == "python -m":
        main.__spec__ = ModuleSpec("started_prog.cli", None)
    elif how == "command":
        main.__file__ = str(Path(sysconfig.get_path("scripts"), "started-prog"))
        vars(main)["main"] = type("main", (), {"__module__": "started_prog.cli"})
    is_written_here.cache_clear()
    assert is_written_here("started_prog.cli") is (how != "script")
    is_written_here.cache_clear()
