"""The one line of an error's message that says what went wrong.

TensorFlow and Keras begin many messages with a headline that is the same for all errors, such as
"Graph execution error:". The reason follows many lines later, after the place in the graph.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from itertools import takewhile

_HEADLINE = re.compile(
    r"Graph execution error:"
    r"|Detected at node .* defined at \(most recent call last\):"
    r"|Exception encountered when calling "
    r"|in user code:"
    r"|\d+ root error\(s\) found\."
    r"|<stack traces unavailable>"
)
# Of several root errors, TensorFlow numbers each and puts its code before it.
_ROOT_ERROR = re.compile(r"\s+\(\d+\) [A-Z_]+: +(.*)")
# TensorFlow's own error around one that Python code in a graph has raised.
_AROUND_ANOTHER = re.compile(r"^(?:[\w.]+\.)?(?:UnknownError|InternalError): (?=[A-Z]\w*Error: )")
_MODULE = re.compile(r"^(?:\w+\.)+(?=[A-Z])")
_MOST_LISTED = 3
_COLORS = re.compile(r"\x1b\[[\d;]*m")
# What TensorFlow adds to tell in which node of the graph, in which part of a tf.data pipeline, and
# in which operation the error arose.
_PLACE_BEFORE = re.compile(
    r"(?:\{\{function_node [^}]*\}\} *"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: +)+"
)
_PLACE_AFTER = re.compile(r"\s*(?:\[\[\{\{node .*|\[Op:[^\]]*\].*)$")


# How Keras begins the list of the arguments that a failed layer has got, which ends its message.
_ARGUMENTS = "Arguments received by "
_OWN_ERROR = "kfit: error: "
_ERROR_LINE = re.compile(r"(?:\w+\.)*([A-Za-z_]\w*(?:Error|Exception)): ")


def message_of(error: BaseException) -> str:
    """Returns the message of an error, also of one whose `__str__` fails itself.

    Then it is the text that Python prints in its place.
    """
    try:
        return str(error)
    except Exception:  # the user's own code
        return "<exception str() failed>"


def summary_of(error: BaseException) -> str:
    """Returns the class and the message of an error on one line.

    Of a message with a headline of TensorFlow or Keras, the line with the reason is taken; of any
    other message the first line.
    """
    name = type(error).__name__
    first, *others = _COLORS.sub("", message_of(error)).strip().splitlines() or [""]
    if _HEADLINE.match(first):
        reason = _reason(first, others)
        # Python that TensorFlow traces puts the class before the reason.
        named = reason if reason.startswith(f"{name}: ") else f"{name}: {reason}"
        return _AROUND_ANOTHER.sub("", named)
    # The lines of the sources, which Python would read for the causes, are not needed.
    told = traceback.TracebackException(type(error), error, None, lookup_lines=False)
    lines = "".join(told.format_exception_only()).strip().splitlines()
    lines[0] = _AROUND_ANOTHER.sub("", lines[0])
    # For a SyntaxError, Python first prints the file and the line.
    at = next((i for i, line in enumerate(lines) if name in line.partition(":")[0]), 0)
    lines[at] = lines[at].removeprefix(f"{type(error).__module__}.")
    return _without_place(_with_its_list(lines[at:]))


def summary_of_lines(lines: Sequence[str]) -> str:
    """Returns the line that says what went wrong, of the last lines that a failed process printed.

    Usually it is the last one. But errors of kfit may end in advice, and those of Keras in a list
    of arguments.

    Args:
        lines: The lines; at least one.
    """
    plain = [_COLORS.sub("", line) for line in lines]
    for index, line in reversed(list(enumerate(plain))):
        if line.startswith(_OWN_ERROR):
            return _with_its_list(plain[index:])
    if not any(line.startswith(_ARGUMENTS) for line in plain) or not plain[-1].startswith(" "):
        return lines[-1]
    for index, line in reversed(list(enumerate(plain))):
        if found := _ERROR_LINE.match(line):
            first, others = line[found.end() :], plain[index + 1 :]
            return f"{found[1]}: {_reason(first, others) if _HEADLINE.match(first) else first}"
    return lines[-1]


def is_among(summary: str, lines: Sequence[str]) -> bool:
    """Returns whether a process has printed what an error was summed up to.

    Args:
        summary: What `summary_of` or `summary_of_lines` has returned, perhaps cut off.
        lines: The lines that the process has printed.
    """
    text = summary.removesuffix(" ...")
    plain = [_MODULE.sub("", _COLORS.sub("", line)) for line in lines]
    # kfit prints the error that another task's failure has caused without its class.
    own = _ERROR_LINE.sub("", text, count=1)
    return any(
        text in line
        or (line.endswith(":") and text.startswith(line))
        or (line.startswith("kfit: ") and line.endswith(f": {own}"))
        for line in plain
    )


def as_clause(text: str) -> str:
    """Returns a sentence as it can stand before a semicolon or a comma, without its full stop."""
    return text if text.endswith("..") else text.removesuffix(".")


def _with_its_list(lines: Sequence[str]) -> str:
    """Returns the first line; if it ends in a colon, with the indented lines that follow it."""
    first, *others = lines
    listed = [line.strip() for line in takewhile(lambda line: line[:1] == " ", others)]
    if not first.endswith(":") or not listed:
        return first
    more = ["..."] if len(listed) > _MOST_LISTED else []
    return f"{first} {'; '.join([*listed[:_MOST_LISTED], *more])}"


def _reason(headline: str, lines: list[str]) -> str:
    """Returns the line of a message that gives the reason; the headline if there is none."""
    if headline.startswith("in user code:"):
        # The stack of the user's code is indented as a whole, and the reason ends it, but for the
        # list of the arguments of a layer.
        told = takewhile(lambda line: not line.strip().startswith(_ARGUMENTS), lines)
        return next((line.strip() for line in reversed(list(told)) if line.strip()), headline)
    for line in lines:
        if root := _ROOT_ERROR.match(line):
            return _without_place(root[1])
        # The lines of stacks and of nodes are indented.
        is_reason = line.strip() and not line[0].isspace() and not _HEADLINE.match(line)
        if is_reason and (reason := _without_place(line)):
            return reason
    return headline


def _without_place(line: str) -> str:
    return _PLACE_AFTER.sub("", _PLACE_BEFORE.sub("", line)).strip()
