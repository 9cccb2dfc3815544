"""Moves a model's variables to the devices of a strategy, and back.

Keras needs a model to be built under the strategy that trains it. kfit trains any model: during a
call of `fit`, `evaluate` or `predict`, it replaces the `tf.Variable` inside each Keras variable by
one on the strategy's devices. After the call, the ordinary `tf.Variable` is put back, with the
trained value. The model is not cloned, so this works for every model (subclassed models, Lambda
layers, shared layers, models that cannot be serialized), and the user's references stay valid. If
possible, the ordinary `tf.Variable` is the first replica's copy meanwhile (`first_copies.py`).

In this module a variable is *placed* if its `tf.Variable` is on the strategy's devices, and *plain*
if it is an ordinary `tf.Variable`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.departed import Departed
from kfit.distribute.first_copies import FirstCopies, followed_by, may_be_one
from kfit.distribute.global_seed import GlobalSeed
from kfit.distribute.new_variables import initialize, require_addable
from kfit.distribute.owned import Owned, owned_by, owned_variables
from kfit.distribute.placed_optimizers import (
    built_on_devices,
    in_scope_of_optimizer,
    rekeyed,
    to_variables_of_its_strategy,
)
from kfit.distribute.same_model import require_same_variables
from kfit.distribute.scopes import check_scope, forget_scope, value_in_other_scope
from kfit.distribute.strategy import Strategy
from kfit.distribute.variable_copies import VariableCopies
from kfit.distribute.variable_values import is_per_replica, total_of_task
from kfit.heartbeat.signal_handlers import postponed
from kfit.internals import patch_points as points
from kfit.internals.keras_functions import functions_forgotten
from kfit.internals.layers import all_layers
from kfit.internals.optimizers import strategy_of
from kfit.internals.patching import patched
from kfit.internals.randomness import global_seed_generator
from kfit.internals.variables import (
    give_total_to_first_copy,
    set_copy_of,
    set_tf_variable,
    take_as_number,
    tf_variable,
)

_uninterrupted = postponed(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Decorator of what must not end half-way, with some of the variables still on the devices."""


@dataclass
class _Pair:
    """The two `tf.Variable`s of one Keras variable: an ordinary one, and one on the devices.

    Both are kept from one call of `fit`, `evaluate` or `predict` to the next, so that the graphs of
    an earlier call can be used again.

    Attributes:
        variable: The Keras variable, which contains one of the two at a time.
        plain: The ordinary `tf.Variable`, for the time between calls.
        placed: The `tf.Variable` on the strategy's devices, for the time of a call.
    """

    variable: keras.Variable
    plain: tf.Variable
    placed: tf.Variable

    def is_first_copy(self, strategy: Strategy) -> bool:
        """Returns whether the ordinary variable is the first replica's copy of the other one."""
        return strategy.local_results(self.placed)[0] is self.plain

    def place(self, strategy: Strategy) -> None:
        """Puts the variable on the devices into the Keras variable."""
        if self.is_first_copy(strategy):
            set_copy_of(self.plain, self.placed)
        set_tf_variable(self.variable, self.placed)

    def take_back(self, strategy: Strategy) -> None:
        """Puts the ordinary variable into the Keras variable."""
        if self.is_first_copy(strategy):
            set_copy_of(self.plain, None)
        set_tf_variable(self.variable, self.plain)


