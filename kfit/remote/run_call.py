"""The script that a worker of `kfit.launch` runs: it calls the launched function.

It is run as a file with two arguments: the folder from which the worker reads the function, and to
which it writes the result or error (`CallFiles`); and the worker's name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kfit.remote.call_files import CallFiles

_INTERRUPTED = 130
"""128 + the number of SIGINT: the exit code that a shell shows for a process that SIGINT ended."""


def main(folder: str, name: str) -> int:
    """Sets up this worker's process, calls the launched function, and writes its result or error.

    Args:
        folder: The folder of the files by which this process and the launching process exchange
            the function, its result and its errors.
        name: This worker's name, such as "worker 0".

    Returns:
        The exit code of this process.
    """
    # Ray's processes block signals, and a child process inherits that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:
        # Before any other import, because the first entry of `sys.path` is this file's folder now.
        sys.path[:] = json.load(file)["path"]
    os.environ["KFIT_STARTED_BY"] = "`kfit.launch`"
    try:
        return _call(folder, name)
    except KeyboardInterrupt:
        return _INTERRUPTED  # the launching process sent the signal, so it needs no record
    except SystemExit:
        raise
    except BaseException as error:
        from kfit.remote.call_files import CallFiles

        sys.last_value = error  # as Python does before it exits because of an uncaught error
        return _note(CallFiles(folder), name, error)


def _call(folder: str, name: str) -> int:
    import gc
    import linecache

    from kfit.remote import pickling
    from kfit.remote.call_files import CallFiles

    call_files = CallFiles(folder)
    settings = call_files.settings()
    if settings.join:
        # Join before TensorFlow's first operation; unpickling a model may already run one.
        from kfit.distribute.joining import join_cluster

        join_cluster()
    gc.freeze()  # as in `run_script.py`, which says why
    sys.argv[:] = settings.argv
    for source, lines in settings.sources.items():
        linecache.cache[source] = (sum(map(len, lines)), None, lines, source)
    function, args, kwargs = pickling.unpack_call(call_files.call())
    result = function(*args, **kwargs)
    if name != settings.chief:
        return 0
    try:
        call_files.put_result(pickling.pack_result(result))
    except pickling.NotPicklableError as error:
        # The function has done its work, and a restart would give the same result.
        _note(call_files, name, error, is_result=True)
    return 0


def _note(
    call_files: CallFiles, name: str, error: BaseException, *, is_result: bool = False
) -> int:
    import time
    import traceback

    from kfit.heartbeat import Heartbeat
    from kfit.heartbeat.errors import is_consequence, told_as_consequence
    from kfit.heartbeat.summaries import summary_of
    from kfit.heartbeat.tracebacks import was_told
    from kfit.remote.call_files import ErrorRecord

    if not is_result:
        Heartbeat.of_environment().note_error(error)

    # Leave out this file's frames: the user's traceback begins at the function.
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename == __file__:
        first = first.tb_next
    shown = "".join(traceback.format_exception(type(error), error, first)).rstrip()
    prints = call_files.settings().loud and not was_told(error)
    follows = is_consequence(error)
    call_files.put_error(
        ErrorRecord(
            task=name,
            generation=int(os.environ.get("KFIT_GENERATION", "0")),
            time=time.time(),
            summary="".join(traceback.format_exception_only(type(error), error)).strip(),
            line=summary_of(error),
            traceback="" if is_result else shown,
            is_result=is_result,
            is_consequence=follows,
            is_printed=was_told(error) or (prints and not follows),
        )
    )
    if prints:
        print(told_as_consequence(error) if follows else shown, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
