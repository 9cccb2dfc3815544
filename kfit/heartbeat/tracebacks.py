"""What a user sees of an error or a warning: the user's lines, and not those of kfit and Keras.

Keras leaves out its own frames and those of TensorFlow, too, unless the program has called
`keras.config.disable_traceback_filtering()`. kfit leaves out its frames under the same condition.
A warning names the line of the user's that has called kfit, as Python's own functions do.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from kfit.heartbeat.errors import chain, is_marked, mark
from kfit.heartbeat.summaries import message_of, summary_of
from kfit.heartbeat.warned import is_told_by_another
from kfit.lazy import closest_name

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)
_INNER = ("kfit", "keras", "tensorflow", "contextlib")
"""The packages whose frames tell the user nothing; `contextlib` stands between frames of kfit."""
_CONFIGURATION_ERRORS = ("ValueError", "TypeError")
_NAMES_AN_ARGUMENT = re.compile(r"`\w")
_UNEXPECTED = re.compile(r"\S+\(\) got an unexpected keyword argument '(\w+)'")
_IDENTIFIER = re.compile(r"Could not interpret (loss|metric|optimizer) identifier: (\w+)")
_MODULES = {"loss": "losses", "metric": "metrics", "optimizer": "optimizers"}
"""The modules of Keras whose names stand for losses, metrics and optimizers."""
_PUBLIC = ("kfit", "kfit.callbacks", "kfit.checkpoint", "kfit.distribute")
"""The modules whose names users know."""
_BETWEEN = (*_INNER, "threading", "concurrent", "runpy")
"""The packages whose lines a warning does not name."""
_OF_SCRIPTS = ("<module>", "<cell line: ")
"""Names of code outside of functions; the second one is that of a cell in versions of IPython."""
_FOLDER = os.path.dirname(os.path.dirname(__file__))
_of_thread = threading.local()
_TOLD = "_kfit_told"
_SHORTENED = "_kfit_shortened"


def for_user(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of a public function: errors leave it with the traceback of `of_user`.

    So do the errors that they were raised from. Notebooks hide the frame of the decorator itself,
    as they do with every function that sets `__tracebackhide__`. If the user has misspelled the
    name of an argument, the error names the one that was meant.
    """

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            _shorten(error)
            if isinstance(error, TypeError):
                _name_what_was_meant(error, called, kwargs)
            if isinstance(error, ValueError):
                _name_what_keras_has(error)
            raise  # Python 3.10 still raises it with the whole traceback

    return called


def made_for_user(cls: _Class) -> _Class:
    """Decorator of a public class: errors leave its constructor as they leave `for_user`."""
    setattr(cls, "__init__", for_user(vars(cls)["__init__"]))  # noqa: B010  mypy refuses to assign
    return cls


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
      argument: the error may be a fault of kfit. So a second Ctrl-C, which stops at once, shows
      where kfit was, but the first one, which stops after a step, does not;
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
    is_shortened = is_marked(error, _SHORTENED)  # then it ends where kfit raised it again
    if packages[-1] == "kfit" and not (is_shortened or _is_for_user(error)):
        return traceback
    mark(error, _SHORTENED)
    shown: TracebackType | None = None
    for frame, package in zip(reversed(frames), reversed(packages), strict=True):
        if package not in _INNER:
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning at the line of the user's code that has called kfit.

    Of the tasks of `kfit run` the first one that has the same warning issues it. If no code of the
    user's runs in this thread, it is issued at the place of `warned_at`, or else at a line of this
    file.

    Args:
        message: The text of the warning.
        category: The class of the warning.
    """
    here = inspect.currentframe()
    assert here is not None  # CPython has frames
    place = place_of_caller() or getattr(_of_thread, "place", None)
    place = place or Place(here.f_code.co_filename, here.f_lineno, here.f_globals)
    key = (message, category, place.line)
    if (place.file, *key) in _shown or is_told_by_another(f"{place.file}:{place.line}: {message}"):
        return
    registry = place.names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, category, place.file, place.line, place.names.get("__name__"), registry
    )
    # Python adds what it has shown and will not show again, as it does by default.
    if _calls and key in registry:
        _shown.add((place.file, *key))


_calls: list[object] = []  # those that run in `warning_once`, in all threads
_shown: set[tuple[Any, ...]] = set()


@contextmanager
def warning_once() -> Iterator[None]:
    """Context of a call in which no warning of kfit is shown twice, in any thread.

    Python shows a warning once for each line, but begins anew whenever a filter of warnings is
    changed, as libraries do for a moment. A step of a long training may be traced again after that.
    Filters that show every warning, or none, work as everywhere.
    """
    call = object()
    _calls.append(call)
    try:
        yield
    finally:
        _calls.remove(call)
        if not _calls:
            _shown.clear()


class Place(NamedTuple):
    """A line that a warning names.

    Attributes:
        file: The path of its file.
        line: Its number.
        names: The global names of its module.
    """

    file: str
    line: int
    names: dict[str, Any]


def place_of(function: Callable[..., Any]) -> Place | None:
    """Returns the place for the warnings that threads issue about a function.

    It is where the function is defined, if it is the user's; or else the line of the user's code
    that has called kfit in this thread. None if no code of the user's runs in it.

    Args:
        function: The function, such as a model's `train_step`.
    """
    plain: Any = inspect.unwrap(function)
    code, names = getattr(plain, "__code__", None), getattr(plain, "__globals__", {})
    if code is not None and _package_of_module(names) not in _BETWEEN:
        return Place(code.co_filename, code.co_firstlineno, names)
    return place_of_caller()


@contextlib.contextmanager
def warned_at(place: Place | None) -> Iterator[None]:
    """Context in which warnings of this thread name a place, if no code of the user's runs in it.

    TensorFlow traces the steps of replicas in threads of its own.
    """
    before = getattr(_of_thread, "place", None)
    _of_thread.place = place
    try:
        yield
    finally:
        _of_thread.place = before


def place_of_caller() -> Place | None:
    """Returns the line of the user's code that has called kfit in this thread, if there is one."""
    frame = next(_frames_of_user(), None)
    return frame and Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def lines_of_callers() -> tuple[tuple[str, int], ...]:
    """Returns the lines of the user's code that have led to this call of kfit, the innermost first.

    In a loop they are the same each time.
    """
    return tuple((frame.f_code.co_filename, frame.f_lineno) for frame in _frames_of_user())