class Placement:
    """The placement of a model's variables on the devices of a strategy.

    A `Trainer` has one for its model. Within the context `placed`, the variables are on the
    devices; outside of it, they are ordinary variables. The variables of a model that was made in
    the strategy's scope are on the devices all the time.

    Args:
        model: The model. The variables of its layers, metrics and optimizers are moved, too.
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.

    Attributes:
        global_seed: Keras' global seed generators, whose states are on the devices during calls.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self._model = model
        self._strategy = strategy
        self._pairs: dict[int, _Pair] = {}
        self._departed = Departed(strategy.num_workers)
        self.global_seed = GlobalSeed(self._is_placed, is_alone=strategy.num_workers == 1)
        self._users = 0
        self._guests = 0
        self._shared: dict[int, keras.Variable] = {}
        self._is_within = False
        self._ending = ExitStack()
        self._thread: int | None = None
        self._to_devices = VariableCopies()
        self._from_devices = VariableCopies()
        self._to_other_replicas = VariableCopies()
        self._native = any(self._is_placed(v) for v in model.variables)

    @contextmanager
    def placed(self, *, trains: bool = False) -> Iterator[None]:
        """Context in which the model's variables are on the strategy's devices.

        `fit`, `evaluate` and `predict` run in it. All tasks (processes) must enter and leave it
        together, since at its end the values of metrics are summed over all tasks. If the block
        raises an error on this task, other tasks may never reach the end of their block. So with
        several workers, this task then sets its metrics to zeros instead of waiting for the sums.

        New variables must be created in the strategy's scope while the context is active.

        Args:
            trains: Whether the model is trained, or the state of its optimizer is set.

        Raises:
            ValueError: If the scope of another strategy is active. It is also raised if a call of
                another trainer is still running, uses one of the variables, and cannot release it.
        """
        if not self._strategy.places_variables:
            check_scope(self._strategy)
            with self._borrowed(trains), self._on_devices():
                yield
            return
        with ExitStack() as leaving:
            with _order:
                self._users += 1
                leaving.push(self._leave)
                if self._users > 1:
                    self._require_own(trains)
                    self.place_new()
                else:
                    self._enter(trains)
            with nullcontext() if self.is_in_this_thread else self.global_seed.shared():
                yield

    def _enter(self, trains: bool) -> None:
        """Moves the variables to the devices, for the first call that uses them there."""
        check_scope(self._strategy)
        with ExitStack() as entered:
            for context in (self.global_seed.made(), self._borrowed(trains), self._on_devices()):
                entered.enter_context(context)
            self._ending = entered.pop_all()

    @_uninterrupted
    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Takes the variables back when the last call ends that uses them on the devices.

        The call that has placed them may end before others: the iterators that `predict_iter` has
        returned may take turns, and the garbage collector may close one within another call.
        """
        with _order:
            if self._is_within:  # the trainer that called the hook needs the variables next
                _order.wait_for(lambda: not self._guests)
            self._end(kind, error, traceback)

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._users -= 1
        if not self._users:
            ending, self._ending = self._ending, ExitStack()
            ending.__exit__(kind, error, traceback)

    @contextmanager
    def shared_with(self, guest: Placement) -> Iterator[None]:
        """Context in which another placement uses variables of this one as they are, on devices.

        They stay on the devices until the context ends. It is entered and left with `_order` held.

        Args:
            guest: The other placement, which moves none of these variables.
        """
        self._users += 1
        self._guests += 1
        guest._shared.update({id(variable): variable for variable in self._held_for(guest)})
        with ExitStack() as leaving:
            leaving.push(self._end)
            try:
                yield
            finally:
                self._guests -= 1
                guest._shared.clear()
                _order.notify_all()

    @contextmanager
    def _on_devices(self) -> Iterator[None]:
        owned = self._owned_by_model()
        self._leave_other_scope(owned)
        # Another trainer may have made ordinary variables of those that were made in the scope.
        own = [v for v in self._model.variables if id(v) not in self._shared]
        self._native = self._native and any(map(self._is_placed, own))
        if not self._strategy.places_variables:
            yield
            return
        self._thread = threading.get_ident()
        _working.append(self)
        try:
            self._place(owned)
            with (
                functions_forgotten(self._model),
                self._strategy.making_slots(),
                patched(points.CALL_FUNCTION, followed_by(self._spread_first_copies)),
                patched(points.BUILD_OPTIMIZER, partial(built_on_devices, strategy=self._strategy)),
                patched(points.ADD_SLOT, in_scope_of_optimizer),
                patched(
                    points.APPLY,
                    partial(
                        to_variables_of_its_strategy,
                        place=_place_optimizer,
                        is_moved=self._is_moved,
                    ),
                ),
            ):
                yield
        except BaseException:
            self.take_back(failed=True)
            raise
        else:
            self.take_back(failed=False)
        finally:
            self._departed.clear()
            _working.remove(self)

    def _spread_first_copies(self) -> None:
        """Gives the other replicas of this task what a hook has assigned to the first copies.

        A `tf.function` that was traced before the call knows no other copies. It does nothing in
        another thread than that of the call, which alone runs no step meanwhile.
        """
        if not self.is_in_this_thread:
            return
        sources, targets = [], []
        for pair in self._pairs.values():
            if is_per_replica(pair.variable) or not self._is_placed(pair.variable):
                continue
            first, *others = self._strategy.local_results(pair.placed)
            if first is pair.plain:
                sources += [first] * len(others)
                targets += others
        self._to_other_replicas.run(sources, targets)

    @contextmanager
    def _borrowed(self, trains: bool) -> Iterator[None]:
        """Context in which other trainers have released the variables that this placement needs.

        A hook of one trainer's `fit` may call another trainer that trains the same model on another
        strategy, or a model that shares a layer. Both trainers need the shared variables on their
        own devices. So at the start of the context, the values of the outer trainer move to
        ordinary variables, where this placement finds them. At the end of the context, the values
        move to the devices of the outer trainer again.

        The data of a trainer's `fit`, or a hook, may also call another trainer in another thread.
        A `fit` may be taking a step meanwhile. So both use the variables that they share where they
        are, until the call of the other thread has ended.

        Args:
            trains: As for `placed`.
        """
        others = [other for other in reversed(_working) if other is not self]
        others = [other for other in others if other.lends_to(self, trains=trains)]
        lenders = [other for other in others if other.is_in_this_thread]
        with ExitStack() as stack:
            for other in others:
                if other not in lenders:
                    stack.enter_context(other.shared_with(self))
            used = self._variables() if lenders else []  # a hook may take some from the model
            self._is_within = bool(lenders)
            try:
                for lender in lenders:
                    lender.take_back(failed=False, only=used)
                yield
            finally:
                self._is_within = False
                for lender in reversed(lenders):
                    lender.place_again([*used, *self._variables()])

    def lends_to(self, other: Placement, *, trains: bool = False) -> bool:
        """Returns whether another placement needs variables that are on this placement's devices.

        A hook (a method of a callback) may call another trainer while the call of this placement's
        trainer is still running. If both need the same variables, the result is True, and this
        placement releases these variables until the call in the hook has returned. If the call is
        made in another thread, both placements use the variables where they are.

        Args:
            other: The placement whose model is about to be trained or evaluated.
            trains: Whether it is about to be trained.

        Raises:
            ValueError: If both placements need the same variables, but this placement cannot
                release them, for example because the other one trains them in another thread.
        """
        held = self._held_for(other)
        if not held:
            return False
        name, one_strategy = other._model.name, self.is_on(other._strategy)
        several_workers = self._strategy.num_workers > 1
        if not self.is_in_this_thread:
            # An optimizer would not find its slots of a variable that another model has moved.
            if trains or several_workers or not one_strategy:
                raise _refusal(name, held[0], self._model.name)
            return True
        # On one device variables are ordinary ones, which another strategy may move from there.
        may_stay = self._native and self._strategy.has_copies
        stays = may_stay and any(self._pair_of(variable) is None for variable in held)
        if not one_strategy and (stays or several_workers):
            raise ValueError(
                f"`strategy` is {other._strategy.name!r}, but this is called while model "
                f"{self._model.name!r}, which has the variable {held[0].path!r}, is being trained "
                f"or evaluated on strategy {self._strategy.name!r}, which cannot give it away "
                "meanwhile. Pass the strategy object of that call, or call this after it."
            )
        return True

    def _held_for(self, other: Placement) -> list[keras.Variable]:
        """Returns the variables of another placement that are on this placement's devices."""
        needed = {id(variable) for variable in other._variables()}
        held = [v for v in self._variables() if id(v) in needed and self._is_placed(v)]
        if self.is_in_this_thread:
            return held
        # Several models may share a random generator; then its draws depend on thread timing.
        return [v for v in held if all(v is not seed for seed in self.global_seed.states)]

    def _require_own(self, trains: bool) -> None:
        """Raises an error if the model is to be trained with variables of another placement."""
        if trains and self._shared:
            variable = next(iter(self._shared.values()))
            raise _refusal(self._model.name, variable, "another one")

    def parts(self) -> set[int]:
        """Returns the ids of all by which the calls of two models may disturb each other.

        These are variables, optimizers, and layers that are not built yet. With several workers
        there are none: threads may run in another order on each, and must not wait for others.
        """
        if self._strategy.num_workers > 1:
            return set()
        owned = self._owned()
        unbuilt = [layer for layer in all_layers(self._model) if not layer.built]
        ids = {id(each) for each in (*owned.variables, *owned.optimizers, *unbuilt)}
        return ids.difference(map(id, self.global_seed.states))

    @property
    def is_in_this_thread(self) -> bool:
        """Whether this thread has moved the variables to the devices, in its outermost call."""
        return self._thread == threading.get_ident()

    def is_on(self, strategy: Strategy) -> bool:
        """Returns whether the model is trained on a strategy."""
        return self._strategy.tf_strategy is strategy.tf_strategy

    def _is_placed(self, variable: keras.Variable) -> bool:
        return tf_variable(variable) is not None and self._strategy.is_placed(tf_variable(variable))

    def _is_moved(self, variable: keras.Variable) -> bool:
        """Returns whether a variable has another `tf.Variable` during this call than after it."""
        pair = self._pairs.get(id(variable))
        return pair is not None and pair.plain is not tf_variable(variable)

    def take_scalars_as_numbers(self) -> None:
        """Makes `float` and `int` work on scalar variables that are on several devices.

        Hooks of callbacks need this, for example to read the learning rate.
        """
        if not self._strategy.places_variables:
            return
        owned = self._owned_by_model()
        self._departed.note(owned)  # some of it has just been built
        for variable in self._departed.joined(owned).variables:
            take_as_number(tf_variable(variable))

    def tf_variables(self) -> list[Any]:
        """Returns the `tf.Variable`s of the model's weights, and all that are on the devices.

        Graphs that were traced with a variable that is no longer among them must be traced again.
        """
        own = [tf_variable(variable) for variable in self._model.variables]
        made = [variable for variable in own if variable is not None]
        return [*made, *(pair.placed for pair in self._pairs.values())]

    def _variables(self) -> list[keras.Variable]:
        return self._owned().variables

    def _owned(self) -> Owned:
        """Returns what the model owns, and what has left it during the present call."""
        return self._departed.joined(self._owned_by_model())

    def _owned_by_model(self) -> Owned:
        owned = owned_by(self._model)
        own = [v for v in owned.variables if id(v) not in self._shared]
        return Owned([*own, *self.global_seed.states], owned.optimizers)

    def _pair_of(self, variable: keras.Variable) -> _Pair | None:
        """Returns the two `tf.Variable`s of a variable, also if it has left the model meanwhile.

        The result is None if the variable has no ordinary `tf.Variable`. So it is if the variable
        was made on the strategy's devices.
        """
        plain = self._departed.plain_of(variable)
        if id(variable) in self._pairs or plain is None or not self._is_placed(variable):
            return self._pairs.get(id(variable))
        return _Pair(variable, plain, tf_variable(variable))

    def _forget_pairs_except(self, owned: Owned) -> None:
        """Drops the pairs of variables that have left the model; the plain ones may be put back.

        Args:
            owned: What the model owns now.
        """
        known = {id(variable) for variable in owned.variables}
        left = [pair for key, pair in self._pairs.items() if key not in known]
        for pair in left:
            self._departed.keep_plain(pair.variable, pair.plain)
        if left:
            self._pairs = {key: pair for key, pair in self._pairs.items() if key in known}
            # Their graphs refer to the variables, and will not be used again.
            self._to_devices, self._from_devices = VariableCopies(), VariableCopies()
            self._to_other_replicas = VariableCopies()

    def _leave_other_scope(self, owned: Owned) -> None:
        """Replaces variables on the devices of another strategy by ordinary variables, for good.

        A model that was made in the other strategy's scope has such variables.

        Args:
            owned: The variables and optimizers of the model.
        """
        found = [(v, value_in_other_scope(v, self._strategy)) for v in owned.variables]
        moved = [(variable, value) for variable, value in found if value is not None]
        if not moved:
            return
        with rekeyed(owned, tf.distribute.get_strategy()):
            for variable, value in moved:
                initialize(variable, value, like=tf_variable(variable))
        own = {id(variable) for variable in owned_variables(self._model)}
        if any(id(variable) in own for variable, _ in moved):
            forget_scope(self._model)

    @_uninterrupted
    def place_again(self, used: Sequence[keras.Variable]) -> None:
        """Moves variables to the strategy's devices again, after another trainer has used them.

        During a call of this trainer, a hook (a method of a callback) may call another trainer
        whose model has some of the same variables. The other trainer needs these variables on its
        own devices until that call returns.

        All tasks (processes) must call this method.

        Args:
            used: The variables of the other trainer's model; those of them that this model does not
                have are ignored.
        """
        self._place(self._owned_by_model(), only=used)

    def place_new(self) -> None:
        """Moves variables that have been made since the outermost call began, if there are any.

        A hook (a method of a callback) may compile the model, and then evaluate it, or build the
        optimizer, as Keras' BackupAndRestore does. Variables that another trainer is using
        meanwhile (`_borrowed`) are not new. All tasks (processes) must call this method.
        """
        if not self._strategy.places_variables:
            return
        owned = self._owned_by_model()
        new = [v for v in owned.variables if id(v) not in self._pairs and not self._is_placed(v)]
        new = [variable for variable in new if tf_variable(variable) is not None]
        if new:
            self._place(owned, only=new)

    def _place(self, owned: Owned, only: Sequence[keras.Variable] | None = None) -> None:
        """Moves the model's variables to the strategy's devices.

        At the start of the context `placed`, all tasks get the chief's values. All tasks
        (processes) must call this method. It does nothing if ordinary variables are used as they
        are: whoever refers to the `tf.Variable` inside must find the trained value there.

        Args:
            owned: The variables and optimizers that the model owns now.
            only: As `used` for `place_again`. None moves all variables of the model.

        Raises:
            ValueError: On all tasks, if they have models of different shapes.
        """
        if not self._strategy.places_variables:
            return
        self._departed.note(owned)
        self._forget_pairs_except(owned)
        owned = self._departed.joined(owned)
        fresh = [
            v for v in owned.variables if tf_variable(v) is not None and not self._is_placed(v)
        ]
        if only is not None:
            fresh = _both(fresh, only)
        again = [v for v in fresh if id(v) in self._pairs]
        if only is None and len(again) < len(fresh):
            new = [v for v in fresh if id(v) not in self._pairs]
            require_same_variables([*again, *new], self._strategy.host_collectives)
        copies = FirstCopies()
        with (
            rekeyed(owned, self._strategy.tf_strategy),
            copies.taken(),
            self._strategy.scope(),
        ):
            pairs = [self._pairs[id(variable)] for variable in again]
            for pair in pairs:
                pair.plain = tf_variable(pair.variable)
            # Variables that a hook gives back are equal: all tasks ran the hook.
            self._copy_to_devices(pairs, broadcast=only is None)
            for pair in pairs:
                pair.place(self._strategy)
            for variable in fresh:
                if id(variable) not in self._pairs:
                    require_addable(variable, self._strategy)
                    plain = tf_variable(variable)
                    if self._strategy.has_copies:
                        copies.give(plain)
                    # With several workers, all get the chief's value: TensorFlow broadcasts it.
                    initialize(variable, plain.read_value(), like=plain)
                    self._add_up(variable, tf_variable(variable))
                    self._pairs[id(variable)] = _Pair(variable, plain, tf_variable(variable))

    def _add_up(self, variable: keras.Variable, placed: tf.Variable) -> None:
        """Lets the copies of a variable on the devices, just made, add up to the variable's value.

        Args:
            variable: The Keras variable.
            placed: The `tf.Variable` on the devices. If each replica has its own part of the value,
                the first copy gets the whole, and the others zeros.
        """
        is_total = is_per_replica(variable) and variable.aggregation == "sum"
        if is_total and self._strategy.num_replicas > 1:
            has_first = self._strategy.first_local_replica == 0
            give_total_to_first_copy(placed, has_first=has_first)

    @_uninterrupted
    def take_back(self, failed: bool, only: Sequence[keras.Variable] | None = None) -> None:
        """Moves the values of the variables from the strategy's devices back to ordinary variables.

        It does so also for variables that have left the model since the call began.

        Called at the end of the context `placed`. It is also called when a hook (a method of a
        callback) calls another trainer whose model has some of the same variables, since the other
        trainer needs them on its own devices. All tasks (processes) must call this method, unless
        `failed` is True.

        Args:
            failed: Whether the block of the context has raised an error. If so, this task cannot
                rely on other tasks. With several workers, variables with a value for each replica,
                such as those of metrics, are then set to zeros instead of being summed.
            only: The variables that the other trainer needs; those of them that this model does not
                have, or have had, are ignored. None moves all variables of this model.
        """
        of_model = self._owned_by_model()
        owned = self._departed.joined(of_model)
        with rekeyed(owned, tf.distribute.get_strategy()):
            moved = owned.variables if only is None else _both(owned.variables, only)
            pairs = [pair for pair in map(self._pair_of, moved) if pair is not None]
            self._pairs.update({id(pair.variable): pair for pair in pairs})
            # The first copy has the value of all, unless each replica has its own.
            copied = [
                pair
                for pair in pairs
                if is_per_replica(pair.variable) or not pair.is_first_copy(self._strategy)
            ]
            if self._strategy.copies_in_graphs and not failed:
                with self._strategy.scope():
                    placed = [tf_variable(pair.variable) for pair in copied]
                    self._from_devices.run(placed, [pair.plain for pair in copied])
            else:
                for pair in copied:
                    pair.plain.assign(self._value_on_devices(pair.variable, failed))
            for pair in pairs:
                pair.take_back(self._strategy)
            for variable in moved:
                if self._native or id(variable) in self._pairs:
                    continue
                if self._is_placed(variable):  # made during the call
                    self._pairs[id(variable)] = self._made_plain(variable, failed)
        self._forget_pairs_except(of_model)

    def _made_plain(self, variable: keras.Variable, failed: bool) -> _Pair:
        """Makes an ordinary variable for one that was made on the strategy's devices.

        Args:
            variable: The Keras variable.
            failed: As for `take_back`.
        """
        placed, value = tf_variable(variable), self._value_on_devices(variable, failed)
        initialize(variable, value, like=placed)
        self._add_up(variable, placed)
        plain, first = tf_variable(variable), self._strategy.local_results(placed)[0]
        if not may_be_one(plain, first):
            return _Pair(variable, plain, placed)
        first.assign(value)
        pair = _Pair(variable, first, placed)
        pair.take_back(self._strategy)
        return pair

    def _copy_to_devices(self, pairs: Sequence[_Pair], *, broadcast: bool) -> None:
        """Copies the values of ordinary variables to the variables on the strategy's devices.

        Called in the strategy's scope.

        Args:
            pairs: The variables. In each pair, the value of `plain` is assigned to `placed`.
            broadcast: Whether all workers get the chief's values. If False, each worker copies its
                own values, which must be equal on all workers already.
        """
        if self._strategy.copies_in_graphs:
            self._to_devices.run([pair.plain for pair in pairs], [pair.placed for pair in pairs])
            return
        values = [pair.plain.read_value() for pair in pairs]
        values = self._strategy.host_collectives.broadcast(values) if broadcast else values
        for pair, value in zip(pairs, values, strict=True):
            pair.placed.assign(value)

    def _value_on_devices(self, variable: keras.Variable, failed: bool) -> Any:
        """Returns the value that a variable has on the strategy's devices.

        Some variables, such as those of metrics, have a value for each replica. Of these the result
        is the total over the replicas of all tasks (processes), and all tasks must call this
        method.

        Args:
            variable: The variable.
            failed: Whether the current `fit`, `evaluate` or `predict` has raised an error, so that
                this task cannot rely on other tasks. If there are several workers, the result for a
                variable with a value for each replica is then zeros.
        """
        if failed and is_per_replica(variable):
            if self._strategy.num_workers == 1:
                return total_of_task(variable, self._strategy)
            return tf.zeros(variable.shape, variable.dtype)
        with self._strategy.scope():
            return tf.convert_to_tensor(tf_variable(variable))


