"""Objects that a program puts into other places, or takes away, are so after a resume, too."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kfit.objects import Attributes, entries
from kfit.objects.bindings import Bindings

pytestmark = pytest.mark.filterwarnings("error")


class Phase:
    def __init__(self, name: str) -> None:
        self.name, self.steps = name, 0

    def made(self) -> None:
        """No method is replaced."""

    def __call__(self) -> None:
        """Such an object may be called, as a schedule is."""


class Owner:
    def __init__(self) -> None:
        self.phase = self.warm = Phase("warm")
        self.main = Phase("main")
        self.late: Phase | None = None
        self.rng, self.other = np.random.default_rng(1), np.random.default_rng(2)
        self.drawn = [np.random.default_rng(seed) for seed in range(3)]
        self.free: list[Any] = []
        self.flag, self.pair = True, (Phase("left"), Phase("right"))

    def made(self) -> None:
        """No method is replaced."""


class Reordered(Owner):
    def __init__(self) -> None:
        super().__init__()
        for name in reversed(list(vars(self))):
            setattr(self, name, vars(self).pop(name))


COUNTS: dict[str, Any] = {"best": 0, "rngs": [np.random.default_rng(1), np.random.default_rng(2)]}


class Named:
    """What its code names is a part of it."""

    def step(self) -> Any:
        return COUNTS


def seen(owner: Any) -> Any:
    """What an owner holds, and which of it is the same object."""
    found = dict(sorted(vars(owner).items()))
    places = [*found.items(), *enumerate(owner.drawn), *enumerate(owner.pair)]
    same = {name: [key for key, value in places if value is found[name]] for name in found}
    states = {
        name: vars(value) if isinstance(value, Phase) else str(value.bit_generator.state)
        for name, value in places
        if isinstance(value, (Phase, np.random.Generator))
    }
    plain = found.get("flag"), found["late"] is None
    numbers = [value for value in owner.free if isinstance(value, int)]
    return same, states, plain, len(owner.drawn), len(owner.free), numbers


def rebind(owner: Owner) -> None:
    owner.phase = owner.main
    owner.phase.steps += 1


def swap(owner: Owner) -> None:
    owner.warm, owner.main = owner.main, owner.warm
    owner.warm.steps += 1


def take_late(owner: Owner) -> None:
    owner.late = owner.pair[1]
    owner.pair[1].steps += 1


def share_generator(owner: Owner) -> None:
    owner.other = owner.rng
    owner.other.random()


def pop_generator(owner: Owner) -> None:
    owner.drawn.pop(0).random()
    owner.drawn[0].random()


def keep_generator(owner: Owner) -> None:
    owner.free += [owner.drawn.pop(), 7]
    owner.free[0].random()


def delete(owner: Owner) -> None:
    del owner.flag, owner.warm


CHANGES: list[Callable[[Any], None]] = [
    *(rebind, swap, take_late, share_generator, pop_generator, keep_generator, delete)
]


@pytest.mark.parametrize("kind", [Owner, Reordered])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_objects_are_where_they_were(kind: Any, change: Any) -> None:
    old, new = kind(), kind()
    before, after = Attributes(old), Attributes(new)
    began = seen(new)
    change(old)
    assert before.unsaved() == []
    kept = before.state_dict()
    after.load_state_dict(kept)
    assert seen(new) == seen(old) != began
    assert repr(after.state_dict()) == repr(kept)
    # And back, in the same process, to where nothing had changed.
    after.load_state_dict(Attributes(kind()).state_dict())
    assert seen(new) == began


@pytest.mark.parametrize("change", [rebind, share_generator, pop_generator, delete])
def test_a_change_within_an_epoch_is_kept_with_the_batch(change: Any) -> None:
    old, new = Owner(), Owner()
    before, after = Attributes(old), Attributes(new)
    state, small = before.state_dict(), before.small()
    change(old)
    after.load_state_dict(before.with_small(state, small, before.small()))
    assert seen(new) == seen(old)


def test_what_was_put_back_within_an_epoch_is_not_moved() -> None:
    old, new = Owner(), Owner()
    before, after = Attributes(old), Attributes(new)
    rebind(old)
    state, small = before.state_dict(), before.small()
    old.phase = old.warm
    after.load_state_dict(before.with_small(state, small, before.small()))
    assert seen(new) == seen(old)


def test_a_new_object_is_told_if_the_one_before_it_is_kept() -> None:
    def kept(owner: Owner) -> None:
        owner.late, owner.main = owner.main, Phase("new")

    def is_shared(owner: Owner) -> None:
        owner.phase = Phase("new")
        owner.warm = Phase("warm")

    def generator(owner: Owner) -> None:
        owner.free.append(owner.rng)
        owner.rng = np.random.default_rng(9)

    told = {
        kept: ["main (a Phase)"],
        is_shared: ["warm (a Phase)"],
        generator: ["rng (a Generator)"],
    }
    for change, names in told.items():
        owner = Owner()
        looked = Attributes(owner)
        change(owner)
        assert looked.unsaved() == names


def test_a_new_object_takes_the_place_of_one_that_is_gone() -> None:
    old, new = Owner(), Owner()
    before, after = Attributes(old), Attributes(new)
    old.main = Phase("new")
    old.main.steps = 3
    assert before.unsaved() == []
    after.load_state_dict(before.state_dict())
    assert vars(new.main) == vars(old.main)


def test_what_code_names_is_bound_and_deleted_in_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = dict(COUNTS, rngs=list(COUNTS["rngs"]))
    first, second = made["rngs"]
    before = Attributes(Named())
    del COUNTS["best"]
    COUNTS["rngs"][0] = second
    state = before.state_dict()
    COUNTS.update(made)
    monkeypatch.setattr(entries, "_PROCESSES", {})
    Attributes(Named()).load_state_dict(state)
    assert list(COUNTS.items()) == [("rngs", [second, second])]
    COUNTS.update(made)
    COUNTS["rngs"][0] = first


def test_a_place_that_cannot_be_set_is_told() -> None:
    owner = Owner()
    state = [
        {"path": ["pair", 0], "is": ["main"]},
        {"path": ["phase"], "is": ["free"]},
        {"path": ["late"], "is": ["nothing"]},
        {"path": ["made"], "is": ["main"]},
        {"path": ["main", "made"], "gone": True},
        {"path": ["__class__"], "is": ["main"]},
        {"path": ["pair", 1], "gone": True},
        {"path": ["__dict__"], "gone": True},
    ]
    told = r"pair\[0\], made, __class__ and 5 more could not be set"
    with pytest.warns(UserWarning, match=told):
        Attributes(owner).load_state_dict(state)
    assert seen(owner) == seen(Owner())


def test_where_objects_are_at_home() -> None:
    one, other = Phase("one"), Phase("other")
    found = Bindings([(("a",), one), (("b",), one), (("c", 0), other)], [("d",)])
    assert found.knows(one)
    assert not found.knows(Phase("one"))
    assert found.home_of(one, ("x",)) == ("a",)
    assert found.home_of(3, ("x",)) == ("x",)
    assert [found.at(path) for path in (("b",), ("d",))] == [one, None]
    assert [found.has_moved((name,), one) for name in "abd"] == [False, False, True]
    assert list(found.missing((), {"a": 1, "c": []})) == [("b",), ("d",)]
    assert list(found.missing(("c",), [])) == [("c", 0)]
