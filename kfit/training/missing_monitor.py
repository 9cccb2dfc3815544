"""Adds to Keras' error of a `monitor` that does not exist which names there are."""

from __future__ import annotations

import re
from typing import Any

from kfit.heartbeat.summaries import message_of
from kfit.lazy import closest_name

_UNKNOWN = re.compile(r"callback received monitor=(.+?), but Keras isn't able to")
"""What Keras says of a metric whose better direction it does not know, such as a misspelled one."""


def name_missing_monitor(error: ValueError, logs: Any) -> None:
    """Adds to an error of Keras which values there are, if the monitored one is not among them.

    Keras' callbacks, such as EarlyStopping, ask for a `mode` then, which would not help.

    Args:
        error: The error of a hook, which is changed in place if it is of this kind.
        logs: The last argument of the hook: the values by their names.
    """
    message = message_of(error)
    found = _UNKNOWN.search(message)
    if found is None or not isinstance(logs, dict) or found[1] in logs:
        return
    meant = closest_name(found[1], logs)
    hint = f" Did you mean {meant!r}?" if meant else ""
    error.args = (f"{message} There is no {found[1]!r}: the logs have {sorted(logs)}.{hint}",)
