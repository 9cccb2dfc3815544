"""What of an object's attributes is kept, given back, and told to be lost."""

import argparse
import array
import contextlib
import csv
import enum
import functools
import itertools
import logging
import math
import pathlib
import queue
import random
import re
import socket
import sys
import threading
import types
import warnings
import weakref
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import h5py
import keras
import matplotlib.figure
import numpy as np
import pytest
import tensorflow as tf

from kfit.callbacks import Monitor
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


def test_objects_in_a_list_keep_their_state_and_another_list_of_them_is_told() -> None:
    def made() -> Owner:
        owner = Owner()
        owner.records, owner.cache = [Record(1.0), Record(2.0)], {1: One(), 2: 0}
        return owner

    owner, again = made(), made()
    attributes, after = Attributes(owner), Attributes(again)
    owner.records[1].loss, owner.cache[1].x, owner.cache[2] = 0.5, 7, 3
    assert attributes.unsaved() == []
    after.load_state_dict(attributes.state_dict())
    assert again.records == [Record(1.0), Record(0.5)]
    assert (again.cache[1].x, again.cache[2]) == (7, 3)
    owner.records.reverse()
    assert attributes.unsaved() == ["records (a list)"]


class Slots:
    __slots__ = ("__hidden", "n")

    def __init__(self) -> None:
        self.n = self.__hidden = 0

    def step(self) -> None:
        self.n += 1
        self.__hidden += 2

    def seen(self) -> Any:
        return self.n, self.__hidden


@dataclass(slots=True)
class Small:
    n: int = 0


@dataclass(frozen=True)
class Fixed:
    values: list[int] = field(default_factory=list)


class Lines:
    """An object that is another one's, and has slots and a `__dict__`."""

    __slots__ = ("__dict__", "n")


def lines() -> Lines:
    made = Lines()
    made.n, made.text = 0, ""  # type: ignore[attr-defined]
    return made


def put(held: Any) -> None:
    held.put(len(held.queue))


def count_up(held: Any) -> None:
    held.n += 1


def append(held: Any) -> None:
    held.append(len(held))


def write(held: Any) -> None:
    held[0] += 1


def repr_of_items(held: dict[Any, Any]) -> str:
    return repr(list(held.items()))


def repr_of_child(held: np.random.Generator) -> str:
    return repr(held.spawn(1)[0].bit_generator.state)


