"""Makes the model that an option of `kfit inspect` names: of a file, or by a script's function."""

from __future__ import annotations

import os
import re
import runpy
import symtable
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from kfit.argument_checks import CommandError
from kfit.commands.replaced_fit import replaced_fit
from kfit.verification.report import printable

_FUNCTION = re.compile(r"(.+\.py):(\w+)")


def model_of(text: str, option: str, script: str | None = None) -> Any:
    """Returns the model of a file, or the one that a function of a script makes.

    Args:
        text: The path of the file, or "script.py:function".
        option: The option that the user gave, for error messages.
        script: A "script.py:function" whose script defines the classes of a saved model, or None.

    Raises:
        CommandError: If there is no such file or function, or it gives no built model.
    """
    import keras

    match = _FUNCTION.fullmatch(text)
    path = match[1] if match else text
    if not os.path.isfile(path):
        raise CommandError(
            f"`{option}` is {text!r}, which is not a file; expected model.keras or "
            "script.py:function"
        )
    if match is None:
        if script is not None and (named := _FUNCTION.fullmatch(script)):
            _import(named[1], "--model")  # registers the script's classes with Keras
        try:
            return keras.saving.load_model(path)
        except Exception as error:  # of Keras, or of a class of the user's
            raise CommandError(
                f"`{option}` is {text!r}, which Keras cannot load: {type(error).__name__}: "
                f"{printable(str(error).splitlines()[0])}. A model with classes of your own can be "
                "made by a function: `--model script.py:function`"
            ) from error
    function = _function_of(path, match[2], text, option)
    try:
        model = function()
    except Exception as error:  # of the user's code
        raise CommandError(
            f"`{option}` is {text!r}; the function is called without arguments, and must return "
            f"a built keras.Model. It raised {type(error).__name__}: {printable(str(error))}"
        ) from error
    if not isinstance(model, keras.Model) or not model.built:
        raise CommandError(
            f"`{option}` is {text!r}; the function must return a built keras.Model (one that "
            f"begins with `keras.Input`, or was called once). It returned {type(model).__name__}"
        )
    return model


def _function_of(path: str, name: str, text: str, option: str) -> Any:
    """Imports a script, unless the function's name is not in it, and returns the function."""
    missing = CommandError(f"`{option}` is {text!r}; {path} defines no function {name!r}")
    if not _may_define(path, name):
        raise missing
    function = _import(path, option).get(name)
    if not callable(function):
        raise missing
    return function


def _may_define(path: str, name: str) -> bool:
    """Returns whether a name may be one of a script's; True if the script cannot be parsed."""
    try:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        names = symtable.symtable(source, path, "exec").get_identifiers()
    except (SyntaxError, ValueError):
        return True  # importing it says what is wrong
    return name in names or "import *" in source


def _import(path: str, option: str) -> dict[str, Any]:
    """Imports a script as Python would run it, but not as `__main__`, and lets it train no model.

    Returns:
        The script's global names.
    """
    before = sys.argv[:], sys.path[:]
    sys.argv[:] = [path]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        with _no_training(path, option):
            return runpy.run_path(path, run_name="__kfit_inspect__")
    except CommandError:
        raise
    except (Exception, SystemExit) as error:
        raise CommandError(
            f"`{option}` names {path!r}, which cannot be imported: {type(error).__name__}: "
            f"{printable(str(error))}"
        ) from error
    finally:
        sys.argv[:], sys.path[:] = before


@contextmanager
def _no_training(path: str, option: str) -> Iterator[None]:
    """Context in which every `fit` of Keras and kfit raises an error.

    A training could continue from the snapshots that are only to be looked at, and delete them.
    """
    import kfit

    def fit(*_: Any, **__: Any) -> NoReturn:
        raise CommandError(
            f"`{option}` names {path!r}, which trains a model when it is imported. Put its "
            'training under `if __name__ == "__main__":`'
        )

    with replaced_fit(fit), kfit.install("one_device"):
        yield
