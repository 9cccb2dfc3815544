"""Finds the variables that an object's code refers to: globals, and those of outer functions.

Values that callables hold (`carried.py`) are found, too: default arguments, a partial's arguments
and a method's object.

Scripts keep state in such variables as often as in attributes: a random generator at the top of the
file, a list that a LambdaCallback appends to, a counter in a class. The names are read from the
bytecode of the object's class, and of the program's functions and classes that this code refers to.
The search of an object's state also goes through the functions and objects that it finds in lists,
in dicts and in attributes of other objects, at any depth (`Inside`).

Functions, classes and modules may get variables during training, as by `note.calls = 1` in a
function `note`. So what they hold is looked up each time (`Space`).
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.objects.carried import WITH_CACHE, carried_by, results_of
from kfit.objects.fields import fields_of, has_fields
from kfit.objects.iterators import is_iterator
from kfit.objects.own_generators import holds_state
from kfit.user_files.written_here import is_written_here

_OF_KERAS = (keras.Layer, keras.Metric, keras.optimizers.Optimizer, keras.callbacks.Callback)
"""Objects whose code `names_in` does not search if other code refers to them."""
_CALLBACK = keras.callbacks.Callback
_CODE = (ModuleType, FunctionType, type, _CALLBACK)
"""Objects that are not state themselves."""
_TF_FUNCTION: Any = type(tf.function(lambda: None))
_CARRIERS = (functools.partial, MethodType, BuiltinMethodType)
"""Callables that hold values besides the code that they call."""
_OF_ABC = frozenset({"_abc_impl", "_is_protocol"})
"""Variables that Python adds to abstract classes."""
_ABSENT = object()
_MOST = 1 << 14
"""The most values that are searched for code."""

Inside = Callable[[Any], Iterable[Any]]
"""A function that yields what may run code, or hold what does, inside a value.

