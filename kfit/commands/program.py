"""The arguments of a command that runs the user's program: a script, or `-m` and a module."""

from __future__ import annotations

import argparse


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
