"""The traceback that a user sees of an error that ends a task: without kfit's inner lines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

_CONFIGURATION_ERRORS = ("ValueError", "TypeError", "ClusterError", "CommandError")
_TOLD = "_kfit_told"


def of_user(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """Returns the traceback of an error of configuration up to the user's own call of kfit.

    An argument or a cluster that kfit refuses is not explained by the lines of kfit that refuse it.
    The traceback of any other error is returned unchanged, since the error may be kfit's own.

    Args:
        error: The error.
        traceback: Its traceback.
    """
    frames = list(_frames(traceback))
    names = {cls.__name__ for cls in type(error).__mro__}
    if not frames or not _is_of_kfit(frames[-1]) or names.isdisjoint(_CONFIGURATION_ERRORS):
        return traceback
    while frames and _is_of_kfit(frames[-1]):
        frames.pop()
    shown: TracebackType | None = None
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown or traceback


def say_nothing_of(error: BaseException) -> None:
    """Makes Python end the process without a traceback if this error does so.

    It is for an error whose reason the user has been told, such as Ctrl-C. The exit code is that of
    the error all the same.
    """
    setattr(error, _TOLD, True)
    before = sys.excepthook

    def show(
        kind: type[BaseException], shown: BaseException, traceback: TracebackType | None
    ) -> Any:
        return None if getattr(shown, _TOLD, False) else before(kind, shown, traceback)

    sys.excepthook = show


def _frames(traceback: TracebackType | None) -> Any:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_of_kfit(frame: TracebackType) -> bool:
    name = str(frame.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "kfit"
