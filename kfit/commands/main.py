"""The `kfit` command: parses the command line and runs the subcommand.

Each subcommand is one function that takes the parsed arguments and returns the exit code. This
module does not import TensorFlow, Keras or NumPy, and imports other modules only when they are
needed. So `kfit run`, which supervises tasks for a long time, uses little memory, and a wrong
option is reported at once.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn

from kfit import fault_sites
from kfit.argument_checks import CommandError, is_url, read_seconds
from kfit.cluster.cluster import Cluster, ClusterError, check_trains
from kfit.cluster.resolvers import (
    cluster_source,
    current_cluster,
    start_timeout_of,
    workers_listed,
)
from kfit.cluster.secret import secret_of_run
from kfit.cluster.variables import misspelled_variables
from kfit.commands.doctor import add_doctor
from kfit.commands.inspect import add_inspect
from kfit.commands.manifest import add_manifest
from kfit.commands.program import (
    add_program,
    check_exists,
    check_is_script,
    check_module,
    check_syntax,
    name_of_program,
    named_task,
    note_options_of_the_script,
)
from kfit.commands.server import add_server
from kfit.commands.verify import add_verify
from kfit.lazy import closest_name
from kfit.supervisor.signals import exit_codes_kept

_USAGE_ERROR = 2
_STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
# This script is run as a file: for `python -m`, Python would first look for `kfit` in the current
# directory.
_RUN_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_script.py")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the `kfit` command.

    Args:
        argv: The arguments of the command; None for those of this process.

    Returns:
        The exit code: 2 for a wrong option or a wrong description of the cluster, otherwise the
        exit code of the subcommand.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    try:
        _refuse_faults()
        if words and words[0].lower().endswith((".py", ".ipynb")):
            return _run_here(words)
        parser = _parser()
        if not words or words[0] == "help":
            words = [*words[1:], "--help"]
        arguments = parser.parse_args(words)
        arguments.given = words
        with exit_codes_kept():
            code = int(arguments.command(arguments))
        sys.stdout.flush()
        return code
    except (CommandError, ClusterError) as error:
        from kfit.heartbeat.terminal import wrapped

        print(wrapped(f"kfit: error: {error}", sys.stderr), file=sys.stderr)
        return _USAGE_ERROR
    except BrokenPipeError:
        if not _is_stdout_broken():  # then it is another pipe, or a connection of the program
            raise
        # Nobody reads the rest, as in `kfit inspect backup | head`. Python would complain of it
        # again when it writes what is left at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # where kfit was tells the user nothing
    except SystemExit as done:
        # argparse raises SystemExit after --help and --version.
        return done.code if isinstance(done.code, int) else _USAGE_ERROR


def _open_missing_streams() -> None:
    """Opens the standard streams that this process was started without, as by `>&-`.

    What is written to them is dropped. Otherwise the next file that is opened would get their
    number, and child processes would write to it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            stream = open(os.devnull, "r" if name == "stdin" else "w")  # noqa: SIM115
            setattr(sys, name, stream)


def _refuse_faults() -> None:
    try:
        fault_sites.check()
    except ValueError as error:
        raise CommandError(str(error)) from None


def _is_stdout_broken() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))  # told without being asked for: the reading end is closed


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name what was probably meant.

    Attributes:
        later: The options of `kfit run`, which must not stand before the command; only in the
            parser of `kfit`.
    """

    later: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        choices = re.search("invalid choice: '(.*?)' \\(choose from (.*)\\)", message)
        if choices is not None:
            commands = re.findall(r"[\w-]+", choices[2])
            message = _unknown(choices[1], "a command", commands, self.options())
        see = " See" if message.endswith("?") else "; see"
        raise CommandError(f"{message}{see} `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses like `argparse`, but refuses an unknown option itself, and names a similar one.

        `argparse` would refuse it in the parser of `kfit`, which does not know the options of the
        subcommand.
        """
        self._refuse_later_options(list(args or ()))
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not unknown[0].startswith("-"):
            self.error(f"`{self.prog}` takes no such argument: `{unknown[0]}`")
        if unknown:
            kind = f"an option of `{self.prog}`"
            self.error(_unknown(unknown[0].partition("=")[0], kind, self.options()))
        return found, unknown

    def _refuse_later_options(self, words: list[str]) -> None:
        """Refuses an option of `kfit run` that stands first, and names the right command line."""
        option = words[0].partition("=")[0] if words else ""
        if option in self.later and option not in self.options():
            if "run" in words:
                words.remove("run")
            meant = shlex.join(["kfit", "run", *words])
            raise CommandError(f"`{option}` is an option of `kfit run`; write `{meant}`")

    def options(self) -> list[str]:
        """Returns the options of this parser, such as "--help", as its help lists them."""
        return re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", " ".join(self._listed()))

    def options_with_value(self) -> list[str]:
        """Returns those of the options that the next word belongs to, such as "--workers"."""
        return re.findall(r"(?<!\S)(--?[a-zA-Z][\w-]*) +[^-\s]", "\n".join(self._listed()))

    def _listed(self) -> list[str]:
        return re.findall(r"^  (-.*?)(?:  |$)", self.format_help(), re.MULTILINE)


