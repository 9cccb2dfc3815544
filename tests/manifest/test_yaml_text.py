"""Whatever is written, YAML reads the same."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kfit.manifest.yaml_text import yaml_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NASTY = [
    "yes", "No", "~", "null", "true", "1", "1e3", "0x1", "12:30:45", "2020-01-01", "- a", "a: b",
    "# c", "'", '"', "\\", "$(HOME)", "{{x}}", "@a", "%b", "*c", "&d", "!e", "|", ">", "[", "{", "",
    " ", "a ", "\t", "\n", "a\nb", "\x7f", "\x85", "\u2028", "\ufeff", "é", "日本", "😀", ".inf",
    "<<", "=", "?", "---", "...", "a,b", "-",
]  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_nasty_texts(text: str) -> None:
    data: dict[str, Any] = {"key": text, text or "empty": [text, {"a": text}], "n": {"m": text}}
    assert yaml.safe_load(yaml_text(data)) == data


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        TEXT,
        st.recursive(
            TEXT | st.integers() | st.booleans(),
            lambda inner: (
                st.lists(inner, min_size=1, max_size=3)
                | st.dictionaries(TEXT, inner, min_size=1, max_size=3)
            ),
            max_leaves=6,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_data(data: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text(data)) == data


def test_how_it_looks() -> None:
    data = {"a": [{"b": 1, "c": ["x", True]}, {"d": {"e": "yes"}}], "f": "g/h.py"}
    assert yaml_text(data) == ('a:\n- b: 1\n  c:\n  - x\n  - true\n- d:\n    e: "yes"\nf: g/h.py\n')