def code_of_callers() -> tuple[tuple[CodeType, int], ...]:
    """Returns the calls in the user's code that have led here: code, and the instruction in it.

    The innermost is the first one. The last one is in the script, or in a cell of a notebook. Code
    that is compiled again, as that of a cell, is equal if its text is.
    """
    found = []
    for frame in _frames_of_user():
        found.append((frame.f_code, frame.f_lasti))
        if frame.f_code.co_name.startswith(_OF_SCRIPTS):
            break
    return tuple(found)


def run_of_program() -> Any:
    """Returns what tells one run of the program from another in the same process.

    In a notebook that is the number of the execution of the cell. Elsewhere it is the code of the
    script, or of the line of an interactive Python, which is compiled for each run.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        return shell.execution_count
    codes = (frame.f_code for frame in _frames_of_user())
    return next((id(code) for code in codes if code.co_name.startswith(_OF_SCRIPTS)), None)


def with_callers(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback that begins with the user's lines which have called kfit.

    That of an error which kfit prints where it was caught begins only there.

    Args:
        traceback: The traceback of an error that this thread has caught.
    """
    for frame in _frames_of_user():
        traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno)
    return traceback


def _frames_of_user() -> Iterator[FrameType]:
    """Yields the frames of the user's code that run in this thread, the innermost first.

    The program of kfit that runs scripts is none of it, though its module is `__main__`.
    """
    frame = inspect.currentframe()
    while frame is not None:
        is_ours = frame.f_code.co_filename.startswith(_FOLDER)
        if _package_of(frame) not in _BETWEEN and not is_ours:
            yield frame
        frame = frame.f_back


def say_nothing_of(error: BaseException) -> None:
    """Makes Python end the process without a traceback if this error does so.

    It is for an error that the user has been told already, such as Ctrl-C. The exit code is that of
    the error all the same.
    """
    mark(error, _TOLD)
    before = sys.excepthook

    def show(
        kind: type[BaseException], shown: BaseException, traceback: TracebackType | None
    ) -> Any:
        return None if is_marked(shown, _TOLD) else before(kind, shown, traceback)

    sys.excepthook = show


def was_told(error: BaseException) -> bool:
    """Returns whether the user has been told an error already (see `say_nothing_of`)."""
    return is_marked(error, _TOLD)


