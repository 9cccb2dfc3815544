"""What of an object's attributes is kept, given back, and told to be lost."""

import enum
import random
import socket
import threading
import warnings
from collections import deque, namedtuple
from dataclasses import dataclass
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from kfit.objects import Attributes


class Phase(enum.Enum):
    WARM = 1
    FULL = 2


@dataclass
class Record:
    loss: float


@dataclass(frozen=True)
class Stage:
    rate: float


WARM, FULL = Stage(0.1), Stage(1.0)
Pair = namedtuple("Pair", "a b")


class One:
    def __init__(self) -> None:
        self.x = 1


class Other(One):
    pass


class Owner:
    def __init__(self) -> None:
        self.window: Any = deque(maxlen=3)
        self.phase: Any = Phase.WARM
        self.stage = WARM
        self.part = One()
        self.records: list[Any] = []
        self.cache: dict[int, Any] = {}
        self.parts: list[Any] = [random.Random(1), {"calls": 0}]
        self.count = 0


def moved(change: Any) -> tuple[Owner, list[str]]:
    """A new owner with the state of one that was changed, and what of that is not saved."""
    old, new = Owner(), Owner()
    before, after = Attributes(old), Attributes(new)
    change(old)
    after.load_state_dict(before.state_dict())
    return new, before.unsaved()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("records", lambda o: o.records.append(Record(0.5))),
        ("records", lambda o: o.records.append(Pair(1, 2))),
        ("cache", lambda o: o.cache.update({5: (object(), 3)})),
        ("phase", lambda o: setattr(o, "phase", Phase.FULL)),
        ("stage", lambda o: setattr(o, "stage", FULL)),
        ("part", lambda o: setattr(o, "part", Other())),
    ],
)
def test_what_has_a_class_of_the_programs_is_told_and_not_touched(name: str, change: Any) -> None:
    new, unsaved = moved(change)
    fresh = Owner()
    assert [told.partition(" (a ")[0] for told in unsaved] == [name]
    assert (new.records, new.cache, new.phase, new.stage) == ([], {}, Phase.WARM, WARM)
    assert (Phase.WARM.value, Phase.WARM.name, WARM.rate) == (1, "WARM", 0.1)
    assert type(new.part) is One
    assert vars(new.part) == vars(fresh.part)


def test_a_change_within_a_list_of_objects_is_told() -> None:
    owner = Owner()
    owner.records = [Record(1.0)]
    attributes = Attributes(owner)
    assert attributes.unsaved() == []
    owner.records[0].loss = 0.5
    assert attributes.unsaved() == ["records (a list)"]


def test_plain_values_come_back_as_they_were() -> None:
    def change(owner: Owner) -> None:
        owner.window.extend([1, 2, 3, 4])
        owner.part.x = 7
        owner.parts[0].random()
        owner.parts[1]["calls"] += 1

    new, unsaved = moved(change)
    old = Owner()
    change(old)
    assert unsaved == []
    assert (new.window, new.window.maxlen) == (deque([2, 3, 4]), 3)
    assert new.part.x == 7
    assert new.parts[1] == {"calls": 1}
    assert new.parts[0].random() == old.parts[0].random()


def test_a_place_that_is_not_there_is_told() -> None:
    owner = Owner()
    state = [{"path": ["cache", 4, 1], "value": 3}, {"path": ["count"], "value": 2}]
    with pytest.warns(UserWarning, match=r"Owner was not restored completely: cache\[4\]\[1\]"):
        Attributes(owner).load_state_dict(state)
    assert owner.count == 2
    assert owner.cache == {}


def test_a_state_replaces_no_method_and_nothing_that_is_not_searched() -> None:
    class Watched(Owner):
        def __init__(self) -> None:
            super().__init__()
            self.rule = len
            self.hidden = 0

        def on_epoch_end(self) -> str:
            return "called"

    owner = Watched()
    names = ["on_epoch_end", "rule", "hidden", "__class__", "part", "count"]
    state = [{"path": [name], "value": 3} for name in names]
    state.append({"path": ["part", "__init__"], "value": 3})
    attributes = Attributes(owner, lambda name: name != "hidden")
    with pytest.warns(UserWarning, match=r"on_epoch_end, rule, hidden and 2 more could not be set"):
        attributes.load_state_dict(state)
    assert owner.on_epoch_end() == "called"
    assert owner.rule is len
    assert (owner.hidden, owner.count, type(owner)) == (0, 3, Watched)


