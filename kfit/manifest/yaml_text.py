"""Writes plain data as YAML that every version of YAML reads in the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import yaml

# Strings that need no quotes. All others get quotes, since versions of YAML differ: 1e3, 0o17 and y
# are strings only in some of them.
_PLAIN = re.compile(r"(?![YyNn]$)[A-Za-z/][A-Za-z0-9_./-]*")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes an object in full wherever it occurs, without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> Any:
    style = None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def yaml_text(documents: Iterable[Any]) -> str:
    """Returns data as the text of YAML documents, with one line for each entry (block style).

    Args:
        documents: The documents, made of dicts, lists, strings, integers and booleans.
    """
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text
