"""What kfit refuses by name, with where that is documented: no failure, if it is rare."""

import re

REFUSALS: list[tuple[str, str]] = []


def is_refusal(kind: str, text: str) -> bool:
    """Whether an error is one that kfit promises to raise."""
    return kind == "ValueError" and any(re.search(pattern, text) for pattern, _ in REFUSALS)
