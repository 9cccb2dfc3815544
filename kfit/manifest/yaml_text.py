"""Writes plain data as YAML that means the same to every reader of YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import yaml

# Versions of YAML differ in what else is a text without quotes: 1e3, 0o17 and y are none to some.
_PLAIN = re.compile(r"(?![YyNn]$)[A-Za-z/][A-Za-z0-9_./-]*")


class _Dumper(yaml.SafeDumper):
    """Repeats what occurs twice, where YAML would refer to the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> Any:
    style = None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def yaml_text(documents: Iterable[Any]) -> str:
    """Returns data as YAML documents in block style.

    Args:
        documents: Each of dictionaries, lists, texts, whole numbers and booleans.
    """
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text