def _unknown(given: str, kind: str, known: Sequence[str], others: Sequence[str] = ()) -> str:
    """Returns the message that a word is unknown, with the one that was probably meant.

    Args:
        given: The word.
        kind: What it should be, such as "a command".
        known: All that there are; they are listed if none is like the word.
        others: Words of another kind that may have been meant as well.
    """
    alike = closest_name(given, [*known, *others])
    listed = f"expected one of {', '.join(sorted(set(known)))}"
    hint = f"did you mean `{alike}`?" if alike else listed
    return f"`{given}` is not {kind}; {hint}"


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib import metadata

        try:
            version = metadata.version("kfit")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print(f"kfit {version}")
        parser.exit()


def _parser() -> _Parser:
    parser = _Parser(
        prog="kfit",
        description="fit for Keras 3 on any tf.distribute strategy.",
        epilog="`kfit train.py` runs a script of plain Keras as `python train.py` does, with the "
        "`fit` of kfit; `kfit run --keras-fit train.py` does so under a supervisor.",
        allow_abbrev=False,
    )
    parser.add_argument(
        *("-V", "--version"), action=_Version, nargs=0, help="print the version and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    parser.later = _add_run(commands)
    add_inspect(commands)
    add_doctor(commands)
    add_verify(commands, partial(_program, command="kfit verify"), _count, _RUN_SCRIPT)
    add_manifest(commands)
    add_server(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> list[str]:
    parser = commands.add_parser(
        "run",
        usage="kfit run [-h] [--workers N] [--ps M] [--evaluator] [--cpus N] [--max-restarts K]\n"
        "                [--hang-timeout S|auto|off] [--grace S] [--start-timeout S] [--verbose]\n"
        "                [--keras-fit] [--no-join] [--log-dir DIR] [--log-format text|json]\n"
        "                (script.py | -m module) [args...]",
        help="start, watch, restart and stop the tasks of a cluster on this host",
        description="Runs a training script: as N workers on this host, or, if the environment "
        "describes a cluster (TF_CONFIG, KFIT_WORKERS, Slurm, SageMaker), as this host's task in "
        "it. The tasks that train join the cluster before the script begins. When a task fails, "
        "hangs or is preempted the others are stopped, and all are restarted if --max-restarts "
        "allows it. The exit code is that of the first failure.",
        allow_abbrev=False,
    )
    parser.add_argument("--workers", metavar="N", help="workers to start on this host (default: 1)")
    parser.add_argument(
        "--ps",
        metavar="M",
        help="train asynchronously with M parameter servers: the script runs on a chief, and the "
        "workers and ps tasks each run `kfit server`. A worker that fails is restarted alone, up "
        "to --max-restarts times, while training continues on the others (default: 0)",
    )
    parser.add_argument(
        "--evaluator",
        action="store_true",
        help="start an evaluator as well, for kfit.train_and_evaluate. If it fails it is restarted "
        "alone, up to --max-restarts times; after that training continues without it",
    )
    parser.add_argument(
        "--cpus",
        metavar="N",
        help="split the CPU into N devices, to try the strategy 'mirrored' on N replicas on a "
        "computer without GPUs; GPUs are hidden. The replicas share the cores, so this is no "
        "faster than one",
    )
    parser.add_argument(
        "--max-restarts",
        metavar="K",
        help="restart all tasks after a failure, at most K times in a row. The count starts again "
        "at 0 once training has passed its furthest step, and preemptions after progress are not "
        "counted (default: 0)",
    )
    parser.add_argument(
        "--hang-timeout",
        metavar="S|auto|off",
        help="seconds without progress after which a task in fit, evaluate or predict counts as "
        "hung: its stacks are printed, and it is killed. auto: 10 (or 5 times the usual interval) "
        "in a step, 60 (or 5 times the longest so far) in a hook or while it waits for the user's "
        "data, with a message after 10; off: never, as for a debugger, which can "
        "read from the terminal if there is one task (default: auto)",
    )
    parser.add_argument(
        "--grace",
        metavar="S",
        help="seconds that tasks have to stop before they are killed, after a signal or the "
        "preemption of a task; at most 3 if a task has failed (default: 15)",
    )
    parser.add_argument(
        "--start-timeout",
        metavar="S",
        help="seconds to wait for all workers to start; after that it fails with the names of the "
        "missing ones (default: 60)",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print all messages of TensorFlow (TF_CPP_MIN_LOG_LEVEL=0), also those about CUDA and "
        "oneDNN when it starts, and the tracebacks that are left out otherwise",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        help="write the whole output of each task, TensorFlow's messages included, to a file in "
        "this folder: worker-0.log and so on, or train.py.log for the only process of train.py. A "
        "file of 16 MiB is renamed to worker-0.log.1, and "
        "4 of these are kept. A restart, or another run, appends to the files",
    )
    parser.add_argument(
        "--log-format",
        metavar="text|json",
        help="how lines are logged: as they are, or as one JSON object a line (worker-0.jsonl), "
        "with the keys time, task, stream, attempt and text (default: text)",
    )
    parser.add_argument(
        "--keras-fit",
        action="store_true",
        help="run a script that does not use kfit: its model.fit trains on the "
        "cluster (kfit.install). A callback of its own that writes files does so on every worker, "
        "unless it is wrapped in kfit.callbacks.chief_only",
    )
    parser.add_argument(
        "--no-join",
        action="store_true",
        help="do not join the cluster before the script runs, for a script that sets up "
        "TensorFlow's devices first. It must call kfit.join_cluster() itself, or create its "
        "Trainer before any model",
    )
    add_program(parser)
    options = parser.options()
    parser.set_defaults(command=_run, parser=parser)
    return options


def _run(arguments: argparse.Namespace) -> int:
    """Runs a script under a supervisor: `kfit run`.

    If the environment describes a cluster, the script is one task of that cluster. Otherwise all
    tasks of a new cluster are started on this host.

    Args:
        arguments: The parsed options, and the script or module with its arguments.

    Returns:
        The exit code of the run.

    Raises:
        CommandError: If an option or the script is wrong, or the options contradict the cluster.
        ClusterError: If the description of the cluster is wrong.
    """
    # This comes first, so that a wrong description of the cluster is reported at once.
    cluster = current_cluster()
    for name, meant in misspelled_variables(os.environ):
        told = f"`{name}` is no variable of kfit, which ignores it; did you mean `{meant}`?"
        print(f"kfit: warning: {told}", file=sys.stderr, flush=True)
    if os.name != "posix":
        raise CommandError("`kfit run` needs Linux or macOS: it uses POSIX process groups")
    workers = _count("--workers", arguments.workers)
    ps = _count("--ps", arguments.ps)
    grace = read_seconds("--grace", arguments.grace)
    start_timeout = read_seconds("--start-timeout", arguments.start_timeout, above_zero=True)
    max_restarts = _restarts(arguments.max_restarts)
    hang_timeout = _hang_timeout(arguments.hang_timeout)
    words = _program(arguments.script, arguments.module)
    note_options_of_the_script(words, arguments.parser, arguments.given)
    options = ["--keras-fit"] if arguments.keras_fit else []
    options += ["--no-join"] if arguments.no_join else []
    program = (sys.executable, _RUN_SCRIPT, *options, *words)

    environ = dict(os.environ)
    if arguments.verbose:
        environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    if (cpus := _count("--cpus", arguments.cpus)) is not None:
        if cluster is not None or ps is not None or arguments.evaluator or workers not in (None, 1):
            raise CommandError(
                "`--cpus` splits the CPU for a single process; leave out the options that start "
                "other tasks, and set KFIT_CLUSTER=none if a cluster is described"
            )
        environ.update(KFIT_CPUS=str(cpus), CUDA_VISIBLE_DEVICES="-1")
    if start_timeout is not None:
        environ["KFIT_START_TIMEOUT"] = str(start_timeout)
    if arguments.log_format not in (None, "text", "json"):
        raise CommandError(f"`--log-format` is {arguments.log_format!r}; expected 'text' or 'json'")
    if arguments.log_dir == "":
        raise CommandError("`--log-dir` is ''; expected the path of a folder")
    if arguments.log_dir and is_url(arguments.log_dir):
        raise CommandError(
            f"`--log-dir` is {arguments.log_dir!r}, a URL; expected the path of a folder"
        )
    if arguments.log_format and not arguments.log_dir:
        raise CommandError(
            f"`--log-format` is {arguments.log_format!r}, but nothing is logged; add "
            "`--log-dir DIR`"
        )

    from kfit.heartbeat.terminal import is_terminal
    from kfit.supervisor.backend import LocalBackend
    from kfit.supervisor.local import local_commands, task_environment
    from kfit.supervisor.sidecar import as_sidecar
    from kfit.supervisor.supervisor import DEFAULT_GRACE, Plan, Supervisor, TaskCommand

    grace = DEFAULT_GRACE if grace is None else grace
    plan: Plan
    if cluster is None:
        look_after = partial(
            as_sidecar, grace=grace, max_restarts=max_restarts, hang_timeout=hang_timeout
        )

        def plan() -> list[TaskCommand]:
            commands = local_commands(
                program, workers or 1, environ, ps=ps or 0, evaluator=arguments.evaluator
            )
            if len(commands) == 1:
                return [replace(commands[0], name=named_task(words))]
            # The other tasks can continue without these, so each gets a supervisor of its own.
            apart = ("evaluator", "worker") if ps else ("evaluator",)
            return [look_after(c) if c.name.startswith(apart) else c for c in commands]

    elif workers is not None or ps is not None or arguments.evaluator:
        given = [f"`--workers` is {workers}"] if workers is not None else []
        given += [f"`--ps` is {ps}"] if ps is not None else []
        given += ["`--evaluator` is given"] if arguments.evaluator else []
        raise CommandError(
            f"{given[0]}, but {cluster_source()} already describes a cluster of "
            f"{cluster.num_workers} in which this is {cluster.task}; leave it out, or set "
            "KFIT_CLUSTER=none to start a cluster on this host"
        )
    else:
        from kfit.cluster.rendezvous import check_address
        from kfit.supervisor.process_group import own_program

        if cluster.serves:
            program = own_program("kfit", "server")
        elif not (cluster.has_ps or cluster.is_evaluator):
            check_trains(cluster)
            if cluster.num_workers > 1:
                check_address(cluster)
        task = TaskCommand(str(cluster.task), program, task_environment(environ))
        plan = lambda: [task]  # noqa: E731
    # A single task needs no prefix. Without a prefix its output does not go through a pipe, so its
    # progress bar works. A terminal still shows at once that something has begun.
    prefix = cluster is not None or workers not in (None, 1) or bool(ps) or arguments.evaluator
    if prefix:
        start_timeout_of(environ)
    if cluster is not None:
        secret_of_run(environ)
    for stream in (sys.stdout, sys.stderr):
        # Printing a task's progress bar must not raise if this stream does not use UTF-8.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    logs = None
    if arguments.log_dir:
        from kfit.supervisor.task_logs import TaskLogs

        logs = TaskLogs(arguments.log_dir, arguments.log_format or "text")
        for command in plan():
            logs.check(command.name)
    if prefix:
        print(f"kfit: {_what_starts(cluster, workers or 1, ps or 0, arguments)}", file=sys.stderr)
    elif is_terminal(sys.stderr):
        print(f"kfit: starting {name_of_program(words)}", file=sys.stderr)
    if logs is not None:
        print(f"kfit: the whole output of each task goes to {logs.folder}", file=sys.stderr)
    supervisor = Supervisor(
        LocalBackend(plan, prefix=prefix, logs=logs, tell_processes=prefix),
        grace=grace,
        max_restarts=max_restarts,
        hang_timeout=hang_timeout,
        prefix=prefix,
    )
    code = supervisor.run()
    # After restarts the supervisor says itself that all has ended well.
    if code == 0 and cluster is not None and not (cluster.is_chief or supervisor.failures):
        print(f"kfit: {cluster.task} has ended well", file=sys.stderr)
    return code


def _what_starts(
    cluster: Cluster | None, workers: int, ps: int, arguments: argparse.Namespace
) -> str:
    """Returns the first message of a run, which says which tasks are started.

    Args:
        cluster: The cluster that the environment describes, in which one task is started; None for
            a new cluster on this host.
        workers: The number of workers of the new cluster.
        ps: The number of its ps tasks.
        arguments: The options, which say whether it has an evaluator.
    """
    if cluster is not None:
        shown = "" if cluster.is_chief else "; the progress is shown where the chief runs"
        return f"starting {cluster.task}; {workers_listed(cluster)}{shown}"
    parts = ["a chief"] if ps else []
    parts += [f"{workers} worker{'s' * (workers > 1)}"]
    parts += [f"{ps} ps task{'s' * (ps > 1)}"] if ps else []
    parts += ["an evaluator"] if arguments.evaluator else []
    *first, last = parts
    return f"starting {', '.join(first)}{' and ' * bool(first)}{last} on this host"


def _run_here(words: list[str]) -> NoReturn:
    """Replaces this process by one that runs a script with kfit's `fit` in place of Keras' own.

    This is `kfit script.py`.

    Args:
        words: The script and its arguments.
    """
    program = _program(words, None, "kfit")
    given = ["run", "--keras-fit", *words]
    note_options_of_the_script(program, _parser().parse_args(given).parser, given)
    os.execv(sys.executable, [sys.executable, _RUN_SCRIPT, "--keras-fit", *program])


def _count(option: str, text: str | None, least: int = 1) -> int | None:
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        raise CommandError(f"`{option}` is {text!r}; expected a whole number from {least} up")
    return int(text)


def _restarts(text: str | None) -> int:
    if text is None:
        return 0
    if not re.fullmatch("[0-9]{1,9}", text):
        raise CommandError(f"`--max-restarts` is {text!r}; expected a whole number from 0 up")
    return int(text)


def _hang_timeout(text: str | None) -> float | Literal["auto"] | None:
    if text in (None, "auto"):
        return "auto"
    if text == "off":
        return None
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)) and seconds > 0:
            return seconds
    raise CommandError(
        f"`--hang-timeout` is {text!r}; expected a number of seconds above 0, 'auto' or 'off'"
    )