These are the items of a list, and the attributes of an object of the program.
"""


class Name(NamedTuple):
    """A variable of the user's program, and where it is stored.

    Attributes:
        name: The variable's name for messages and paths. If the variable is of an outer function, a
            class or another module, the name begins with that of the function, class or module.
        key: The variable's name in `holder`.
        holder: Where the variable is stored: the dict of a module or callable, the cell of an outer
            function's variable, or the class.
    """

    name: str
    key: str
    holder: dict[str, Any] | CellType | type

    def get(self) -> Any:
        """Returns the present value of this Python variable of the user's program.

        If nothing is assigned to the variable yet, the result is `_ABSENT`, since None may be a
        value.
        """
        if isinstance(self.holder, CellType):
            return _content(self.holder)
        held = self.holder if isinstance(self.holder, dict) else vars(self.holder)
        return held.get(self.key, _ABSENT)

    def delete(self) -> None:
        """Deletes the variable."""
        if isinstance(self.holder, CellType):
            del self.holder.cell_contents
        elif isinstance(self.holder, dict):
            del self.holder[self.key]
        else:
            delattr(self.holder, self.key)

    def put(self, value: Any) -> None:
        """Sets the variable to a value."""
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        elif isinstance(self.holder, dict):
            self.holder[self.key] = value
        else:
            setattr(self.holder, self.key, value)


class Space(NamedTuple):
    """A function, a class or a module of the program, which may get more variables.

    The results that an `lru_cache` holds count as variables of the function if they are random
    generators and the like.

    Attributes:
        label: What the names of its variables begin with: its own name.
        holder: Where its variables are stored: the dict of a function or module, the class, or the
            function with an `lru_cache`.
        keys: The names of a module's variables that the program's code uses; None if all variables
            count, as in a function or class.
        before: The names of all variables that were there when the space was found.
    """

    label: str
    holder: Any
    keys: tuple[str, ...] | None = None
    before: frozenset[str] = frozenset()

    def names(self) -> Iterator[Name]:
        """Yields the variables that were not there before, but for modules and special ones."""
        held = self._held()
        if held.keys() <= self.before:  # fast, since each look at an object asks
            return
        keys = held if self.keys is None else self.keys
        for key in [key for key in keys if key not in self.before and key in held]:
            is_method = isinstance(self.holder, type) and _is_described(held[key])
            is_code = is_method or isinstance(held[key], ModuleType)
            if not is_code and not self._is_special(key):
                yield self._at(key)

    def new(self, key: str) -> Name | None:
        """Returns the variable with a name that the space has not yet; None if it may not have it.

        No special variable may be set, and none that hides a method or the like of a base class.
        """
        is_named = key in self.keys if self.keys is not None else key.isidentifier()
        if not is_named or key.startswith("__") or self._is_special(key):
            return None
        inherited = None if isinstance(self.holder, dict) else getattr(self.holder, key, None)
        is_code = callable(inherited) or _is_described(inherited)
        return None if is_code else self._at(key)

    def known(self) -> Space:
        """Returns the space with all its present variables as those that were there before."""
        return self._replace(before=frozenset(self._held()))

    def _held(self) -> Mapping[str, Any]:
        if isinstance(self.holder, WITH_CACHE):
            return {k: v for k, v in results_of(self.holder).items() if _is_in_place(v)}
        return vars(self.holder) if isinstance(self.holder, type) else self.holder

    def _is_special(self, key: str) -> bool:
        if isinstance(self.holder, dict):
            return self.keys is None and key.startswith("__")
        return (key.startswith("_") and key.endswith("_")) or key in _OF_ABC

    def _at(self, key: str) -> Name:
        holder = dict(self._held()) if isinstance(self.holder, WITH_CACHE) else self.holder
        return Name(f"{self.label}.{key}", key, holder)


class Found(NamedTuple):
    """The variables that an object's code refers to, as `found_in` finds them.

    Attributes:
        names: The variables that were there when they were searched, or that code names.
        spaces: The functions, classes and modules, which may have got more variables since.
    """

    names: list[Name]
    spaces: list[Space]

    def __bool__(self) -> bool:
        return bool(self.names or self.spaces)


class Names(dict[str, Any]):
    """The values that variables had when this dict was created, by the variables' names.

    Setting or deleting an item sets or deletes the variable, too.
    """

    def __init__(self, found: Found) -> None:
        self._spaces = found.spaces
        self._names = {each.name: each for each in found.names}
        for space in found.spaces:
            for name in space.names():
                if not isinstance(name.get(), _CODE):
                    self._names[name.name] = name
        values = {name: each.get() for name, each in self._names.items()}
        super().__init__({name: value for name, value in values.items() if value is not _ABSENT})

    def may_have(self, name: str) -> bool:
        """Returns whether there may be a variable with a name, also if it has no value yet."""
        return self._find(name) is not None

    def __setitem__(self, name: str, value: Any) -> None:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        super().__setitem__(name, value)
        found.put(value)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._names[name].delete()

    def _find(self, name: str) -> Name | None:
        if name in self._names:
            return self._names[name]
        label, _, key = name.rpartition(".")
        space = next((space for space in self._spaces if space.label == label), None)
        return None if space is None else space.new(key)


def names_in(owner: Any) -> list[Name]:
    """Finds the variables that an object's code refers to, each once, in a reproducible order.

    Their values may be state of the program, which is saved together with the object's attributes.

    Args:
        owner: An object, or a function, a class or a generator of the program.
    """
    return found_in(owner).names


def found_in(owner: Any, inside: Inside | None = None) -> Found:
    """Finds the variables that an object's code refers to, and where more of them may appear.

    Args:
        owner: As for `names_in`.
        inside: Yields what is in a value. If it is given, the code of all that can be reached from
            the object, and from the variables, counts as the object's. By default only its own
            code does, that of its attributes, and that of what this code names.
    """
    parts = list(_all_names(owner, inside))
    names: dict[Any, Name] = {}
    labels: dict[str, int] = {}
    for name in (part for part in parts if isinstance(part, Name)):
        where = id(name.holder), name.key
        if where not in names and _may_be_state(name.get(), owner):
            names[where] = name._replace(name=_numbered(name.name, labels))
    labels = {name.name.rpartition(".")[0]: 1 for name in names.values()}
    spaces: dict[int, Space] = {}
    for space in (part for part in parts if isinstance(part, Space)):
        known = spaces.get(id(space.holder))
        if known is None:
            spaces[id(space.holder)] = space._replace(label=_numbered(space.label, labels))
        elif known.keys is not None and space.keys is not None:
            spaces[id(space.holder)] = known._replace(
                keys=tuple(dict.fromkeys((*known.keys, *space.keys)))
            )
    for space in spaces.values():
        for name in space.names():
            if _may_be_state(name.get(), owner):
                names.setdefault((id(name.holder), name.key), name)
    return Found(list(names.values()), [space.known() for space in spaces.values()])


def _may_be_state(value: Any, owner: Any) -> bool:
    """Returns whether a variable's value may be state: it is no code, and no callback of `fit`.

    A callback that another callback calls may be none of those that were passed to `fit`. Those are
    left out later.
    """
    are_callbacks = isinstance(owner, _CALLBACK) and isinstance(value, _CALLBACK)
    return are_callbacks or not isinstance(value, _CODE)


def _numbered(label: str, labels: dict[str, int]) -> str:
    """Returns a label with a number if it is not the first of its kind."""
    count = labels[label] = labels.get(label, 0) + 1
    return f"{label} {count}" if count > 1 else label


def _all_names(owner: Any, inside: Inside | None) -> Iterator[Name | Space]:
    """Yields the variables that an object's code refers to, directly or through other code.

    A variable may be yielded more than once. Those of functions, classes and modules are not, but
    the functions, classes and modules are.

    Args:
        owner: As for `names_in`.
        inside: As for `found_in`.
    """
    of_values = inside or _but_for_keras
    is_object = not isinstance(owner, (FunctionType, type)) and has_fields(owner)
    held = list(fields_of(owner).values()) if is_object else []
    waiting = deque([owner, *of_values(held)])
    seen: set[int] = set()
    entered = {id(owner)}
    while waiting:
        value = waiting.popleft()
        if inside is not None and id(value) not in entered and len(entered) < _MOST:
            entered.add(id(value))
            waiting += inside(value)
        carrier = value if isinstance(value, (*_CARRIERS, WITH_CACHE)) else None
        for code in (carrier, _code_of(value)):
            if code is None or id(code) in seen:
                continue
            seen.add(id(code))
            parts = list(_names_of(code))
            yield from parts
            names = (n for p in parts for n in ([p] if isinstance(p, Name) else p.names()))
            waiting += of_values([name.get() for name in names])
            if isinstance(code, type):
                waiting += _functions_of(code)
            elif isinstance(code, functools.partial):
                waiting.append(code.func)


def _but_for_keras(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if not isinstance(value, _OF_KERAS))


def _names_of(code: Any) -> Iterator[Name | Space]:
    """Yields the variables that belong to a piece of code, and its functions, classes and modules.

    Args:
        code: A class, whose own variables are yielded; a function or generator, with the variables
            that it refers to; or a partial, method or function with an `lru_cache`, with the values
            that it holds.
    """
    if isinstance(code, _CARRIERS):
        return _of_carrier(code)
    if isinstance(code, WITH_CACHE):
        return _of_cache(code)
    return _of_class(code) if isinstance(code, type) else _of_function(code)


def _code_of(value: Any) -> FunctionType | GeneratorType[Any, Any, Any] | type | None:
    """Finds the code behind a value: a function, generator or class of the user's program.

    A function, generator or class is returned as it is. For a method, property, partial,
    `tf.function` or function with an `lru_cache` the result is the function inside. For any other
    object, it is the object's class or, if this is not defined in the program, the first base class
    that is.

    The result is None if the code is not in the user's program, or if a generator has ended.
    """
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.partial | functools.cached_property):
        value = value.func
    if isinstance(value, _TF_FUNCTION):
        value = value.python_function
    elif isinstance(value, WITH_CACHE):
        value = value.__wrapped__
    if isinstance(value, GeneratorType):
        return value if value.gi_frame is not None else None
    if not isinstance(value, (FunctionType, type)):
        kinds = (kind for kind in type(value).__mro__ if is_written_here(kind.__module__))
        value = next(kinds, None)
    is_own = value is not None and is_written_here(value.__module__ or "")
    return value if is_own else None


def _of_carrier(value: Any) -> Iterator[Name]:
    """Yields the values that a callable holds, such as a partial's arguments, as variables."""
    inner = value.func if isinstance(value, functools.partial) else value
    label = getattr(inner, "__qualname__", type(inner).__name__)
    held, keys = carried_by(value)
    yield from (Name(f"{label}.{key}", key, held) for key in keys)