HELD: dict[str, tuple[Any, Any, Any]] = {
    "namespace": (lambda: types.SimpleNamespace(n=0), count_up, vars),
    "argparse": (lambda: argparse.Namespace(n=0), count_up, vars),
    "slots": (Slots, Slots.step, Slots.seen),
    "dataclass_with_slots": (Small, count_up, lambda held: held.n),
    "slots_and_dict": (lines, count_up, lambda held: held.n),
    "frozen": (Fixed, lambda held: append(held.values), lambda held: held.values),
    "user_dict": (lambda: UserDict(n=0), lambda held: held.update(n=held["n"] + 1), dict),
    "user_list": (UserList, append, list),
    "ordered_dict": (lambda: OrderedDict(a=1, b=2), lambda h: h.move_to_end("a"), list),
    "counter": (Counter, lambda held: held.update("ab"), Counter),
    "defaultdict": (lambda: defaultdict(list), lambda held: held["a"].append(1), dict),
    "of_defaultdicts": (
        lambda: defaultdict(lambda: defaultdict(float)),
        lambda held: held[len(held)].__setitem__("a", 1.5),
        repr_of_items,
    ),
    "defaultdict_of_generators": (
        lambda: defaultdict(lambda: 0, {"n": 0, "rng": np.random.default_rng(1)}),
        lambda held: held.update(n=held["n"] + 1, x=held["rng"].random()),
        lambda held: (held["n"], held["missing"], held.get("x")),
    ),
    "queue": (queue.Queue, put, lambda held: list(held.queue)),
    "priority_queue": (queue.PriorityQueue, put, lambda held: list(held.queue)),
    "array": (lambda: array.array("l", [0, 1]), write, list),
    "bytes": (lambda: bytearray(2), write, list),
    "dates": (lambda: np.zeros(1, "M8[D]"), write, str),
    "records": (lambda: np.zeros(2, "f4, i4"), lambda h: write(h["f1"]), str),
    "bfloat16": (lambda: np.zeros(1, tf.bfloat16.as_numpy_dtype), write, str),
    "spawning": (lambda: np.random.default_rng(1), lambda h: h.spawn(1), repr_of_child),
    "seed": (lambda: np.random.SeedSequence(1), lambda h: h.spawn(1), repr),
    "bit_generator": (lambda: np.random.PCG64(1), lambda h: h.random_raw(), lambda h: h.state),
    "list_iterator": (lambda: iter([1, 2, 3, 4, 5, 6]), next, list),
    "ended_iterator": (lambda: iter((1, 2)), lambda held: next(held, None), list),
    "range_iterator": (lambda: iter(range(9)), next, list),
    "count": (lambda: itertools.count(3, 2), next, repr),
    "repeat": (lambda: itertools.repeat("a", 9), next, list),
    "cycle": (lambda: itertools.cycle("ab"), next, lambda h: [next(h) for _ in range(3)]),
    "expression": (lambda: (2 * i for i in range(9)), next, list),
    "early_stopping": (
        keras.callbacks.EarlyStopping,
        lambda held: setattr(held, "wait", held.wait + 1),
        lambda held: held.wait,
    ),
    "monitor": (
        lambda: Monitor("loss", "max", best=0.0),
        lambda held: setattr(held, "best", held.best + 1),
        lambda held: held.best,
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 copies no iterators
@pytest.mark.parametrize("kind", HELD)
def test_what_is_in_other_objects_comes_back(kind: str) -> None:
    make, step, seen = HELD[kind]
    old, new = Owner(), Owner()
    old.part, new.part = make(), make()
    before, after = Attributes(old), Attributes(new)
    for _ in range(3):
        step(old.part)
    kept = new.part
    after.load_state_dict(before.state_dict())
    assert before.unsaved() == []
    assert new.part is kept or kind == "array"
    assert seen(new.part) == seen(old.part) != seen(make())


def rates() -> Iterator[float]:
    rate = 1.0
    while True:
        yield rate
        rate *= 0.5


def told(make: Any, step: Any) -> list[str]:
    owner = Owner()
    owner.part = make()
    attributes = Attributes(owner)
    assert attributes.unsaved() == []
    step(owner.part)
    assert [entry["path"] for entry in attributes.state_dict()] == [["parts", 0]]
    return attributes.unsaved()


def test_what_cannot_be_restored_is_told_once_it_has_moved() -> None:
    assert told(rates, next) == ["part (a generator)"]
    assert told(lambda: zip([1], [2], strict=True), next) == ["part (a zip)"]
    assert told(lambda: map(str, iter([1, 2])), next) == ["part (a map)"]
    assert told(queue.SimpleQueue, lambda held: held.put(1)) == ["part (a SimpleQueue)"]
    assert told(lambda: [rates()], lambda held: next(held[0])) == ["part (a list)"]
    with_function = functools.partial(defaultdict, lambda: 0)
    count_pair = lambda held: held.update({(1, 2): held[1, 2] + 1})  # noqa: E731
    assert told(with_function, count_pair) == ["part (a defaultdict)"]
    one = {(1, 2): np.random.default_rng(1)}
    assert told(lambda: one, lambda held: held[1, 2].random()) == ["part (a dict)"]


ARRAYS: dict[str, tuple[Any, Any]] = {
    "ndarray": (lambda: np.zeros(3, object), write),
    "MaskedArray": (lambda: np.ma.zeros(3), lambda held: held.__setitem__(1, np.ma.masked)),
    "recarray": (lambda: np.rec.array([(0, 1)], names="a,b"), lambda held: write(held.a)),
    "matrix": (lambda: np.zeros(2).view(np.matrix), lambda held: held.__setitem__((0, 0), 1)),
    "list": (lambda: [np.ma.zeros(3), object()], lambda held: write(held[0])),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_that_is_not_saved_is_told_once_it_has_changed_in_place(kind: str) -> None:
    assert told(*ARRAYS[kind]) == [f"part (a {kind})"]


def test_records_with_objects_are_told_once_they_have_changed_in_place() -> None:
    def make() -> Any:
        return np.array([(0, object(), "2026-01-01")], "i4, O, M8[D]")

    for name in ("f0", "f1", "f2"):
        assert told(make, lambda held, name=name: held[name].fill(1)) == ["part (a ndarray)"]


class Logs:
    """Uses what belongs to a process, and changes it with every step."""

    _lock = threading.Lock()
    _steps: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.logger = logging.getLogger("kfit.tests")
        self.events = queue.Queue[int]()
        self.event, self.condition = threading.Event(), threading.Condition()
        self.progress = keras.utils.Progbar(9, verbose=0)
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.strategy = tf.distribute.get_strategy()
        self.figure = matplotlib.figure.Figure()
        self.axes = self.figure.add_subplot()
        self.rule, self.module, self.kind = self.step, math, Record
        self.reference = weakref.ref(self.model)
        self.proxy = weakref.proxy(self.model)
        self.local, self.stack = threading.local(), contextlib.ExitStack()
        self.counted = functools.lru_cache(math.sqrt)
        self.pattern, self.path, self.out = re.compile("a"), pathlib.Path(), sys.stdout

    def step(self) -> None:
        with self._lock, self.condition:
            self.event.set()
            self.local.connection = threading.Lock()
        self.logger.setLevel(logging.ERROR)
        self.progress.update(3, [("loss", 1.0)])
        self.axes.plot([1, 2], [3, 4])
        self.model(np.ones((1, 1)))
        self.counted(2)
        self.stack.callback(len, "")
        self.events.put(1)
        Logs._steps.append(1)


def test_what_is_harmless_is_not_told() -> None:
    logs = Logs()
    attributes = Attributes(logs)
    logs.step()
    assert attributes.unsaved() == []


def test_an_iterator_that_shows_nothing_is_told() -> None:
    owner = Owner()
    owner.part = csv.reader(["a,b", "c,d"])
    assert Attributes(owner).unsaved() == ["part (a reader)"]


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


def ordered(order: Any) -> Owner:
    owner = Owner()
    owner.part = order
    return owner


@pytest.mark.parametrize("made", [list, np.array])
def test_an_order_that_the_program_makes_otherwise_is_put_back_and_told(made: Any) -> None:
    state = Attributes(ordered(made([2, 0, 1]))).state_dict()
    owner = ordered(made([1, 0, 2]))
    with pytest.warns(UserWarning, match="made a Owner with another order of part than"):
        Attributes(owner).load_state_dict(state)
    assert list(owner.part) == [2, 0, 1]


def test_it_is_no_news_that_an_order_is_another_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The same one, one that training has drawn, a long one, and that of another task.
        Attributes(ordered([2, 0, 1])).load_state_dict(Attributes(ordered([2, 0, 1])).state_dict())
        trained, again = ordered([2, 0, 1]), ordered([1, 0, 2])
        attributes = Attributes(trained)
        trained.part.reverse()
        Attributes(again).load_state_dict(attributes.state_dict())
        assert again.part == [1, 0, 2]
        long = Attributes(ordered(list(range(100)))).state_dict()
        Attributes(ordered(list(range(99, -1, -1)))).load_state_dict(long)
        shared = ordered([1, 0, 2])
        state = Attributes(ordered([2, 0, 1])).state_dict()
        Attributes(shared).load_state_dict(state, is_shared=True)
        assert shared.part == [2, 0, 1]


def test_an_order_stays_as_made_with_every_batch() -> None:
    attributes = Attributes(ordered([2, 0, 1]))
    state, small = attributes.state_dict(), attributes.small()
    assert attributes.with_small(state, small, attributes.small()) == state


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


class Lazy:
    def __init__(self) -> None:
        self.generator: Any = None
        self.averages: Any = None
        self.replaced = np.random.default_rng(1)


def test_what_no_new_process_has_is_told_and_can_be_rolled_back() -> None:
    owner = Lazy()
    attributes = Attributes(owner)
    owner.generator, owner.averages = np.random.default_rng(1), [tf.Variable(1.0)]
    owner.replaced = np.random.default_rng(2)
    assert attributes.unsaved() == [
        "generator (a Generator, made after training began)",
        "averages[0] (a ResourceVariable, made after training began)",
    ]
    assert attributes.unsaved(made_late=False) == []
    state, number = attributes.state_dict(), owner.generator.random()
    owner.averages[0].assign(2.0)
    attributes.load_state_dict(state)
    assert owner.generator.random() == number
    assert float(owner.averages[0]) == 1.0
