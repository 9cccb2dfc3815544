"""Which modules are of the program's own."""

import sys
import types

import pytest

from kfit.objects.written_here import is_written_here


@pytest.mark.parametrize("module", ["os.path", "builtins", "kfit.trainer", "keras", "numpy.random"])
def test_what_was_installed_is_not(module: str) -> None:
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
