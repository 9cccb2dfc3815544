"""`StatusLines`: what the tasks of a run are doing, where no line can be rewritten for good."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_NUMBER = re.compile(r"\d+")
# The least seconds between two lines that differ only in their numbers.
_INTERVAL = 10.0


class StatusLines:
    """Lines that say what the tasks are doing in a notebook, a file or a pipe.

    Such a place, if it is stored or converted, shows each state of a rewritten line as a line of
    its own. So there are few states here, each of them a whole line.

    Args:
        write: A function that writes one line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._words = ""
        self._said_at = 0.0

    def say(self, text: str) -> None:
        """Writes the text if it says something new, or if it was last written long ago.

        Args:
            text: What the tasks are doing, such as "worker 0 is starting (2 s)"; empty to say
                nothing. Numbers, such as these seconds, are nothing new.
        """
        words, now = _NUMBER.sub("", text), time.monotonic()
        if text and (words != self._words or now - self._said_at >= _INTERVAL):
            self._words, self._said_at = words, now
            self._write(text)
