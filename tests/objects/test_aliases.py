"""Places that had one value when it was saved have one after a resume, and others have not."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kfit.objects import Attributes
from kfit.objects.aliases import aliases_in, is_mutable, parts_of, value_at

pytestmark = pytest.mark.filterwarnings("error")


class Owner:
    def __init__(self) -> None:
        self.rows: Any = []
        self.row: Any = None
        self.table: dict[str, Any] = {"first": [], "others": {}}
        self.window = self.last = deque([0])
        self.same = self.again = [1]


class Reordered(Owner):
    def __init__(self) -> None:
        super().__init__()
        for name in reversed(list(vars(self))):
            setattr(self, name, vars(self).pop(name))


def append_row(owner: Owner) -> None:
    owner.row = [0]
    owner.rows.append(owner.row)


def unchanged_list(owner: Owner) -> None:
    owner.row = owner.table["first"]


def between_values(owner: Owner) -> None:
    owner.table["others"]["rows"] = owner.rows


def array(owner: Owner) -> None:
    owner.row = np.zeros(2)
    owner.rows = deque([owner.row])


def as_before(owner: Owner) -> None:
    owner.window.append(1)
    owner.same.append(2)


def apart(owner: Owner) -> None:
    owner.last, owner.again = deque([0, 3]), [3]


def one_apart(owner: Owner) -> None:
    owner.same = [5]


def seen(owner: Any) -> Any:
    parts = list(parts_of(dict(sorted(vars(owner).items()))))
    return repr(parts), aliases_in(parts)


CHANGES: list[Callable[[Any], None]] = [
    *(append_row, unchanged_list, between_values, array, as_before, apart, one_apart)
]


@pytest.mark.parametrize("kind", [Owner, Reordered])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_one_value_stays_one(kind: Any, change: Any) -> None:
    old, new = kind(), kind()
    before, after = Attributes(old), Attributes(new)
    began = seen(new)
    change(old)
    after.load_state_dict(before.state_dict())
    assert seen(new) == seen(old) != began
    after.load_state_dict(Attributes(kind()).state_dict())
    assert seen(new)[0] == began[0]


def test_what_was_one_before_the_batch_may_be_two_after_it() -> None:
    old, new = Owner(), Owner()
    before, after = Attributes(old), Attributes(new)
    append_row(old)
    state, small = before.state_dict(), before.small()
    assert before.with_small(state, small, small) == state
    old.row = [1]
    after.load_state_dict(before.with_small(state, small, before.small()))
    assert seen(new) == seen(old)


def test_what_is_unchanged_has_no_entry() -> None:
    assert Attributes(Owner()).state_dict() == []


def test_a_place_that_cannot_be_set_is_told() -> None:
    old, new = Owner(), Owner()
    before, after = Attributes(old), Attributes(new)
    old.rows = [1]
    old.row = (old.rows, 2)
    with pytest.warns(UserWarning, match=r"row\[0\] could not be set"):
        after.load_state_dict(before.state_dict())
    assert new.row == ([1], 2)


def test_the_parts_of_a_value() -> None:
    inner = [1]
    value = {"a": (inner, {3: inner}), "b": np.zeros(1), (1, 2): [inner]}
    paths = [path for path, _ in parts_of(value)]
    assert paths == [(), ("a", 0), ("a", 1), ("a", 1, 3), ("b",)]
    assert aliases_in(parts_of(value)) == {("a", 1, 3): ("a", 0)}
    assert value_at({("x",): value}, ("x", "a", 1, 3)) is inner
    assert value_at({("x",): value}, ("y", "a")) is None
    assert value_at({("x",): value}, ("x", "b", 0)) is None
    assert is_mutable(inner)
    assert not is_mutable((inner,))
