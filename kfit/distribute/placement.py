"""Moves a model's variables to the devices of a strategy, and back.

Keras needs a model to be built under the strategy it trains with. kfit takes any model: while kfit
works, it replaces the `tf.Variable` inside each Keras variable of the same model object by one on
the strategy's devices, and then puts the plain one back, with the trained value. Nothing is cloned,
so this works for every model (subclassed ones, Lambda and shared layers, models that cannot be
serialized), and references that the user holds stay valid.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.contents import VALUES, holds_only_values
from kfit.distribute.python_random import undisturbed
from kfit.distribute.scopes import check_scope, forget_scope, value_in_other_scope
from kfit.distribute.strategy import Strategy
from kfit.distribute.variable_values import is_per_replica, total_of_task
from kfit.internals.layers import all_layers
from kfit.internals.optimizers import belong_to, chooser_of, key_of
from kfit.internals.randomness import (
    existing_seed_generator,
    global_seed_generator,
    set_seed_generator,
)
from kfit.internals.variables import make_tf_variable, set_tf_variable, take_as_number, tf_variable


@dataclass
class _Pair:
    """The two `tf.Variable`s of one Keras variable: the plain one and the one on the devices."""

    variable: keras.Variable
    plain: tf.Variable
    placed: tf.Variable


class Placement:
    """The placement of one model's variables on the devices of one strategy.

    The variables are on the devices within the context `placed`, and plain outside of it, unless
    the model was made in the strategy's scope.

    Args:
        model: The model; its optimizers and metrics are found in it and its layers.
        strategy: The adapter.

    Attributes:
        revision: A number that increases whenever variables that graphs may hold are replaced by
            new ones, so that the graphs must be traced again.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self._model = model
        self._strategy = strategy
        self._pairs: dict[int, _Pair] = {}
        self._seeds: list[keras.Variable] = []
        self._unused_generator: keras.random.SeedGenerator | None = None
        self._depth = 0
        self._thread: int | None = None
        self.revision = 0
        self._native = any(self._is_placed(v) for v in model.variables)

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Context in which the model's variables are on the strategy's devices.

        Variables created within it must be created in the strategy's scope. It is a collective: all
        tasks must enter and leave it together. If the block raises, per-replica variables such as
        metrics are not summed over several workers, since that would need all tasks.

        Raises:
            ValueError: If the call of another trainer, which is under way, holds a variable of the
                model on its devices and cannot release it meanwhile.
        """
        if self._depth:
            yield
            return
        check_scope(self._strategy)
        with self._global_seed(), self._borrowed(), self._on_devices():
            yield

    @contextmanager
    def _global_seed(self) -> Iterator[None]:
        """Context in which Keras' global seed generator exists, if replicas may draw from it.

        Layers without a seed of their own draw from it. Keras makes it at the first draw, but a
        replica cannot make it while its step is traced. If nothing has drawn from it within the
        context, it is dropped again, so that Keras makes it when it would have made it without
        kfit.
        """
        if not self._strategy.places_variables:
            yield
            return
        is_keras_own = existing_seed_generator() is not None
        if not is_keras_own:
            set_seed_generator(self._unused_generator)
        with undisturbed():
            generator = global_seed_generator()
        seed = generator.state
        if not self._is_placed(seed) and all(seed is not known for known in self._seeds):
            self._seeds.append(seed)  # kept for good: graphs continue to draw from it
        first = seed.numpy()
        yield
        is_same = existing_seed_generator() is generator
        if not is_keras_own and is_same and np.array_equal(seed.numpy(), first):
            self._unused_generator = generator
            set_seed_generator(None)

    @contextmanager
    def _on_devices(self) -> Iterator[None]:
        self._leave_other_scope()
        if not self._strategy.places_variables:
            yield
            return
        self._depth += 1
        self._thread = threading.get_ident()
        _working.append(self)
        try:
            self.place()
            yield
        except BaseException:
            self.take_back(failed=True)
            raise
        else:
            self.take_back(failed=False)
        finally:
            _working.remove(self)
            self._depth -= 1

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        """Context in which other trainers have released the variables that this one needs.

        A hook of one trainer's `fit` may call another trainer with the same model on another
        strategy, or with a model that shares a layer. Each trainer has its own variables on
        devices, which its graphs use. So the values move through the plain variables to this
        trainer, and back after the block.
        """
        lenders = [other for other in reversed(_working) if other is not self]
        lenders = [other for other in lenders if other.lends_to(self)]
        for lender in lenders:
            lender.take_back(failed=False, only=self._variables())
        try:
            yield
        finally:
            for lender in reversed(lenders):
                lender.place(only=self._variables())

    def lends_to(self, other: Placement) -> bool:
        """Returns whether `other` needs variables that this placement holds on its devices now.

        Args:
            other: The placement of a model that is about to be trained or evaluated.

        Raises:
            ValueError: If it does, and this placement cannot release them meanwhile.
        """
        needed = {id(variable) for variable in other._variables()}
        held = [v for v in self._variables() if id(v) in needed and self._is_placed(v)]
        in_thread = self._thread == threading.get_ident()
        if not in_thread:
            # Several models may share a random generator; then its draws depend on thread timing.
            held = [v for v in held if all(v is not seed for seed in self._seeds)]
        if not held:
            return False
        name = other._model.name
        if not in_thread:
            raise ValueError(
                f"`model` {name!r} shares the variable {held[0].path!r} with model "
                f"{self._model.name!r}, which is being trained or evaluated in another thread. "
                "Wait until that call has returned."
            )
        one_strategy = self._strategy.tf_strategy is other._strategy.tf_strategy
        stays = self._native and any(id(variable) not in self._pairs for variable in held)
        if not one_strategy and (stays or self._strategy.num_workers > 1):
            raise ValueError(
                f"`strategy` is {other._strategy.name!r}, but this is called while model "
                f"{self._model.name!r}, which has the variable {held[0].path!r}, is being trained "
                f"or evaluated on strategy {self._strategy.name!r}, which cannot give it away "
                "meanwhile. Pass the strategy object of that call, or call this after it."
            )
        return True

    def _is_placed(self, variable: keras.Variable) -> bool:
        return tf_variable(variable) is not None and self._strategy.is_placed(tf_variable(variable))

    def take_scalars_as_numbers(self) -> None:
        """Makes `float` and `int` work on scalar variables that are on several devices.

        Hooks need this, for example to read the learning rate.
        """
        if not self._strategy.places_variables:
            return
        for variable in self._variables():
            take_as_number(tf_variable(variable))

    def _variables(self) -> list[keras.Variable]:
        return [*owned_variables(self._model), *self._seeds]

    def _leave_other_scope(self) -> None:
        """Moves variables that were made in another strategy's scope out of it, permanently.

        Afterwards they are plain.
        """
        found = [(v, value_in_other_scope(v, self._strategy)) for v in self._variables()]
        moved = [(variable, value) for variable, value in found if value is not None]
        if not moved:
            return
        with _rekeyed(self._model, tf.distribute.get_strategy()):
            for variable, value in moved:
                _initialize(variable, value, like=tf_variable(variable))
        own = {id(variable) for variable in owned_variables(self._model)}
        if any(id(variable) in own for variable, _ in moved):
            forget_scope(self._model)
        self.revision += 1

    def place(self, only: Sequence[keras.Variable] | None = None) -> None:
        """Puts the variables on the devices.

        Args:
            only: Some of the variables, which were released meanwhile; None for all. For all of
                them it is a collective: all tasks must call it, and all get the chief's values.
        """
        variables = self._variables()
        known = {id(variable) for variable in variables}
        self._pairs = {key: pair for key, pair in self._pairs.items() if key in known}
        fresh = [v for v in variables if tf_variable(v) is not None and not self._is_placed(v)]
        if only is not None:
            fresh = _both(fresh, only)
        again = [v for v in fresh if id(v) in self._pairs]
        with _rekeyed(self._model, self._strategy.tf_strategy), self._strategy.scope():
            values = [tf_variable(v).read_value() for v in again]
            # Released variables were changed in a hook that all tasks ran, so they are equal.
            values = self._strategy.host_collectives.broadcast(values) if only is None else values
            for variable, value in zip(again, values, strict=True):
                pair = self._pairs[id(variable)]
                pair.plain = tf_variable(variable)
                pair.placed.assign(value)
                set_tf_variable(variable, pair.placed)
            for variable in fresh:
                if id(variable) not in self._pairs:
                    plain = tf_variable(variable)
                    # With several workers, all get the chief's value: TensorFlow broadcasts it.
                    _initialize(variable, plain.read_value(), like=plain)
                    self._pairs[id(variable)] = _Pair(variable, plain, tf_variable(variable))
        if len(again) < len(fresh):
            self.revision += 1

    def take_back(self, failed: bool, only: Sequence[keras.Variable] | None = None) -> None:
        """Makes the variables plain, with the values that they have on the devices.

        Unless `failed` is True, it is a collective: all tasks must call it.

        Args:
            failed: Whether the block has raised. Per-replica variables are then not summed over
                several workers, since that would need all tasks; they become zeros instead.
            only: Some of the variables, which another placement needs meanwhile; None for all.
        """
        variables = self._variables()
        with _rekeyed(self._model, tf.distribute.get_strategy()):
            for variable in variables if only is None else _both(variables, only):
                pair = self._pairs.get(id(variable))
                placed = tf_variable(variable)
                if pair is None and (self._native or not self._is_placed(variable)):
                    continue
                if failed and is_per_replica(variable):
                    value = tf.zeros(variable.shape, variable.dtype)
                    if self._strategy.num_workers == 1:
                        value = total_of_task(variable, self._strategy)
                else:
                    with self._strategy.scope():
                        value = tf.convert_to_tensor(placed)
                if pair is None:
                    _initialize(variable, value, like=placed)
                    self._pairs[id(variable)] = _Pair(variable, tf_variable(variable), placed)
                else:
                    pair.plain.assign(value)
                    set_tf_variable(variable, pair.plain)


_working: list[Placement] = []
"""The placements whose variables are on devices now, the outermost call first."""


def _both(
    variables: Sequence[keras.Variable], others: Sequence[keras.Variable]
) -> list[keras.Variable]:
    known = {id(variable) for variable in others}
    return [variable for variable in variables if id(variable) in known]


def owned_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the Keras variables of a model, its metrics and its optimizers.

    Each is listed once; the order is fixed.
    """
    found: dict[int, keras.Variable] = {}

    def add(variables: Any) -> None:
        for variable in variables:
            found.setdefault(id(variable), variable)

    add(model.variables)
    add(variable for metric in model.metrics for variable in metric.variables)
    for part in _parts(model):
        if isinstance(part, keras.Variable):
            add([part])
        else:
            add(part.variables)
    return list(found.values())


