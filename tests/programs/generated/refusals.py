"""What kfit refuses by name, with where that is documented: no failure, if it is rare."""

import re

LAYERS = "docs/same_numbers.md, What layers keep from step to step"
REFUSALS: list[tuple[str, str]] = [
    (r"is assigned a value in a step, .* nothing says what becomes of", LAYERS),
    (r"`aggregation` .*, which says what becomes of the replicas' values", LAYERS),
]


def is_refusal(kind: str, text: str) -> bool:
    """Whether an error is one that kfit promises to raise."""
    return kind == "ValueError" and any(re.search(pattern, text) for pattern, _ in REFUSALS)
