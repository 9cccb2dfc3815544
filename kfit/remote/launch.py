"""`kfit.launch`: calls a Python function in new worker processes, and returns its result.

1. The arguments are checked, and the function and its arguments are pickled, before any process is
   started.
2. A `Supervisor` starts the workers, on this host or on Ray. Each runs the script `run_call.py`.
3. The result of the chief (worker 0) is returned, or a LaunchError with the cause of the failure is
   raised.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from kfit.argument_checks import check_seconds
from kfit.cluster.resolvers import start_timeout_of
from kfit.heartbeat.summaries import message_of
from kfit.heartbeat.tracebacks import for_user, say_nothing_of
from kfit.remote import pickling
from kfit.remote.call_files import CallFiles, Settings
from kfit.remote.launch_error import LaunchError
from kfit.remote.notebook import with_cells
from kfit.remote.resources import WorkerResources, environment_checked
from kfit.supervisor.backend import Backend, LocalBackend
from kfit.supervisor.local import local_commands
from kfit.supervisor.process_group import TaskCommand
from kfit.supervisor.run_report import Failure
from kfit.supervisor.signals import signal_name
from kfit.supervisor.supervisor import DEFAULT_GRACE, Supervisor

_CHIEF = "worker 0"
# How many failures an error message lists at most, the latest ones.
_MOST_FAILURES = 20


@for_user
def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int,
    max_restarts: int = 0,
    hang_timeout: float | Literal["auto"] | None = "auto",
    grace: float = DEFAULT_GRACE,
    start_timeout: float | None = None,
    join: bool = True,
    env: Mapping[str, str] | None = None,
    on: Literal["local", "ray"] = "local",
    cpus: float | None = None,
    gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    placement: str | None = None,
) -> Any:
    """Calls a function in each of several new worker processes, and returns the chief's result.

    The workers form a cluster: each of them joins it before it calls the function, which usually
    trains a model. Since the workers are new processes, `launch` also works in a notebook that has
    used TensorFlow already. The output of the workers is printed here as it comes, each line after
    its worker's name. The workers are stopped if the launch is interrupted (Ctrl-C, the notebook's
    stop button) or this process ends.

    A function that is defined in a notebook cell or in `__main__` is pickled by value, with the
    variables that it refers to. Any other function is pickled by reference: the workers import its
    module.

    Args:
        function: The function to call, with the same arguments on every worker.
        args: The positional arguments of `function`.
        kwargs: The keyword arguments of `function`.
        workers: The number of workers. A single worker runs without a cluster.
        max_restarts: How often in a row, without progress, all workers are restarted after one of
            them has failed, hung or been killed. `function` is then called again from its
            beginning. A `kfit.callbacks.BackupAndRestore` in it resumes training where it stopped.
        hang_timeout: Seconds without progress after which a worker in `fit`, `evaluate` or
            `predict` counts as hung. "auto" derives this time from what the worker is doing and
            from the duration of its earlier steps. None turns the detection of hangs off.
        grace: Seconds that workers have to stop before they are killed.
        start_timeout: Seconds to wait for all workers to start. None means the value of the
            environment variable KFIT_START_TIMEOUT or, without this variable, 60.
        join: Whether each worker joins the cluster before `function` is called. If False,
            `function` must join, for example after it has set up TensorFlow's devices: it calls
            `kfit.join_cluster()`, or creates its Trainer before any model.
        env: Environment variables of the workers, added to those of this process or, on Ray, to
            those of the worker's node.
        on: Where the workers run: "local", as processes of this host, or "ray".
        cpus: CPUs that each worker requests from Ray; None means 1. This argument and the following
            ones are for Ray only.
        gpus: GPUs that each worker requests; None means 0.
        resources: Other resources that each worker requests: amounts by their names in Ray.
        placement: Ray's strategy of placing the workers on nodes: "PACK" (the default), "SPREAD",
            "STRICT_PACK" or "STRICT_SPREAD".

    Returns:
        The return value of `function` on the chief, which is worker 0. Keras callbacks in it, such
        as the History of `fit`, are returned without their model.

    Raises:
        ValueError: If an argument or KFIT_START_TIMEOUT is wrong, or an argument cannot be pickled.
        LaunchError: If `function` raised an error on a worker, or if a worker was killed or hung,
            and no restart was left. Also if the result cannot be pickled or unpickled, or if Ray
            has no room for the workers.
        ImportError: If `on` is "ray", and Ray is not installed.
        KeyboardInterrupt: If the launch was interrupted; all workers have stopped.
    """
    _check(function, args, kwargs, workers=workers, max_restarts=max_restarts, on=on)
    variables = environment_checked(env)
    if start_timeout is not None:
        check_seconds("start_timeout", start_timeout, above_zero=True)
        variables["KFIT_START_TIMEOUT"] = str(start_timeout)
    start_timeout_of({**os.environ, **variables})
    check_seconds("grace", grace)
    worker_resources = WorkerResources(
        cpus=cpus, gpus=gpus, resources=resources, placement=placement
    )
    if on == "local":
        worker_resources.refuse_any()
    call = pickling.pack_call(function, args, kwargs or {})
    settings = Settings.of_this_process(_CHIEF, loud=max_restarts != 0, join=join)
    with tempfile.TemporaryDirectory(prefix="kfit-launch-") as folder:
        call_files = CallFiles(folder)
        backend: Backend
        if on == "ray":
            from kfit.remote.ray_backend import RayBackend

            backend = RayBackend(call_files, settings, call, workers, worker_resources, variables)
        else:
            call_files.write(settings, call)
            backend = _on_this_host(call_files, workers, variables)
        supervisor = Supervisor(
            backend,
            grace=grace,
            max_restarts=max_restarts,
            hang_timeout=hang_timeout,
            hang_option="`hang_timeout`",
            explain=False,
        )
        place = "on Ray" if on == "ray" else "on this host"
        told = f"kfit: starting {workers} worker{'s' * (workers > 1)} {place}"
        print(told, file=sys.stderr, flush=True)
        exit_code = supervisor.run()
        if supervisor.stopped_by is None:
            return _outcome(call_files, exit_code, supervisor.failures)
    raise _stopped(supervisor.stopped_by)


def _on_this_host(call_files: CallFiles, workers: int, variables: Mapping[str, str]) -> Backend:
    def plan() -> list[TaskCommand]:
        call_files.forget_result()
        commands = local_commands(
            (), workers, {**os.environ, **variables}, started_by="`kfit.launch`"
        )
        return [replace(command, argv=call_files.argv(command.name)) for command in commands]

    return LocalBackend(plan, folder=str(call_files.folder))


def _outcome(call_files: CallFiles, exit_code: int, failures: Sequence[Failure]) -> Any:
    """Returns the result of the launched function, after all workers have ended.

    Args:
        call_files: The files in which the workers have recorded the result and errors.
        exit_code: The exit code of the whole run; 0 if all workers have succeeded.
        failures: How each failed attempt ended.

    Raises:
        LaunchError: If the run has failed, the function has not returned, or its result cannot be
            pickled or unpickled.
    """
    if exit_code:
        raise _failed(call_files, failures)
    packed = call_files.result()
    if packed is None:
        for raised in call_files.errors(len(failures)):  # those of the last attempt
            if raised.is_result:
                message = raised.summary.partition(": ")[2]
                raise LaunchError(message, task=raised.task, summary=raised.summary)
        summary = f"{_CHIEF} ended with exit code 0 before the function had returned"
        raise LaunchError(
            f"{summary}: it called `sys.exit` or `os._exit`; return from the function instead",
            task=_CHIEF,
            summary=summary,
        )
    try:
        return pickling.unpack_result(packed)
    except Exception as error:
        raise LaunchError(
            f"the result of {_CHIEF} cannot be unpickled here: {type(error).__name__}: "
            f"{message_of(error)}; return objects of types that this process can import: numbers, "
            "arrays, a History or a Keras model",
            task=_CHIEF,
            summary=message_of(error),
        ) from error


def _failed(call_files: CallFiles, failures: Sequence[Failure]) -> LaunchError:
    """Returns the error to raise for a failed launch; its first line names the original cause.

    Args:
        call_files: The files in which the workers have recorded their errors.
        failures: How each failed attempt ended, the last attempt last.
    """
    last = failures[-1]
    recorded = call_files.errors(last.generation)
    # The task that exited first is the cause of the failure. If it has recorded an error, the
    # cause is the earliest recorded error, which may be of another task: a worker that loses its
    # peer raises at once, while a process can take seconds to exit.
    first = recorded[0] if any(one.task == last.task for one in recorded) else None
    lines = []
    if first is not None:
        lines += [f"{first.task} raised {first.line}", ""]
        if first.is_printed:
            lines.append("Its traceback is printed above; `error.traceback` has it, too.")
        else:
            # Without the error itself at its end, which the first line tells.
            where = first.traceback.rstrip("\n").removesuffix(f"\n{first.line}")
            lines += [f"On {first.task}:", with_cells(where)]
    else:
        lines += [f"{last}{last.hint}"]
    others = [one for one in recorded if one is not first]
    if first is not None and others and all(one.line == first.line for one in others):
        lines += ["", "The other workers raised the same error."]
    elif others:
        lines += ["", "Errors of the other workers:"]
        lines += [f"  {one.task}: {one.line}" for one in others]
    if len(failures) > 1:
        earlier = [_line_of(call_files, failure) for failure in failures[-_MOST_FAILURES:]]
        lines += ["", "The workers were restarted. The cause of each failure:", *earlier]
    return LaunchError(
        "\n".join(lines),
        task=first.task if first else last.task,
        summary=first.summary if first else last.cause,
        traceback=first.traceback if first else "",
    )


def _line_of(call_files: CallFiles, failure: Failure) -> str:
    recorded = call_files.errors(failure.generation)
    raised = f"{recorded[0].task} raised {recorded[0].line}" if recorded else str(failure)
    return f"  attempt {failure.generation + 1}: {raised}"


def _stopped(signum: int) -> BaseException:
    """Sends this process the signal again that has stopped the launch.

    During the launch kfit has handled the signal, and has stopped the workers. Now the process's
    own handler gets it. This usually ends the process, or raises KeyboardInterrupt.

    Args:
        signum: The number of the signal.

    Returns:
        The exception to raise if this process goes on after the signal.
    """
    try:
        signal.raise_signal(signum)
    except KeyboardInterrupt as error:
        interrupt = error
    else:
        interrupt = KeyboardInterrupt()
    if signum == signal.SIGINT:
        say_nothing_of(interrupt)
        return interrupt
    text = f"stopped by {signal_name(signum)}"
    return LaunchError(text, summary=text)


def _check(
    function: object,
    args: object,
    kwargs: object,
    *,
    workers: object,
    max_restarts: object,
    on: str,
) -> None:
    """Checks some arguments of `launch` before any process is started.

    Raises:
        ValueError: If an argument is wrong, or this system is neither Linux nor macOS.
    """
    if os.name != "posix":
        raise ValueError("`kfit.launch` needs Linux or macOS: it uses POSIX process groups")
    if isinstance(function, str):
        raise ValueError(
            f"`function` is {function!r}; expected a function, such as one that trains. A script "
            f"is run from a shell: kfit run --workers {workers} {shlex.quote(function)}"
        )
    if not callable(function):
        raise ValueError(
            f"`function` is {function!r}; expected a function: write launch(train, args=(1, 2)), "
            "without calling it"
        )
    if not isinstance(args, list | tuple):
        raise ValueError(
            f"`args` is {args!r}; expected a tuple of the function's arguments, as in (x, y) or "
            "(x,)"
        )
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
    ):
        raise ValueError(
            f"`kwargs` is {kwargs!r}; expected a dict of arguments by their names, or None"
        )
    for name, number, least in (("workers", workers, 1), ("max_restarts", max_restarts, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"`{name}` is {number!r}; expected a whole number from {least} up")
    if on not in ("local", "ray"):
        raise ValueError(f"`on` is {on!r}; expected 'local', for workers on this host, or 'ray'")
