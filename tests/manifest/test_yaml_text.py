"""Whatever is written, YAML reads the same."""

import json
from typing import Any

import pytest
import yaml

from kfit.manifest.yaml_text import yaml_text

DOUBTFUL = ["y", "N", "1", "1e3", "0x1", "0o17", "12:30:45", "2020-01-01", "~", ".inf", "<<", "="]
NASTY = [
    "yes", "No", "null", "true", "- a", "a: b", "# c", "'", '"', "\\", "$(HOME)", "{{x}}", "@a",
    "%b", "*c", "&d", "!e", "|", ">", "[", "{", "", " ", "a ", "\t", "\n", "a\nb", "\x7f", "\x85",
    "\u2028", "\ufeff", "é", "日本", "😀", "?", "---", "...", "a,b", "-", "a " * 200,
]  # fmt: skip


@pytest.mark.parametrize("text", [*DOUBTFUL, *NASTY])
def test_nasty_texts(text: str) -> None:
    data: dict[str, Any] = {"key": text, text or "empty": [text, {"a": text}], "n": {"m": text}}
    assert list(yaml.safe_load_all(yaml_text([data, data]))) == [data, data]


@pytest.mark.parametrize("text", DOUBTFUL)
def test_what_versions_of_yaml_read_differently_is_in_quotes(text: str) -> None:
    assert yaml_text([{"a": text}]) == f"a: {json.dumps(text)}\n"


def test_how_it_looks() -> None:
    same = {"e": "yes"}
    data = {"f": [{"b": 1, "c": ["x y", True]}, {"d": same}], "a": "g/h.py", "d": same}
    assert yaml_text([data, same]) == (
        "f:\n- b: 1\n  c:\n  - \"x y\"\n  - true\n- d:\n    e: 'yes'\n"
        "a: g/h.py\nd:\n  e: 'yes'\n---\ne: 'yes'\n"
    )