_order = threading.Condition(threading.RLock())
"""Held while variables are moved: what is found where must not move before it is used or moved.

The garbage collector may end a call within another one of the same thread.
"""
_working: list[Placement] = []
"""The placements whose variables are on devices now, in the order of their calls."""


def _place_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Moves an optimizer to the devices, if a hook of this thread has given it to a model.

    It is moved for the inmost call whose model holds it, with all else that is new in the model.
    """
    for placement in reversed(_working):
        is_moved = strategy_of(optimizer) is not tf.distribute.get_strategy()
        if placement.is_in_this_thread and not is_moved:
            placement.place_new()


def seed_generator_on(strategy: Strategy) -> Callable[[], keras.random.SeedGenerator]:
    """Returns a function that returns the generator that the replicas of a strategy draw from.

    In a call that has moved a model's variables to the strategy's devices, it is the one that was
    moved with them, also if a hook has seeded or cleared Keras' state since. A graph that Keras has
    traced draws from the generator of that time, too. Call the function only to draw from it.

    Args:
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.
    """
    for placement in reversed(_working):
        if placement.global_seed.generator is not None and placement.is_on(strategy):
            return placement.global_seed.used
    generator = global_seed_generator()
    return lambda: generator


def _both(
    variables: Sequence[keras.Variable], others: Sequence[keras.Variable]
) -> list[keras.Variable]:
    known = {id(variable) for variable in others}
    return [variable for variable in variables if id(variable) in known]


def _refusal(name: str, variable: keras.Variable, other: str) -> ValueError:
    return ValueError(
        f"`model` {name!r} shares the variable {variable.path!r} with model {other!r}, which is "
        "being trained or evaluated in another thread. Wait until that call has returned."
    )
