"""The arguments of a command that runs the user's program: a script, or `-m` and a module."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kfit.argument_checks import CommandError


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


def note_options_of_the_script(words: Sequence[str], options: Sequence[str], command: str) -> None:
    """Tells the user if an option of a command stands after the script, which gets it then.

    Args:
        words: The script or module with its arguments.
        options: The options of the command.
        command: The command, such as "kfit run".
    """
    of_script = [word for word in words[1:] if word.startswith("--")]
    both = [word for word in of_script if word.partition("=")[0] in options]
    if both:
        print(
            f"kfit: note: `{both[0]}` is passed to {name_of_program(words)}, since it stands after "
            f"it; options of `{command}` come before the script",
            file=sys.stderr,
            flush=True,
        )


def name_of_program(words: Sequence[str]) -> str:
    """Returns the script or module among the words with which Python runs it."""
    return words[1] if words[0] == "-m" else words[0]