def test_what_had_not_changed_then_is_put_back() -> None:
    owner = Owner()
    attributes = Attributes(owner)
    state = attributes.state_dict()
    owner.count, owner.part.x, owner.late = 5, 6, 1  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attributes.load_state_dict(state)
    assert (owner.count, owner.part.x, hasattr(owner, "late")) == (0, 1, False)


def test_a_look_with_every_batch_is_bounded() -> None:
    owner = Owner()
    owner.cache = {kind: list(range(200)) for kind in range(50)}
    owner.dense = keras.layers.Dense(300)  # type: ignore[attr-defined]
    owner.dense.build((None, 300))  # type: ignore[attr-defined]
    for index in range(20):
        setattr(owner, f"array{index}", np.zeros(1000))
    small = Attributes(owner).small()
    assert ("cache",) not in small
    assert ("dense", 0) not in small
    assert len([path for path in small if path[0].startswith("array")]) == 7


def holds_itself(kind: str) -> Any:
    inner: list[Any] = [1]
    held = {"list": inner, "dict": {"in": inner}, "tuple": (inner, 2)}[kind]
    inner += [held, held]
    return held


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
def test_what_holds_itself_is_told_and_not_followed_for_ever(kind: str) -> None:
    owner = Owner()
    attributes = Attributes(owner)
    owner.part.held = holds_itself(kind)  # type: ignore[attr-defined]
    owner.cache = {0: [1.0, [2.0, (3.0,)]]}
    assert attributes.unsaved() == [f"part.held (a {kind})"]
    state = attributes.state_dict()
    assert ["cache"] in [entry["path"] for entry in state]
    attributes.small()
    attributes.load_state_dict(state)


def test_objects_that_know_each_other_are_followed_so_far() -> None:
    owner, chain = Owner(), One()
    owner.part = last = chain
    for _ in range(200):
        last.next = One()  # type: ignore[attr-defined]
        last.next.back, last = owner, last.next  # type: ignore[attr-defined]
    attributes = Attributes(owner)
    chain.x = 7
    assert [entry["path"] for entry in attributes.state_dict()][-1] == ["part", "x"]
    last.x = 7
    assert attributes.unsaved()[-1].startswith("part.next.next")


class Gone:
    """A stand-in for an object that is gone: it raises, whatever it is asked."""

    @property
    def __class__(self) -> Any:
        raise ReferenceError

    def __getattr__(self, name: str) -> Any:
        raise ReferenceError


def test_what_is_open_in_a_process_is_no_state(tmp_path: Any) -> None:
    owner = Owner()
    attributes = Attributes(owner)
    with socket.socket() as opened, (tmp_path / "log").open("w") as log:
        owner.opened, owner.log = opened, log  # type: ignore[attr-defined]
        owner.lock, owner.gone = threading.Lock(), Gone()  # type: ignore[attr-defined]
        owner.thread = threading.Thread()  # type: ignore[attr-defined]
        owner.table = h5py.File(tmp_path / "table.h5", "w")  # type: ignore[attr-defined]
        assert attributes.unsaved() == []
        owner.table.close()  # type: ignore[attr-defined]


def test_how_far_a_file_was_read_is_told(tmp_path: Any) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    owner = Owner()
    with (tmp_path / "lines").open() as file:
        owner.file, owner.lines = file, iter([1, 2])  # type: ignore[attr-defined]
        attributes = Attributes(owner)
        assert attributes.unsaved() == []
        file.readline()
        assert attributes.unsaved() == ["file (a TextIOWrapper)"]
        owner.numbers = (n for n in [1])  # type: ignore[attr-defined]
        assert attributes.unsaved()[1:] == ["numbers (a generator)"]


class Options:
    """Options, as of a library, that refuse names they do not know by an error of their own."""

    rate = 1

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"Unrecognized option: {name}")


def test_an_object_that_refuses_names_is_looked_at() -> None:
    owner = One()
    owner.options = Options()  # type: ignore[attr-defined]
    assert Attributes(owner).unsaved() == []