def owned_metrics(model: keras.Model) -> list[keras.Metric]:
    """Returns the metrics of a model, including those that its layers and its metrics hold."""
    return [part for part in _parts(model) if isinstance(part, keras.Metric)]


def owned_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers that a model or a layer of it holds.

    If one wraps others, as a LossScaleOptimizer does, these are included.
    """
    found: dict[int, keras.optimizers.Optimizer] = {}

    def add(optimizer: keras.optimizers.Optimizer) -> None:
        found.setdefault(id(optimizer), optimizer)
        inner = getattr(optimizer, "inner_optimizer", None)
        for part in [inner] if inner is not None else getattr(optimizer, "optimizers", []):
            add(part)

    for part in _parts(model):
        if isinstance(part, keras.optimizers.Optimizer):
            add(part)
    return list(found.values())


_PARTS = (keras.optimizers.Optimizer, keras.Metric, keras.Variable)
_LONG = 100
"""A container of more values, such as a vocabulary, is first looked at by fast code."""


def adopt(optimizer: keras.optimizers.Optimizer, variables: list[Any], tf_strategy: Any) -> None:
    """Makes an unbuilt optimizer, and those that it wraps, use a strategy.

    Call it in the strategy's scope, just before the optimizer is built. An optimizer may have
    variables before it is built: its step count and its learning rate. If the strategy has several
    replicas, these are put on its devices.

    Args:
        optimizer: The optimizer.
        variables: The variables that it will be built for.
        tf_strategy: The `tf.distribute.Strategy`.
    """
    belong_to(optimizer, tf_strategy)
    if tf_strategy.num_replicas_in_sync > 1:
        for variable in optimizer.variables:
            if not isinstance(tf_variable(variable), tf.distribute.DistributedValues):
                make_tf_variable(variable, tf_variable(variable).read_value())
    inner = getattr(optimizer, "inner_optimizer", None)
    # A MultiOptimizer calls a function of the user's to choose the optimizer of each variable.
    choose = chooser_of(optimizer)
    chosen = [choose(variable) for variable in variables] if choose else []
    for part in [inner, *chosen]:
        if part is not None:
            adopt(part, variables, tf_strategy)


def _parts(model: keras.Model) -> list[Any]:
    """Returns the optimizers, metrics and variables that a model or a part of it holds.

    It is fast, since every `train_on_batch` calls it.
    """
    found: list[Any] = []
    seen: set[int] = set()
    for layer in all_layers(model):
        _add_parts(list(vars(layer).values()), seen, found)
    return found


def _add_parts(values: Sequence[Any], seen: set[int], found: list[Any]) -> None:
    for value in values:
        if type(value) in VALUES or id(value) in seen:
            continue
        if isinstance(value, (list, tuple, dict)):
            if len(value) > _LONG and holds_only_values(value):
                continue
            seen.add(id(value))
            _add_parts(list(value.values() if isinstance(value, dict) else value), seen, found)
        elif isinstance(value, _PARTS):
            seen.add(id(value))
            found.append(value)
            # Until compiled metrics are built, the user's metrics can be found only as attributes.
            if isinstance(value, keras.Metric):
                _add_parts(list(vars(value).values()), seen, found)


def _initialize(variable: keras.Variable, value: Any, *, like: Any) -> None:
    """Makes a new `tf.Variable` inside a Keras variable, in the scope that is active.

    Args:
        variable: The Keras variable.
        value: The initial value.
        like: The variable whose `trainable` the new one gets; True if `like` has none.
    """
    with made_trainable(variable, getattr(like, "trainable", True)):  # shards have no `trainable`
        make_tf_variable(variable, value)


@contextmanager
def made_trainable(variable: keras.Variable, trainable: bool) -> Iterator[None]:
    """Context in which Keras makes the `tf.Variable` of a Keras variable with `trainable` as given.

    Keras would use the `trainable` of the Keras variable, which is False while its layer is frozen.
    But a `tf.Variable` cannot be made trainable later, when the layer is no longer frozen.
    """
    now, variable.trainable = variable.trainable, trainable
    try:
        yield
    finally:
        variable.trainable = now


@contextmanager
def _rekeyed(model: keras.Model, tf_strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Context in which the `tf.Variable`s of a model are replaced.

    At its end the model's optimizers are updated: a built optimizer finds a variable's slots by the
    identity of the `tf.Variable`, and keeps the strategy that it was made under.

    Args:
        model: The model.
        tf_strategy: The strategy that the optimizers get.
    """
    optimizers = owned_optimizers(model)
    variables = [v for v in owned_variables(model) if tf_variable(v) is not None]
    before = [[key_of(optimizer, v) for v in variables] for optimizer in optimizers]
    yield
    for optimizer, old_keys in zip(optimizers, before, strict=True):
        belong_to(optimizer, tf_strategy)
        renamed = {
            old: key_of(optimizer, variable)
            for old, variable in zip(old_keys, variables, strict=True)
        }
        for name, table in list(vars(optimizer).items()):
            if isinstance(table, dict) and any(key in renamed for key in table):
                object.__setattr__(
                    optimizer, name, {renamed.get(key, key): v for key, v in table.items()}
                )
            elif isinstance(table, set) and any(key in renamed for key in table):
                object.__setattr__(optimizer, name, {renamed.get(key, key) for key in table})
