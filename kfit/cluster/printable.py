"""Makes texts of other processes safe to print."""

from __future__ import annotations

_LONGEST = 1000


def printable(text: str) -> str:
    """Returns a text that another process has sent, such that it is safe to print.

    The text is cut to 1,000 characters. Line ends and control characters are escaped: they could
    change what the terminal shows, or make the text look like a message of kfit itself.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_LONGEST])
