"""What code names is found, kept, and given back to where it is kept."""

import abc
import copy
import functools
import importlib
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfit.objects import Attributes, entries
from kfit.objects.names import found_in, names_in
from kfit.objects.plain_objects import code_inside

RNG = np.random.default_rng(1)
LOSSES: list[float] = []
COUNT = 0
TABLE = {"stage": 1}


def draw() -> float:
    return float(RNG.random())


def closed() -> tuple[Callable[[float], None], Callable[[], int]]:
    calls = 0

    def note(loss: float) -> None:
        nonlocal calls
        calls += 1
        LOSSES.append(loss)

    return note, lambda: calls


draw.calls = 0  # type: ignore[attr-defined]


class Counter:
    total = 0
    _hidden = 0
    __own = 0

    def __init__(self, note: Callable[[float], None]) -> None:
        self.note = functools.partial(note)

    def step(self) -> None:
        global COUNT
        COUNT += 1
        Counter.total += 1
        Counter._hidden += 2
        Counter.__own += 3
        draw.calls += 1  # type: ignore[attr-defined]
        TABLE["stage"] += 1
        self.note(draw())


class Recorder:
    def __init__(self) -> None:
        self.calls = 0

    def note(self, step: int) -> None:
        self.calls += 1


def carry() -> tuple[Callable[[], None], Callable[[], list[Any]]]:
    """Steps whose state is in defaults, in arguments of a partial, and in a method's object."""
    recorder = Recorder()

    def remember(
        log: list[int],
        first: str = "",
        seen: dict[str, int] = {},  # noqa: B006
        *,
        last: Any = deque(maxlen=2),  # noqa: B006
        table: Any,
    ) -> None:
        log.append(len(log))
        last.append(len(log))
        seen["steps"] = len(log)
        table[0] += 1

    partial = functools.partial(remember, [], table=np.zeros(1))
    note = functools.partial(recorder.note, 1)

    def step() -> None:
        partial()
        note()

    def state() -> list[Any]:
        held = remember.__defaults__, remember.__kwdefaults__, partial.args, partial.keywords
        return [copy.deepcopy(held), recorder.calls]

    return step, state


class Carrier:
    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step


class Ratio(abc.ABC):
    """Whatever Python keeps of the class is no state."""

    @abc.abstractmethod
    def step(self) -> None: ...


class Half(Ratio):
    def step(self) -> None:
        return None


def test_what_python_keeps_of_a_class_is_no_variable() -> None:
    assert names_in(Half()) == []


def rates(generator: np.random.Generator, table: list[float]) -> Iterator[float]:
    steps = iter(range(9))
    for _ in steps:
        table.append(generator.random())
        yield table[-1]


def test_the_locals_of_a_generator_cannot_be_set_but_for_what_is_in_place() -> None:
    generator = rates(np.random.default_rng(1), [])
    next(generator)
    assert [name.name for name in names_in(generator)] == ["generator"]


CONSTANT = [0, 1]


class Lookup:
    def __init__(self) -> None:
        self.order = [1, 0]

    def get(self, index: int) -> int:
        return CONSTANT[index]


def restart() -> None:
    """Has the variables be as a new process has them."""
    global COUNT
    COUNT = Counter.total = Counter._hidden = draw.calls = 0  # type: ignore[attr-defined]
    setattr(Counter, "_Counter__own", 0)  # noqa: B010
    LOSSES.clear()
    TABLE["stage"] = 1
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state


def seen(calls: Callable[[], int]) -> list[Any]:
    hidden = [Counter._hidden, vars(Counter)["_Counter__own"], vars(draw)["calls"]]
    return [COUNT, Counter.total, dict(TABLE), list(LOSSES), calls(), *hidden]


def run(steps: int, state: Any = None) -> tuple[list[Any], Any]:
    restart()
    note, calls = closed()
    counter = Counter(note)
    watched = Attributes(counter)
    if state is not None:
        watched.load_state_dict(state)
    for _ in range(steps):
        counter.step()
    assert watched.unsaved() == []
    return seen(calls), watched.state_dict()


def test_names_are_found_through_functions_classes_and_partials() -> None:
    found = [name.name for name in names_in(Counter(closed()[0]))]
    of_class = {"Counter.total", "Counter._hidden", "Counter._Counter__own"}
    others = {"COUNT", "TABLE", "RNG", "LOSSES", "closed.calls", "draw.calls"}
    assert set(found) == of_class | others
    assert names_in(np.arange(3)) == []


