"""Joins the cluster, and then runs the user's program in this process; started by `kfit run`.

A single process, or an evaluator, has no cluster to join, and runs the program at once.

    python .../run_script.py [--keras-fit] [--verify] [--no-join] script.py args...
    python .../run_script.py [--keras-fit] [--verify] [--no-join] -m module args...

TensorFlow can connect a task to the other tasks only before the first operation of the process, so
this file joins the cluster before the first line of the user's program. From then on the process
looks as if it had been started by `python script.py args...` or `python -m module args...`: it has
the same `sys.argv`, `sys.path`, `__main__` and tracebacks. If the program starts processes by
`multiprocessing`, these import the user's program, and not this file.

If `kfit run --cpus` has set KFIT_CPUS, this file first splits the CPU into logical devices. With
`--keras-fit` it also calls `kfit.install()`, so that the program's `model.fit` is kfit's. With
`--no-join` it does not join the cluster. With `--verify`, which `kfit verify` gives, the program's
first `fit` verifies its model, and ends the process.
"""

# ruff: noqa: E402

import sys

_SAFE_PATH = getattr(sys.flags, "safe_path", False)
if __name__ == "__main__" and not _SAFE_PATH:
    # Remove this file's folder: modules in it, such as `inspect`, have names of Python's own.
    del sys.path[0]

# isort: split
import gc
import os
import pkgutil
import runpy
import signal
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Any


def main(words: list[str]) -> None:
    """Joins the cluster, and runs the user's program as the `__main__` of this process.

    Args:
        words: The options `--keras-fit`, `--verify` and `--no-join`, if they are given; then the
            script and its arguments, or `-m`, a module and its arguments.
    """
    options = []
    while words[0] in ("--keras-fit", "--verify", "--no-join"):
        options.append(words.pop(0))
    if "--verify" in options and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C ends it at once, wherever it is: there is nothing to save, and nothing to tell.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if words[0] == "-m":
        sys.argv[:] = ["-m", *words[2:]]
        _put_first(os.getcwd())
        _prepare(options)
        _run_module(words[1], alter_argv=True)
        return
    sys.argv[:] = words
    # Python runs a script under the path as it was given, made absolute but not normalized.
    path = words[0] if os.path.isabs(words[0]) else os.path.join(os.getcwd(), words[0])
    if pkgutil.get_importer(path) is not None:  # a zip file
        sys.path.insert(0, path)
        _prepare(options)
        _run_module("__main__", alter_argv=False)
        return
    _put_first(os.path.dirname(os.path.realpath(words[0])))
    code, loader = _read(path)  # before joining, so that a script that cannot be read fails at once
    _prepare(options)
    program = _new_main()
    program.__dict__.update(__file__=path, __loader__=loader)
    exec(code, program.__dict__)


def _put_first(folder: str) -> None:
    if not _SAFE_PATH:
        sys.path.insert(0, folder)


def _prepare(options: list[str]) -> None:
    import kfit
    from kfit.cluster.cluster import ClusterError
    from kfit.heartbeat.tracebacks import say_nothing_of

    if "KFIT_CPUS" in os.environ:
        from kfit.distribute.devices import split_cpu

        split_cpu(int(os.environ["KFIT_CPUS"]), "--cpus")
    try:
        if "--no-join" not in options:
            kfit.join_cluster()
    except ClusterError as error:
        raise SystemExit(f"kfit: error: {error}") from None
    except KeyboardInterrupt as interrupt:
        # No line of the user's has run, so a traceback would tell the user nothing.
        say_nothing_of(interrupt)
        raise
    if "--keras-fit" in options:
        kfit.install()
    if "--verify" in options:
        from kfit.commands.verified_fit import verify_first_fit

        verify_first_fit()
    # What was imported stays until the end. Without this, Python looks at all of it again whenever
    # it collects garbage, and for a second of processor time when the process ends, while a run
    # that starts its tasks again waits.
    gc.freeze()


def _read(path: str) -> tuple[CodeType, Any]:
    """Reads a script, or a compiled script (`.pyc`).

    Args:
        path: The path of the script.

    Returns:
        The code to execute; and the loader, which becomes the `__loader__` of the program.
    """
    if path.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", path)
        code = compiled.get_code("__main__")
        assert code is not None
        return code, compiled
    source = SourceFileLoader("__main__", path)
    return compile(source.get_data(path), path, "exec", dont_inherit=True), source


def _run_module(name: str, *, alter_argv: bool) -> None:
    _new_main()
    # This function is private, but `python -m` calls it. The public functions of `runpy` remove
    # `__main__` when they return, before the program's threads and exit functions have run.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]  # noqa: SLF001


def _new_main() -> ModuleType:
    """Replaces the module `__main__`, which is this file, by a new module for the user's program.

    The new module has the attributes that Python sets when it starts a program.
    """
    program = ModuleType("__main__")
    given = {name: value for name, value in globals().items() if name.startswith("__")}
    program.__dict__.update(given, __doc__=None)
    if "__annotations__" in given:
        program.__annotations__ = {}
    sys.modules["__main__"] = program
    return program


def _is_left_to_supervisor(error: BaseException) -> bool:
    """Returns whether an error is an interrupt whose traceback is recorded for the supervisor.

    The supervisor prints it, unless it has passed the interrupt on. When the task has a heartbeat,
    which is so from its first call of kfit on, that records it.
    """
    heartbeat = os.environ.get("KFIT_HEARTBEAT")
    if not heartbeat:
        return False
    from kfit.heartbeat.unprinted import in_short, is_interrupt

    return is_interrupt(error) and in_short(heartbeat, error, error.__traceback__) == ""


def _begin_traceback_at_the_program() -> None:
    """Makes Python leave out this file's lines when it prints the error that ends the process.

    So the user sees the same traceback as without `kfit run`. That of Ctrl-C is left to the
    supervisor, also while the program still imports Keras.
    """
    show = sys.excepthook

    def without_this_file(kind: Any, error: BaseException, traceback: Any) -> None:
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        error = error.with_traceback(traceback)
        if show is not sys.__excepthook__ or not _is_left_to_supervisor(error):
            show(kind, error, traceback)

    sys.excepthook = without_this_file


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BaseException:
        _begin_traceback_at_the_program()
        raise
