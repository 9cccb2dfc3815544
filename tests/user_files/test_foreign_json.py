"""JSON that a stranger may have written is parsed, or refused by one kind of error."""

import json
import sys
from typing import Any

import pytest

from kfit.user_files.foreign_json import DEEPEST, parse_json, without_nan


@pytest.mark.parametrize("value", [1, "a", None, [], {}, [{"a": [1, {"b": None}]}, "\ud800"]])
def test_values_are_those_of_json(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("content", ["", "{", b"\xff\xff", "[1,", "nul", "9" * 5000])
def test_what_is_no_json_is_a_value_error(content: Any) -> None:
    with pytest.raises(ValueError, match=r"line 1|utf-8|digits"):
        parse_json(content)


@pytest.mark.parametrize(("open_", "close"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize(
    "depth", [DEEPEST + 1, sys.getrecursionlimit() - 20, sys.getrecursionlimit() + 50, 100_000]
)
def test_deep_nesting_is_a_value_error(open_: str, close: str, depth: int) -> None:
    with pytest.raises(ValueError, match="levels deep"):
        parse_json(open_ * depth + "1" + close * depth)


def test_as_much_nesting_as_anybody_needs_is_taken() -> None:
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)


def test_what_json_cannot_encode_is_none() -> None:
    found = without_nan({"a": [float("nan"), 1.5, {"b": -float("inf")}], "c": "nan", "d": 1})
    assert found == {"a": [None, 1.5, {"b": None}], "c": "nan", "d": 1}