def _of_cache(function: Any) -> Iterator[Name | Space]:
    """Yields what an `lru_cache` holds, such as a generator that the program makes only once."""
    label = f"{getattr(function, '__qualname__', 'function')}.cache"
    yield Space(label, function)
    held = results_of(function)
    for key, value in held.items():
        if is_written_here(type(value).__module__) and not _is_in_place(value):
            yield Name(f"{label}.{key}", key, held)


def _functions_of(kind: type) -> Iterator[Any]:
    """Yields what a class defines, such as functions, except for nested classes.

    What its base classes define is included if the base classes belong to the user's program.
    """
    for each in kind.__mro__:
        if is_written_here(each.__module__):
            yield from (value for value in vars(each).values() if not isinstance(value, type))


def _of_class(kind: type) -> Iterator[Space]:
    """Yields a class, and those of its base classes that belong to the user's program."""
    for each in kind.__mro__:
        if is_written_here(each.__module__):
            yield Space(each.__qualname__, each)


def _of_function(function: FunctionType | Any) -> Iterator[Name | Space]:
    """Yields the variables of outer functions and modules that a function or generator refers to.

    The default arguments of a function are yielded, too, and so are the function, for its
    attributes, and those local variables of a generator that can be restored in place, such as
    random generators.
    """
    cells: tuple[CellType, ...]
    if isinstance(function, GeneratorType):
        frame: Any = function.gi_frame
        code, variables, cells, held = function.gi_code, frame.f_globals, (), dict(frame.f_locals)
        yield from (Name(key, key, held) for key, value in held.items() if _is_in_place(value))
    else:
        code, variables = function.__code__, function.__globals__
        cells = function.__closure__ or ()
        yield from _of_carrier(function)
        yield Space(function.__qualname__, vars(function))
    for key, cell in zip(code.co_freevars, cells, strict=False):
        if not key.startswith("__"):
            yield Name(f"{function.__qualname__.rpartition('.<locals>')[0]}.{key}", key, cell)
    names, attributes, imports = _named(code)
    for key in names:
        value = variables.get(key, _ABSENT)
        if isinstance(value, ModuleType):
            yield from _of_module(key, value, attributes)
        else:
            yield Name(key, key, variables)
    for key in imports:
        found = sys.modules.get(key) or sys.modules.get(f"{variables.get('__package__')}.{key}")
        if found is not None:
            yield from _of_module(key, found, attributes)