def _shorten(error: BaseException) -> None:
    errors = chain(error)
    for each in errors:
        each.with_traceback(of_user(each, each.__traceback__))
    for each in errors:
        if _repeats(each, each.__cause__):
            BaseException.__setattr__(each, "__cause__", None)  # it is the context, still
            mark(each, "__suppress_context__")
        elif all(earlier.__traceback__ is None for earlier in chain(each.__context__)):
            mark(each, "__suppress_context__")  # Keras has tried another way after these


def _repeats(error: BaseException, cause: BaseException | None) -> bool:
    """Returns whether an error says all that its cause says, in which no code of the user's ran."""
    if cause is None or cause.__traceback__ is not None or not _is_for_user(error):
        return False
    reason = summary_of(cause).partition(": ")[2]
    return bool(reason) and reason in message_of(error)


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _package(frame: TracebackType) -> str:
    return _package_of(frame.tb_frame)


def _package_of(frame: FrameType) -> str:
    return _package_of_module(frame.f_globals)


def _package_of_module(names: Mapping[str, Any]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


def _is_for_user(error: BaseException) -> bool:
    """Returns whether an error that kfit has raised tells the user what to change.

    So do errors of wrong arguments, and all that name an argument or a function in backticks. An
    interrupt that was told (`say_nothing_of`) is no fault of kfit's, either.
    """
    classes = type(error).__mro__
    return (
        type(error).__module__.partition(".")[0] == "kfit"
        or is_marked(error, _TOLD)
        or any(each.__name__ in _CONFIGURATION_ERRORS for each in classes)
        or _NAMES_AN_ARGUMENT.search(message_of(error)) is not None
    )


def _name_what_was_meant(
    error: TypeError, function: Callable[..., Any], given: Mapping[str, Any]
) -> None:
    """Adds the argument that was meant to the error of one that a public function does not have.

    Args:
        error: The error, which is changed in place.
        function: The function that the user has called.
        given: The keyword arguments of the call.
    """
    found = _UNEXPECTED.search(message_of(error))
    parameters = inspect.signature(function).parameters
    if found is None or found[1] not in given or found[1] in parameters:
        return
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [name for name, each in parameters.items() if each.kind in kinds and name != "self"]
    of_class = _arguments_of_class(function)
    alike = closest_name(found[1], [*known, *of_class])
    takes_others = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if alike is None and takes_others:
        return
    hint = "" if alike is None else f". Did you mean {alike!r}?"
    if alike is not None and alike not in known:
        hint = f". {alike!r} is an argument of {_full_name(function).rpartition('.')[0]}(...)"
    says = f"got an unexpected keyword argument {found[1]!r}"
    error.args = (f"{_full_name(function)}() {says}{hint}",)


def _name_what_keras_has(error: ValueError) -> None:
    """Adds the name that was meant to Keras' error of an unknown loss, metric or optimizer.

    Args:
        error: The error, which is changed in place.
    """
    found = _IDENTIFIER.fullmatch(message_of(error))
    if found is None:
        return
    module = getattr(sys.modules["keras"], _MODULES[found[1]])
    known = [name for name in dir(module) if not name.startswith("_")]
    if found[1] == "metric":
        known.append("accuracy")
    if found[1] == "optimizer":
        known = [name.lower() for name in known]
    words = set(found[2].split("_"))
    alike = closest_name(found[2], [n for n in known if words <= set(n.split("_"))] or known)
    if alike is not None:
        error.args = (f"{found[0]}. Did you mean {alike!r}?",)


def _arguments_of_class(function: Callable[..., Any]) -> list[str]:
    """Returns the arguments with which objects are made whose public method is called."""
    owner, _, name = function.__qualname__.partition(".")
    cls = inspect.unwrap(function).__globals__.get(owner) if name else None
    if not isinstance(cls, type) or owner.startswith("_") or name == "__init__":
        return []
    return [each for each in inspect.signature(cls).parameters if each != "self"]


def _full_name(function: Callable[..., Any]) -> str:
    """Returns the name by which a user calls a public function, such as "kfit.Trainer.fit"."""
    name = function.__qualname__.removesuffix(".__init__")
    if name.startswith("_"):  # a method of a base class that is not public
        return name.rpartition(".")[2]
    first = name.partition(".")[0]
    public = {each: getattr(sys.modules.get(each), "__all__", ()) for each in _PUBLIC}
    return next((f"{each}.{name}" for each in _PUBLIC if first in public[each]), name)


def _is_wanted() -> bool:
    """Returns whether frames are left out; if Keras is not imported, they are."""
    keras = sys.modules.get("keras")
    return keras is None or bool(keras.config.is_traceback_filtering_enabled())
