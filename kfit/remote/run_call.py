"""The program of a task that `kfit.launch` started: it makes one call, and notes what came of it.

It is run as a file, with the folder of its `CallFiles` and its own name as arguments.
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
"""128 + the number of SIGINT, as a shell has it."""


def main(folder: str, name: str) -> int:
    """Makes the call.

    Args:
        folder: The folder of the call files.
        name: This task's name.

    Returns:
        The exit code.
    """
    # A process of Ray blocks signals, and so would those that it starts.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:
        # Before anything else is imported: until now the first entry is this file's own folder.
        sys.path[:] = json.load(file)["path"]
    try:
        return _call(folder, name)
    except KeyboardInterrupt:
        return _INTERRUPTED  # by whoever launched, who knows
    except Exception as error:
        from kfit.remote.call_files import CallFiles

        sys.last_value = error  # as where Python ends because of it
        return _note(CallFiles(folder), name, error)


def _call(folder: str, name: str) -> int:
    import linecache

    from kfit.remote import pickling
    from kfit.remote.call_files import CallFiles

    call_files = CallFiles(folder)
    settings = call_files.settings()
    if settings.join:
        # Before TensorFlow's first operation; and unpickling a model is one.
        from kfit.distribute.joining import join_cluster

        join_cluster()
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
        # The work is done: to start it again would not make its result another one.
        _note(call_files, name, error, is_result=True)
    return 0


def _note(call_files: CallFiles, name: str, error: Exception, *, is_result: bool = False) -> int:
    import time
    import traceback

    from kfit.heartbeat import Heartbeat
    from kfit.heartbeat.errors import is_consequence
    from kfit.remote.call_files import ErrorRecord

    if not is_result:
        Heartbeat.of_environment().note_error(error)

    # From the function on: how it came to be called here is nobody's concern.
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename == __file__:
        first = first.tb_next
    shown = "".join(traceback.format_exception(type(error), error, first)).rstrip()
    call_files.put_error(
        ErrorRecord(
            task=name,
            generation=int(os.environ.get("KFIT_GENERATION", "0")),
            time=time.time(),
            summary="".join(traceback.format_exception_only(type(error), error)).strip(),
            traceback="" if is_result else shown,
            is_result=is_result,
            is_consequence=is_consequence(error),
        )
    )
    if call_files.settings().loud:
        print(shown, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
