"""Attributes in `__dict__` and in slots are read, set and deleted alike."""

from dataclasses import dataclass
from typing import Any

from kfit.objects.fields import fields_of, has_fields


class Base:
    __slots__ = "one"


class Slots(Base):
    __slots__ = ("__hidden", "__weakref__", "empty")

    def __init__(self) -> None:
        self.one, self.__hidden = 1, 2

    @property
    def hidden(self) -> int:
        return self.__hidden


class Both(Slots):
    pass


@dataclass(frozen=True, slots=True)
class Frozen:
    rate: float


def test_which_objects_have_attributes() -> None:
    assert all(map(has_fields, (Slots(), Both(), Frozen(1.0), test_which_objects_have_attributes)))
    assert not any(map(has_fields, (1, "text", [1], {}, object(), None)))


def test_those_in_slots_are_found_with_those_of_the_base_classes() -> None:
    slots: Any = Slots()
    assert fields_of(slots) == {"one": 1, "_Slots__hidden": 2}
    both: Any = Both()
    both.late = 3
    assert fields_of(both) == {"one": 1, "_Slots__hidden": 2, "late": 3}


def test_they_are_set_and_deleted() -> None:
    both: Any = Both()
    fields = fields_of(both)
    fields["one"], fields["_Slots__hidden"], fields["late"] = 5, 6, 7
    assert (both.one, both.hidden, both.late) == (5, 6, 7)
    del fields["late"], fields["one"]
    assert fields_of(both) == {"_Slots__hidden": 6} == fields
    frozen = Frozen(1.0)
    fields_of(frozen)["rate"] = 0.5
    assert frozen.rate == 0.5


def test_those_of_an_object_without_slots_are_its_own() -> None:
    class Plain:
        pass

    plain = Plain()
    assert fields_of(plain) is vars(plain)
