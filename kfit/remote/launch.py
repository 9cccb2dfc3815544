"""`kfit.launch`: a Python function on the workers of a cluster, and its result back here.

check the arguments, pack the call       nothing has been started yet
Supervisor.run                           the tasks run `run_call.py`: on this host, or on Ray
result, or LaunchError                   what the chief returned, or what ended the run
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from kfit.argument_checks import check_seconds
from kfit.remote import pickling
from kfit.remote.call_files import CallFiles, Settings
from kfit.remote.launch_error import LaunchError
from kfit.remote.notebook import with_cells
from kfit.remote.resources import WorkerResources, environment_checked
from kfit.supervisor.backend import Backend, LocalBackend
from kfit.supervisor.local import local_commands
from kfit.supervisor.process_group import TaskCommand
from kfit.supervisor.report import Failure
from kfit.supervisor.signals import signal_name
from kfit.supervisor.supervisor import DEFAULT_GRACE, Supervisor

_CHIEF = "worker 0"
# Of a run that was started again very often the latest tell enough.
_MOST_FAILURES = 20


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
    """Calls a function on every worker of a cluster, and returns what it returned on the chief.

    Every worker is a process of its own, which joins the cluster before the function is called. So
    it works in a notebook whose TensorFlow has run long since.
    What the workers print is printed here as it comes, each line with its worker's name.
    Interrupting (Ctrl-C, the notebook's stop button) stops the workers, and so does the end of this
    process.

    A function of a notebook's cell or of `__main__` travels by value, with the variables it refers
    to; others are imported by the workers, as is everything that they import.

    Args:
        function: What to call, with the same arguments on every worker.
        args: Its arguments.
        kwargs: Its arguments by name.
        workers: How many workers; one is no cluster.
        max_restarts: How often in a row, without progress, the workers are started again after one
            of them has failed, hung or been killed: `function` is called again from its beginning,
            and `kfit.callbacks.BackupAndRestore` in it goes on where training stopped.
        hang_timeout: Seconds without progress after which a worker in `fit`, `evaluate` or
            `predict` counts as hung; `"auto"` learns them from where it is and its rhythm, None
            never calls a hang.
        grace: Seconds that workers have to stop before they are killed.
        start_timeout: Seconds to wait for all workers to come up; None is 60 of them.
        join: Whether each worker joins the cluster before `function` is called. False leaves it to
            `function`, as to one that sets up TensorFlow's devices first: it calls
            `kfit.join_cluster()` itself, or makes its Trainer before any model.
        env: Environment variables of the workers, over those of this process.
        on: Where the workers run: `"local"`, as processes of this host, or `"ray"`.
        cpus: CPUs that a worker takes of Ray; None is 1. This and what follows are for Ray only.
        gpus: GPUs that a worker takes; None is none.
        resources: Other resources that a worker takes, by their name in Ray.
        placement: Ray's strategy of placing the workers on nodes: `"PACK"` (the default),
            `"SPREAD"`, `"STRICT_PACK"` or `"STRICT_SPREAD"`.

    Returns:
        What `function` returned on the chief, worker 0. Keras' callbacks in it, as the History of
        `fit`, come without their model.

    Raises:
        ValueError: An argument cannot be right, or cannot be sent to the workers.
        LaunchError: The function raised on a worker, a worker was killed or hung, and there was no
            restart left; or what it returned cannot be sent back.
        KeyboardInterrupt: The launch was interrupted; all workers have stopped.
    """
    _check(function, args, kwargs, workers=workers, max_restarts=max_restarts, on=on)
    variables = environment_checked(env)
    if start_timeout is not None:
        check_seconds("start_timeout", start_timeout, above_zero=True)
        variables["KFIT_START_TIMEOUT"] = str(start_timeout)
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
        exit_code = supervisor.run()
        if supervisor.stopped_by is None:
            return _outcome(call_files, exit_code, supervisor.failures)
    raise _stopped(supervisor.stopped_by)


def _on_this_host(call_files: CallFiles, workers: int, variables: Mapping[str, str]) -> Backend:
    def plan() -> list[TaskCommand]:
        commands = local_commands((), workers, {**os.environ, **variables})
        return [replace(command, argv=call_files.argv(command.name)) for command in commands]

    return LocalBackend(plan, folder=str(call_files.folder))


def _outcome(call_files: CallFiles, exit_code: int, failures: Sequence[Failure]) -> Any:
    """Returns what the function returned.

    Raises:
        LaunchError: It did not return, or what it returned cannot come back.
    """
    if exit_code:
        raise _failed(call_files, failures)
    packed = call_files.result()
    if packed is None:
        for raised in call_files.errors():
            if raised.is_result:
                message = raised.summary.partition(": ")[2]
                raise LaunchError(message, task=raised.task, summary=raised.summary)
        summary = f"{_CHIEF} ended well before the function had returned"
        raise LaunchError(
            f"{summary}: it called `sys.exit` or `os._exit`; return from the function instead",
            task=_CHIEF,
            summary=summary,
        )
    try:
        return pickling.unpack_result(packed)
    except Exception as error:
        raise LaunchError(
            f"what {_CHIEF} returned cannot be made here: {type(error).__name__}: {error}; return "
            "what this process can import: numbers, arrays, a History or a Keras model",
            task=_CHIEF,
            summary=str(error),
        ) from error


def _failed(call_files: CallFiles, failures: Sequence[Failure]) -> LaunchError:
    """Returns the error of a run that has failed, with the first cause on its first line."""
    last = failures[-1]
    noted = call_files.errors(last.generation)
    # Who exits first is to blame. If it raised, the others may have raised before: a worker without
    # its peer fails within a moment, while a process can take seconds to exit.
    first = noted[0] if any(one.task == last.task for one in noted) else None
    lines = []
    if first is not None:
        lines += [f"{first.task} raised {first.summary.splitlines()[0]}", ""]
        lines += [f"On {first.task}:", with_cells(first.traceback)]
    else:
        lines += [f"{last}{last.hint}"]
    later = [f"  {one.task}: {one.summary.splitlines()[0]}" for one in noted if one is not first]
    if later:
        lines += ["", "What the others raised then:", *later]
    if len(failures) > 1:
        earlier = [_line_of(call_files, failure) for failure in failures[-_MOST_FAILURES:]]
        lines += ["", "It was started again; what ended each generation:", *earlier]
    return LaunchError(
        "\n".join(lines),
        task=first.task if first else last.task,
        summary=first.summary if first else last.cause,
        traceback=first.traceback if first else "",
    )


def _line_of(call_files: CallFiles, failure: Failure) -> str:
    noted = call_files.errors(failure.generation)
    raised = f"{noted[0].task} raised {noted[0].summary.splitlines()[0]}" if noted else str(failure)
    return f"  generation {failure.generation}: {raised}"


def _stopped(signum: int) -> BaseException:
    """Does with a signal what it would have done had the launch not taken it.

    Returns:
        What to raise if this process goes on.
    """
    signal.raise_signal(signum)
    if signum == signal.SIGINT:
        return KeyboardInterrupt()
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
    """Refuses what cannot be right, before anything is started."""
    if os.name != "posix":
        raise ValueError("`kfit.launch` needs Linux or macOS: it uses POSIX process groups")
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
