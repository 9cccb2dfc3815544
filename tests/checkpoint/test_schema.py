"""Values of another form are refused by their place."""

from typing import Any

import numpy as np
import pytest

from kfit.checkpoint.schema import (
    array,
    at_most,
    count,
    each,
    each_value,
    is_a,
    line,
    number,
    optional,
    record,
    seconds,
    seed,
    text,
    vector_of,
)

RIGHT = [
    (is_a(str, int), 3),
    (at_most(3), 3),
    (count, 0),
    (seed, -(1 << 63)),
    (seconds, 0.0),
    (number, -1),
    (number, np.array(2.5)),
    (number, float("nan")),
    (text, "a\u00a0b\nc\x1b"),
    (line, "ein Modell, 模型\u3000A"),
    (line, "\U0001f469\u200d\U0001f52c"),  # an emoji that is joined of two
    (optional(count), None),
    (each(count), [1, 2]),
    (each_value(text), {"a": "b"}),
    (record({"a": count}, may={"b": count}), {"b": 1, "a": 2}),
    (array, np.zeros(3)),
    (vector_of("uint8", length=3), np.zeros(3, "uint8")),
]
WRONG = [
    (is_a(str, int), True, "is of type bool; expected str or int"),
    (at_most(3), 4, "is 4; expected a whole number from 0 to 3"),
    (count, True, "whole number"),
    (count, 1.0, "whole number"),
    (count, 1 << 63, "whole number"),
    (seed, 1 << 63, "64 bits"),
    (seconds, float("inf"), "expected seconds"),
    (number, np.zeros(1), "expected a number"),
    (number, np.array("a"), "expected a number"),
    (number, 10**30, "64 bits"),
    (number, "1", "expected float"),
    (text, "a\ud800", "expected a text that UTF-8 can encode"),
    (text, 3, "expected str"),
    (line, "a\nb", r"is 'a\\nb'; expected a text without control characters"),
    (line, "a\u202eb", "expected a text without control characters"),
    (line, "a\u2028b", "expected a text without control characters"),
    (line, "a\ud800", "expected a text that UTF-8 can encode"),
    (optional(count), "", "whole number"),
    (each(count), (1,), "expected list"),
    (each(count), [1, ""], r"x\[1\] is ''"),
    (each_value(text), {"a": 1}, r"x\['a'\] is of type int"),
    (record({"a": count}), {}, r"x\['a'\] is missing"),
    (record({"a": count}), {"a": 1, "b": 1}, "x has a key 'b', which is none of its keys"),
    (record({}, may={"b": count}), {"b": -1}, r"x\['b'\] is -1"),
    (record({}), [], "expected dict"),
    (array, 1.0, "expected an array"),
    (vector_of("uint8"), np.zeros((1, 1), "uint8"), r"shape \(1, 1\)"),
    (vector_of("uint8", length=3), np.zeros(2, "uint8"), r"shape \(2,\)"),
    (vector_of("uint8"), np.zeros(2, "int8"), "x is int8"),
]


@pytest.mark.parametrize(("check", "value"), RIGHT)
def test_a_value_of_the_form_passes(check: Any, value: Any) -> None:
    check(value, "x")


@pytest.mark.parametrize(("check", "value", "says"), WRONG)
def test_a_value_of_another_form_is_refused_by_its_place(check: Any, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(value, "x")
