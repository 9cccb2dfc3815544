"""The kinds of values that a step computes from a replica's examples."""

from __future__ import annotations

from typing import Literal

Kind = Literal["rows", "mean", "sum", "count", "inverse", "other", "unknown"]
"""How a value depends on the examples of a replica:

    rows     one value for each example
    mean     a mean over the examples
    sum      a sum over the examples
    count    the number of examples, or a multiple of it
    inverse  a constant divided by the number of examples
    other    anything else that is computed from the examples
    unknown  the graph does not show it
"""
Kinds = frozenset[Kind]

NONE: Kinds = frozenset()
SUM: Kinds = frozenset({"sum"})
COUNT: Kinds = frozenset({"count"})
INVERSE: Kinds = frozenset({"inverse"})