def _program(
    script: Sequence[str], module: Sequence[str] | None, command: str = "kfit run"
) -> tuple[str, ...]:
    """Returns the arguments with which Python runs the user's script or module.

    The result is `("script.py", args...)` or `("-m", "module", args...)`.

    Args:
        script: The script and its arguments, as the user gave them. Ignored if `module` is given.
        module: The module and its arguments; None if the user gave a script.
        command: The command that runs the script, for messages.

    Raises:
        CommandError: If the script cannot be read, or the module's name is wrong.
    """
    if module is not None:
        check_module(module)
        return ("-m", *module)
    if script[:1] == ["--"]:
        script = script[1:]
    if not script:
        raise CommandError(f"`script.py` is missing; expected `{command} script.py` or `-m module`")
    path = script[0]
    if path.startswith("-"):
        raise CommandError(
            f"`{path}` is not an option of `{command}`; options come before the script, the "
            f"script's own arguments after it; see `{command} --help`"
        )
    check_is_script(script, command)
    if os.path.isdir(path):
        raise CommandError(f"`script.py` is {path!r}, a directory; give the path of a script")
    check_exists(path)
    if not os.path.isfile(path) or os.path.abspath(path).startswith(_STREAMS):
        raise CommandError(
            f"`script.py` is {path!r}, no file on a disk: each task and each restart would read "
            "the rest of it; save the script to a file"
        )
    if not os.access(path, os.R_OK):
        raise CommandError(
            f"`script.py` is {path!r}, which this user may not read; change its permissions"
        )
    check_syntax(path)
    return tuple(script)


if __name__ == "__main__":
    raise SystemExit(main())
