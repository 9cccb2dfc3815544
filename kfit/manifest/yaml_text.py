"""Writes plain data as YAML that means exactly that: one style, every doubtful text in quotes.

A quoted text is written as in JSON, of which YAML takes every escape that is used here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Texts that every YAML reads as themselves without quotes, unless they are one of its words.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
# What YAML does not count as printable, or takes for the end of a line.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def yaml_text(value: Any) -> str:
    """Returns data as a YAML document in block style.

    Args:
        value: Mappings, sequences, texts, whole numbers and booleans. Mappings and sequences are
            not empty.
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        lines = []
        for key, item in value.items():
            if isinstance(item, Mapping):
                lines += [f"{_scalar(key)}:", *("  " + line for line in _lines(item))]
            elif _is_sequence(item):
                lines += [f"{_scalar(key)}:", *_lines(item)]
            else:
                lines.append(f"{_scalar(key)}: {_scalar(item)}")
        return lines
    if _is_sequence(value):
        lines = []
        for item in value:
            first, *rest = _lines(item)
            lines += [f"- {first}", *("  " + line for line in rest)]
        return lines
    return [_scalar(value)]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _scalar(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