def _of_module(label: str, module: ModuleType, attributes: Collection[str]) -> Iterator[Space]:
    """Yields a module of the program, for its variables that have certain names.

    If one of them is a module of the program, it is yielded, too.

    Args:
        label: The name of the module in the code.
        module: The module.
        attributes: The names of the variables.
    """
    stack, seen = [(label, module)], {id(module)}
    while stack:
        label, module = stack.pop()
        if not is_written_here(module.__name__):
            continue
        yield Space(label, vars(module), tuple(attributes))
        for name, value in _items(vars(module), attributes):
            if isinstance(value, ModuleType) and id(value) not in seen:
                seen.add(id(value))
                stack.append((f"{label}.{name}", value))


def _items(held: Mapping[str, Any], keys: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the variables with certain names that are there, with their values."""
    return [(key, held[key]) for key in keys if key in held]


def _is_described(value: Any) -> bool:
    """Returns whether a value in a class is a method, a property or the like."""
    return hasattr(type(value), "__get__") or hasattr(type(value), "__set__")


@lru_cache(maxsize=4096)
def _named(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """Returns the names of global variables, attributes and modules that a function's code uses.

    The modules are those that the function itself imports.
    """
    names: dict[str, None] = {}
    attributes: dict[str, None] = {}
    imports: dict[str, None] = {}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME"):
            names[step.argval] = None
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "IMPORT_FROM"):
            attributes[step.argval] = None
        elif step.opname == "IMPORT_NAME":
            imports[step.argval] = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for into, more in zip((names, attributes, imports), _named(inner), strict=True):
                into.update(dict.fromkeys(more))
    variables = tuple(name for name in names if not hasattr(builtins, name))
    return variables, tuple(attributes), tuple(imports)


def _is_in_place(value: Any) -> bool:
    """Returns whether a generator's local variable can be restored, though its code cannot."""
    return holds_state(value) and not is_iterator(value)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return _ABSENT
