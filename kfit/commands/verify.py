"""The command `kfit verify`: compares one device and replicas on the user's own training script.

This module reads the options and starts a process for the script, because TensorFlow can split the
CPU into devices only before its first operation. `verified_fit.py` does the rest in that process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kfit.argument_checks import CommandError
from kfit.cluster.variables import VERIFY
from kfit.commands.program import add_program, name_of_program, note_options_of_the_script
from kfit.supervisor.passed_output import Channel, pass_on
from kfit.supervisor.signals import signal_name, signals_to

COULD_NOT_RUN = 2
_GRACE = 5.0
"""Seconds from a signal until the process of the script is killed."""

Program = Callable[[Sequence[str], "Sequence[str] | None"], tuple[str, ...]]
Count = Callable[[str, "str | None", int], "int | None"]


def add_verify(commands: Any, program: Program, count: Count, run_script: str) -> None:
    """Adds the command `verify` to the subcommands of `kfit`.

    Args:
        commands: What `ArgumentParser.add_subparsers` has returned.
        program: Checks the script or module of the command line, and returns it with its arguments.
        count: Reads an option that is a whole number from a given one up.
        run_script: The path of the file that runs the user's script.
    """
    parser = commands.add_parser(
        "verify",
        usage="kfit verify [-h] [--replicas N] [--steps K] [--json]\n"
        "                   (script.py | -m module) [args...]",
        help="show on your own script that replicas compute the same numbers as one device",
        description="Runs a training script up to its first `fit`, takes its model and data from "
        "there, and trains a few steps on one device and on N replicas, from the same weights, "
        "seeds and batches. It prints how far they differ, layer by layer, and names what makes "
        "them differ. The callbacks of that `fit` and the rest of the script are not run. The "
        "exit code is 0 if the numbers are equal, 1 if they differ, 2 if it could not run.",
        allow_abbrev=False,
    )
    parser.add_argument("--replicas", metavar="N", help="replicas, at least 2 (default: 2)")
    parser.add_argument("--steps", metavar="K", help="training steps (default: 3)")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, for programs; the script prints to stderr"
    )
    add_program(parser)

    def verify(arguments: argparse.Namespace) -> int:
        if os.name != "posix":
            raise CommandError("`kfit verify` needs Linux or macOS")
        settings = {
            "replicas": count("--replicas", arguments.replicas, 2) or 2,
            "steps": count("--steps", arguments.steps, 1) or 3,
            "json": arguments.json,
        }
        words = program(arguments.script, arguments.module)
        note_options_of_the_script(words, parser, arguments.given)
        told = f"{name_of_program(words)} on one device and on {settings['replicas']} replicas"
        print(f"kfit: comparing the first steps of {told}", file=sys.stderr, flush=True)
        return _run([sys.executable, run_script, "--verify", "--no-join", *words], settings)

    parser.set_defaults(command=verify)


def _run(command: list[str], settings: dict[str, Any]) -> int:
    """Runs the script in a process of its own.

    Args:
        command: The command of the process.
        settings: The replicas, the steps, and whether to print JSON.

    Returns:
        The exit code that the process has sent through a pipe. Its own exit code may be that of
        the user's script, which may have ended without a `fit`. If a signal has stopped this
        command, 128 plus its number.
    """
    ours, theirs = os.pipe()
    signals: list[int] = []
    try:
        environ = {
            **os.environ,
            "KFIT_CLUSTER": "none",
            VERIFY: json.dumps({**settings, "pipe": theirs}),
        }
        environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        ended = _wait(command, environ, theirs, signals)
        os.set_blocking(ours, False)
        try:
            verdict = os.read(ours, 1)
        except BlockingIOError:
            verdict = b""
    finally:
        os.close(ours)
        os.close(theirs)
    if signals:
        print(f"kfit: stopped by {signal_name(signals[0])}", file=sys.stderr)
        return 128 + signals[0]
    if verdict:
        return int(verdict)
    problem = _without_a_verdict(ended)
    print(f"kfit: error: {problem}", file=sys.stderr)
    if settings["json"]:
        print(json.dumps({"error": problem}, indent=2))
    return COULD_NOT_RUN


def _without_a_verdict(ended: int) -> str:
    """Returns what is wrong if the process has ended by itself and without a verdict.

    Args:
        ended: Its exit code; below 0 it is a signal, which may have come at any time.
    """
    if ended < 0:
        return f"the process of the script was killed by {signal_name(-ended)}"
    return (
        f"the script ended with exit code {ended} before its first `fit`; `kfit verify` takes the "
        "model and the data from a `fit` of Keras or kfit"
    )


def _wait(command: list[str], environ: dict[str, str], pipe: int, signals: list[int]) -> int:
    """Runs a command, without TensorFlow's start-up messages on its stderr.

    Signals such as that of Ctrl-C are passed on to the command, which has nothing to save. If it
    does not end within 5 s, it is killed.

    Args:
        command: The command.
        environ: Its environment variables.
        pipe: A file descriptor that it inherits.
        signals: The signals that arrive are added to it.

    Returns:
        Its exit code.
    """
    channel = Channel.like(sys.stderr)
    child: subprocess.Popen[bytes] | None = None

    def stop(signum: int) -> None:
        signals.append(signum)
        if child is not None:
            _stop(child, signum)

    with signals_to(stop):
        try:
            child = subprocess.Popen(command, env=environ, pass_fds=[pipe], stderr=channel.writer)
        except BaseException:
            os.close(channel.reader)
            raise
        finally:
            os.close(channel.writer)
        for signum in signals:  # that have come before there was a process
            _stop(child, signum)
        # A daemon, since processes that the script has left behind may keep stderr open.
        passing = threading.Thread(
            target=pass_on,
            args=(channel, _write_error, lambda _: None),
            kwargs={"is_filtered": environ["TF_CPP_MIN_LOG_LEVEL"] != "0"},
            daemon=True,
        )
        passing.start()
        with child:
            ended = child.wait()
        passing.join(timeout=5)
    return ended


def _stop(child: subprocess.Popen[bytes], signum: int) -> None:
    child.send_signal(signum)
    killing = threading.Timer(_GRACE, child.kill)
    killing.daemon = True
    killing.start()


def _write_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
