"""The traceback that a user sees of an error: without the frames of kfit, Keras and TensorFlow.

Keras leaves out its own frames and those of TensorFlow, too, unless the program has called
`keras.config.disable_traceback_filtering()`. kfit leaves out its frames under the same condition.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from kfit.heartbeat.errors import chain

_P = ParamSpec("_P")
_R = TypeVar("_R")
_INNER = ("kfit", "keras", "tensorflow", "contextlib")
"""The packages whose frames tell the user nothing; `contextlib` stands between frames of kfit."""
_CONFIGURATION_ERRORS = ("ValueError", "TypeError")
_TOLD = "_kfit_told"
_SHORTENED = "_kfit_shortened"


def for_user(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of a public function: errors leave it with the traceback of `of_user`.

    So do the errors that they were raised from. Notebooks hide the frame of the decorator itself,
    as they do with every function that sets `__tracebackhide__`.
    """

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _shorten(error)
            raise  # Python 3.10 still raises it with the whole traceback

    return called


def each_for_user(function: Callable[_P, Iterator[_R]]) -> Callable[_P, Iterator[_R]]:
    """Decorator of a public generator function, whose errors come when it is iterated over.

    They leave the iterator as errors leave a function that `for_user` decorates.
    """

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        __tracebackhide__ = True
        try:
            yield from function(*args, **kwargs)
        except Exception as error:
            _shorten(error)
            raise

    return called


def of_user(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """Returns the traceback of an error without the frames of kfit, Keras and TensorFlow.

    What remains is the user's call of kfit, and the user's code that kfit has called, such as a
    callback. The traceback is returned unchanged in these cases:

    - kfit has no part in it;
    - it ends in kfit, and the error is none that kfit raises for the user, such as one of a wrong
      argument: the error may be a fault of kfit;
    - the program has called `keras.config.disable_traceback_filtering()`.

    Args:
        error: The error.
        traceback: Its traceback.

    Returns:
        The traceback; None if none of it is the user's.
    """
    frames = list(_frames(traceback))
    packages = [_package(frame) for frame in frames]
    if "kfit" not in packages or not _is_wanted():
        return traceback
    is_shortened = getattr(error, _SHORTENED, False)  # then it ends where kfit raised it again
    if packages[-1] == "kfit" and not (is_shortened or _is_for_user(error)):
        return traceback
    with contextlib.suppress(AttributeError):  # the class has `__slots__`
        setattr(error, _SHORTENED, True)
    shown: TracebackType | None = None
    for frame, package in zip(reversed(frames), reversed(packages), strict=True):
        if package not in _INNER:
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown


def say_nothing_of(error: BaseException) -> None:
    """Makes Python end the process without a traceback if this error does so.

    It is for an error that the user has been told already, such as Ctrl-C. The exit code is that of
    the error all the same.
    """
    with contextlib.suppress(AttributeError):  # the class has `__slots__`
        setattr(error, _TOLD, True)
    before = sys.excepthook

    def show(
        kind: type[BaseException], shown: BaseException, traceback: TracebackType | None
    ) -> Any:
        return None if getattr(shown, _TOLD, False) else before(kind, shown, traceback)

    sys.excepthook = show


def _shorten(error: BaseException) -> None:
    for each in chain(error):
        each.__traceback__ = of_user(each, each.__traceback__)


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _package(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_for_user(error: BaseException) -> bool:
    """Returns whether an error that kfit has raised tells the user what to change."""
    classes = type(error).__mro__
    own = type(error).__module__.partition(".")[0] == "kfit"
    return own or any(each.__name__ in _CONFIGURATION_ERRORS for each in classes)


def _is_wanted() -> bool:
    """Returns whether frames are left out; if Keras is not imported, they are."""
    keras = sys.modules.get("keras")
    return keras is None or bool(keras.config.is_traceback_filtering_enabled())