def assert_goes_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run(steps, state)` returns what is known after the steps, and the state to go on from."""
    expected, _ = run(5)
    _, state = run(3)
    monkeypatch.setattr(entries, "_PROCESSES", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(2, state)[0] == expected


def test_they_go_on_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_goes_on(run, monkeypatch)


def test_in_the_same_process_generators_go_on_and_values_stay() -> None:
    expected, _ = run(5)
    _, state = run(3)
    got, _ = run(2, state)
    assert got[0] == 2
    assert got[3] == expected[3][3:]


def test_an_iterator_goes_on_in_another_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun() -> Any:
        steps = itertools.count()
        carrier = Carrier(lambda: next(steps))  # type: ignore[arg-type, return-value]
        return carrier, Attributes(carrier)

    counted, before = begun()
    counted.step()
    state = before.state_dict()
    same, after = begun()
    after.load_state_dict(state)
    assert same.step() == 0
    monkeypatch.setattr(entries, "_PROCESSES", {})
    other, after = begun()
    after.load_state_dict(state)
    assert other.step() == 1


def test_what_functions_carry_goes_on_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(steps: int, state: Any = None) -> tuple[list[Any], Any]:
        step, carried = carry()
        watched = Attributes(Carrier(step))
        if state is not None:
            watched.load_state_dict(state)
        for _ in range(steps):
            step()
        assert watched.unsaved() == []
        return carried(), watched.state_dict()

    assert_goes_on(run, monkeypatch)


def test_a_constant_that_looks_like_an_order_is_what_the_program_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An order in an attribute is kept as it is made; nobody edits that at the top of a file."""
    lookup = Lookup()
    state = Attributes(lookup).state_dict()
    assert [entry["path"] for entry in state] == [["order"]]
    monkeypatch.setattr(entries, "_PROCESSES", {})
    monkeypatch.setitem(globals(), "CONSTANT", [3, 1])
    Attributes(lookup).load_state_dict(state)
    assert CONSTANT == [3, 1]


OUTER = """
import {package}.inner
import {package}.inner.deep as renamed
class Uses:
    def step(self):
        {package}.inner.count += 1
        {package}.inner.deep.depth += 1
class Imports:
    def step(self):
        from {package}.inner import deep
        from . import inner as there
        import json
        deep.depth += 1
        there.count += 1
        json.dumps(0)
"""


def test_what_modules_in_packages_and_modules_imported_in_functions_hold_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "package_of_kfits_tests"
    (tmp_path / package / "inner").mkdir(parents=True)
    (tmp_path / package / "inner" / "__init__.py").write_text("count = 0\nother = 1\n")
    (tmp_path / package / "inner" / "deep.py").write_text("depth = 0\nimport json as inner\n")
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "outer.py").write_text(OUTER.format(package=package))
    monkeypatch.syspath_prepend(tmp_path)
    outer = importlib.import_module(f"{package}.outer")
    inner = importlib.import_module(f"{package}.inner")
    for kind in (outer.Uses, outer.Imports):
        found = {name.key: name for name in names_in(kind())}
        assert found.keys() == {"count", "depth"}
        before = found["count"].get(), found["depth"].get()
        kind().step()
        assert (inner.count, inner.deep.depth) == (before[0] + 1, before[1] + 1)
        assert (found["count"].get(), found["depth"].get()) == (inner.count, inner.deep.depth)


def grows() -> None:
    # None of these is declared: what training is the first to set is what is tested.
    grows.calls = getattr(grows, "calls", 0) + 1  # type: ignore[attr-defined]
    Growing.total = getattr(Growing, "total", 0) + 2  # type: ignore[attr-defined]
    setattr(Growing, "last", [Growing.total])  # type: ignore[attr-defined]  # noqa: B010


class Growing:
    """Has no variables before the first step."""

    def inherited(self) -> None: ...

    def step(self) -> None:
        import module_of_kfits_tests as module

        module.seen = getattr(module, "seen", 0) + 3
        grows()


class Grown(Growing):
    pass


def test_what_is_set_first_during_training_goes_on_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_kfits_tests.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("module_of_kfits_tests")
    holders = (grows, Growing, module)
    before = [set(vars(holder)) for holder in holders]

    def run(steps: int, state: Any = None) -> tuple[list[Any], Any]:
        for holder, there in zip(holders, before, strict=True):
            for key in set(vars(holder)) - there:
                delattr(holder, key)
        watched = Attributes(Growing())
        if state is not None:
            watched.load_state_dict(state)
        for _ in range(steps):
            Growing().step()
        assert watched.unsaved() == []
        numbers = [vars(grows)["calls"], vars(Growing)["total"], vars(Growing)["last"]]
        return [*numbers, module.seen], watched.state_dict()

    assert_goes_on(run, monkeypatch)


@pytest.mark.parametrize(
    "name",
    ["grows.__code__", "Growing.__doc__", "Grown.inherited", "module_of_kfits_tests.other"],
)
def test_a_state_sets_no_special_variable_and_no_method(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_kfits_tests.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    holder, _, key = name.rpartition(".")
    where: Any = {"grows": grows, "Growing": Growing, "Grown": Grown}.get(holder)
    before = getattr(where, key, None)
    entry = {"path": ["names in code", name], **entries.entry_of(3), "process": "another"}
    watched = Attributes(Grown())
    with pytest.warns(UserWarning, match=f"{key} could not be set"):
        watched.load_state_dict([entry])
    assert getattr(where, key, None) == before


class Noise:
    def __init__(self) -> None:
        self.generator = np.random.default_rng(2)

    def draw(self) -> float:
        return float(self.generator.random())


class Held:
    """Whatever it is given, it calls."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __call__(self) -> list[Any]:
        return [each() for each in self.given]


class Globals:
    def __call__(self) -> float:
        LOSSES.append(1.0)
        return draw()


def cached() -> int:
    TABLE["stage"] += 1
    return TABLE["stage"]


REGISTRY = {"draw": [draw]}


def closure(start: int) -> Callable[[], int]:
    def count() -> int:
        nonlocal start
        start += 1
        return start

    return count


def drawn(generator: np.random.Generator) -> float:
    return float(generator.random())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Held([closure(1), closure(5)]),
        lambda: Held({"a": closure(1), "b": [closure(5)]}),
        lambda: Held(Held((draw, closure(1))), [Globals()]),
        lambda: Held([Noise().draw]),
        lambda: Held([functools.partial(drawn, np.random.default_rng(3))]),
        lambda: Held(lambda: REGISTRY["draw"][0]()),
        lambda: Held([functools.lru_cache(maxsize=0)(cached)]),
    ],
    ids=["list", "dict", "held", "method", "partial", "registry", "cache"],
)
def test_state_behind_code_in_containers_and_held_objects_goes_on(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(value: Any) -> list[Any]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            return [called(each) for each in value]
        return called(value.given) if isinstance(value, Held) else value()

    def run(steps: int, state: Any = None) -> tuple[list[Any], Any]:
        restart()
        held = make()
        watched = Attributes(held)
        if state is not None:
            watched.load_state_dict(state)
        values = [called(held) for _ in range(steps)]
        assert watched.unsaved() == []
        return values[-1:], watched.state_dict()

    assert_goes_on(run, monkeypatch)


def test_the_search_for_code_leaves_out_what_is_foreign_large_or_without_order() -> None:
    one, other, many = closure(1), closure(2), [closure(each) for each in range(2000)]
    held = Held([one], {closure(3), closure(4)}, many, {draw})

    def found(*foreign: Any) -> list[str]:
        inside = code_inside(held, set(map(id, foreign)))
        return [name.name for name in found_in(held, inside).names]

    assert found(other) == ["closure.start", "RNG", "draw.calls"]
    assert found(one) == ["RNG", "draw.calls"]


@pytest.mark.parametrize("size", [None, 8])
def test_what_a_cache_holds_goes_on_and_what_it_gets_later_is_told(
    size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> tuple[Any, Any, Any]:
        @functools.lru_cache(maxsize=size)
        def generator(name: str = "a", **seeds: int) -> Any:
            return np.random.default_rng(len(name))

        @functools.lru_cache(maxsize=size)
        def noise() -> Noise:
            return Noise()

        owner = Held(lambda: [generator("b", seed=1).random(), noise().draw()])
        owner()
        return owner, generator, Attributes(owner)

    owner, generator, before = made()
    assert before.unsaved() == []
    same, _, after = made()
    owner()
    monkeypatch.setattr(entries, "_PROCESSES", {})
    after.load_state_dict(before.state_dict())
    assert same() == owner()
    generator()
    (told,) = before.unsaved()
    assert told.endswith("generator.cache.() (a Generator, made after training began)")
