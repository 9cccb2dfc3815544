"""The arguments of a command that runs the user's program: a script, or `-m` and a module."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Protocol

from kfit.argument_checks import CommandError
from kfit.cluster.printable import printable
from kfit.lazy import closest_name


def add_program(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments `script` and `module`, which take the rest of the command line.

    Args:
        parser: The parser of the command, which has its options already.
    """
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="module",
        help="run a module, as `python -m` does, with the arguments that follow",
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="script.py",
        help="the training script, with the arguments that follow",
    )


def check_module(module: Sequence[str]) -> None:
    """Checks the words after the option `-m`: a module and its arguments.

    Raises:
        CommandError: If there is none, or it is no name of a module.
    """
    if not module or not all(part.isidentifier() for part in module[0].split(".")):
        found = repr(module[0]) if module else "missing"
        raise CommandError(f"`-m` is {found}; expected a module's name, as in `-m pkg.train`")


def check_is_script(words: Sequence[str], command: str) -> None:
    """Checks that the first word can name a script; whether the file exists is not checked.

    Args:
        words: The words after the options of the command.
        command: The command that runs the script, for messages.

    Raises:
        CommandError: If it is a notebook, which Python would read as an expression without any
            effect, or Python itself, which kfit starts.
    """
    path = words[0]
    if path.lower().endswith(".ipynb"):
        raise CommandError(
            f"`script.py` is {path!r}, a notebook; convert it to a script by `jupyter nbconvert "
            f"--to script {shlex.quote(path)}`, or train on several workers from its cells by "
            "`kfit.launch`"
        )
    is_python = re.fullmatch(r"python[\d.]*", os.path.basename(path)) is not None
    if is_python and (not os.path.exists(path) or os.access(path, os.X_OK)):
        rest = shlex.join([*command.split(), *words[1:]])
        raise CommandError(f"`script.py` is {path!r}; leave it out, as in `{rest}`")


def check_syntax(path: str) -> None:
    """Checks that a script can be compiled, so that each task need not print that it cannot.

    Raises:
        SystemExit: If it cannot, after Python's own message was printed.
    """
    if not path.endswith(".py"):
        return
    with open(path, "rb") as script, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tasks give the warnings
        try:
            compile(script.read(), path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:  # a ValueError for null bytes
            sys.stderr.write("".join(traceback.format_exception_only(type(error), error)))
            raise SystemExit(1) from None


def check_exists(path: str) -> None:
    """Checks that a script exists.

    Raises:
        CommandError: If it does not. The message names a script of the same folder that has almost
            the same name.
    """
    if os.path.exists(path):
        return
    folder, given = os.path.split(path)
    scripts = {name.removesuffix(".py"): name for name in _listed(folder) if name.endswith(".py")}
    alike = closest_name(given.removesuffix(".py"), scripts)
    hint = (
        f"did you mean {os.path.join(folder, scripts[alike])!r}?"
        if alike
        else "expected the path of a Python script, or `-m module`"
    )
    raise CommandError(f"the script {path!r} does not exist in {os.getcwd()}; {hint}")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


class CommandParser(Protocol):
    """The parser of a command that runs a program."""

    prog: str

    def options(self) -> list[str]:
        """Returns the options of the command, such as "--help"."""

    def options_with_value(self) -> list[str]:
        """Returns those of the options that the next word belongs to."""


def note_options_of_the_script(
    words: Sequence[str], parser: CommandParser, given: Sequence[str]
) -> None:
    """Tells the user if an option of a command stands after the script, which gets it then.

    The note has the command line with which the command gets the option.

    Args:
        words: The script or module with its arguments.
        parser: The parser of the command.
        given: All words of the command line, from the name of the command on.
    """
    options = parser.options()
    start = 2 if words[0] == "-m" else 1
    rest, moved = list(words[start:]), []
    for word in words[start:]:
        if word.startswith("--") and word.partition("=")[0] in options:
            place = rest.index(word)
            count = 2 if word in parser.options_with_value() else 1
            moved += rest[place : place + count]
            del rest[place : place + count]
    if moved:
        before = list(given[: len(given) - len(words)])
        if before[-1:] == ["--"]:
            del before[-1]
        meant = shlex.join(["kfit", *before, *moved, *words[:start], *rest])
        print(
            f"kfit: note: `{moved[0]}` is passed to {name_of_program(words)}, since it stands "
            f"after it; options of `{parser.prog}` come before the script: `{meant}`",
            file=sys.stderr,
            flush=True,
        )


def name_of_program(words: Sequence[str]) -> str:
    """Returns the script or module among the words with which Python runs it."""
    return words[1] if words[0] == "-m" else words[0]


def named_task(words: Sequence[str]) -> str:
    """Returns the name of the only task of a run: that of its script without the folder.

    Args:
        words: The words with which Python runs the script or module.
    """
    return printable(os.path.basename(name_of_program(words)))
