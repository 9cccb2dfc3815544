"""The command `kfit inspect`, which verifies the snapshots in a directory and shows what they hold.

This module reads the options and prints. `inspected_snapshots.py` reads and checks the snapshots;
`snapshot_weights.py` compares and exports their weights.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kfit.argument_checks import CommandError
from kfit.user_files.foreign_json import without_nan


def add_inspect(commands: Any) -> None:
    """Adds the command `inspect` to the subcommands of `kfit`.

    Args:
        commands: What `ArgumentParser.add_subparsers` has returned.
    """
    parser = commands.add_parser(
        "inspect",
        help="verify the snapshots in a directory and show what they hold",
        description=(
            "Reads and verifies every snapshot that kfit.callbacks.BackupAndRestore keeps in a "
            "directory, and changes nothing there. The exit code is 0 when all are good, 1 when "
            "one is damaged, 2 when there is none, or an option is wrong."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("directory", help="the `backup_dir` of BackupAndRestore")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--snapshot",
        "--step",
        metavar="NAME|STEP",
        help="only this snapshot, by its name or its training step (default: all; the newest good "
        "one is shown in detail)",
    )
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="show how far the weights differ, layer by layer, from those of a saved model "
        "(model.keras), or of another snapshot of the directory (its name or step)",
    )
    parser.add_argument(
        "--export",
        metavar="FILE.keras",
        help="save a Keras model with the snapshot's weights; needs --model",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="where the architecture comes from, which a snapshot does not hold: model.keras, or "
        "script.py:function, a function without arguments that returns the built model. The "
        "script is imported, so its training must be under `if __name__ == '__main__':`",
    )
    parser.set_defaults(command=_inspect)


def _inspect(arguments: argparse.Namespace) -> int:
    if os.path.lexists(arguments.directory) and not os.path.isdir(arguments.directory):
        raise CommandError(
            f"`directory` is {arguments.directory!r}, which is not a directory; expected the "
            "`backup_dir` of a BackupAndRestore"
        )
    _check_export(arguments.export, arguments.model)
    from kfit.commands.inspected_snapshots import (
        WHY_NONE,
        as_text,
        directory_of_snapshots,
        inspect,
    )

    if not os.path.isdir(arguments.directory):
        raise CommandError(
            f"`directory` is {arguments.directory!r}, which does not exist, so it holds no "
            f"snapshot. {WHY_NONE}. Otherwise the path is wrong: expected the `backup_dir` of a "
            "BackupAndRestore"
        )
    if (directory := directory_of_snapshots(arguments.directory)) != arguments.directory:
        print(f"kfit: note: the snapshots are in {directory}", file=sys.stderr, flush=True)
    arguments.directory = directory
    found = inspect(directory, arguments.snapshot)
    lines: list[str] = []
    if arguments.model is not None and arguments.against is None and arguments.export is None:
        print(
            "kfit: note: `--model` is not used; add `--export FILE.keras` to save a model with the "
            "snapshot's weights, or `--against OTHER` to compare them",
            file=sys.stderr,
            flush=True,
        )
    if arguments.against is not None or arguments.export is not None:
        from kfit.supervisor.passed_output import quiet_stderr

        with quiet_stderr(), _as_no_task():
            lines = _weights(arguments, found)
    print(_as_json(found) if arguments.json else "\n".join([as_text(found), *lines]))
    return int(any(snapshot["damage"] for snapshot in found["snapshots"]))


def _weights(arguments: argparse.Namespace, found: dict[str, Any]) -> list[str]:
    """Compares and exports weights, as the options ask for; this imports TensorFlow.

    Args:
        arguments: The options.
        found: What was found in the directory, to which the results are added.

    Returns:
        The results as lines of text.
    """
    from kfit.commands import snapshot_weights as weights

    lines = []
    newest = weights.read(arguments.directory, found, arguments.snapshot)
    if arguments.against is not None:
        found["against"] = weights.compare(
            arguments.directory, newest, arguments.against, arguments.model
        )
        lines += ["", *weights.as_lines(found["against"])]
    if arguments.export is not None:
        found["export"] = weights.export(newest, arguments.model, arguments.export)
        lines += ["", f"Saved the model as {found['export']['file']!r}."]
    return lines


@contextmanager
def _as_no_task() -> Iterator[None]:
    """Context in which this process belongs to no cluster, whatever the environment describes.

    A user calls the command by hand, on a host of a cluster perhaps: it must write what it says,
    and what it imports must not wait for other tasks.
    """
    before = os.environ.get("KFIT_CLUSTER")
    os.environ["KFIT_CLUSTER"] = "none"
    try:
        yield
    finally:
        if before is None:
            del os.environ["KFIT_CLUSTER"]
        else:
            os.environ["KFIT_CLUSTER"] = before


def _as_json(found: dict[str, Any]) -> str:
    return json.dumps(without_nan(found), indent=2, allow_nan=False)


def _check_export(export: str | None, model: str | None) -> None:
    if export is None:
        return
    if not export.endswith(".keras"):
        raise CommandError(f"`--export` is {export!r}; expected a file name that ends in .keras")
    if model is None:
        raise CommandError(
            "`--export` needs `--model`: a snapshot holds the weights of the model, but not its "
            "architecture. Pass `--model model.keras`, a model of the same layers that was saved "
            "before, or `--model script.py:function`, a function that returns the model"
        )
