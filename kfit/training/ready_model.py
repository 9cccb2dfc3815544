"""A trainer's model, made ready for a call: built, and with its variables on the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias

import keras

from kfit.checkpoint.late_variables import may_make_variables
from kfit.distribute.owned import owned_variables
from kfit.distribute.placement import Placement
from kfit.distribute.same_model import require_same_settings
from kfit.distribute.strategy import Strategy
from kfit.exactness.own_code import overrides
from kfit.fingerprints import of_compiled, of_model, of_optimizers
from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.clock import BUILDING
from kfit.inputs import Batches
from kfit.inputs.python import PythonBatches
from kfit.internals.layers import all_layers
from kfit.internals.models import forgetting_failed_inputs, last_compile, runs_eagerly
from kfit.steps.build import (
    InitialValueError,
    as_if_thawed,
    build,
    build_by_step,
    build_optimizer,
    is_built,
    naming_wrong_data,
    unbuilt_layers,
    unbuilt_parts,
)
from kfit.steps.compiled_steps import Graphs
from kfit.steps.fixed_sizes import naming_none, naming_size
from kfit.steps.jit import resolved_jit
from kfit.training.arguments import require_own_weights, require_targets
from kfit.training.batches_only import require_batches
from kfit.training.call import Callbacks
from kfit.training.chief_only import saving_nothing
from kfit.training.numbers_only import naming_strings, require_numbers
from kfit.training.one_batch import OneBatch
from kfit.training.own_methods import warn_of_own_functions
from kfit.training.turns import Purpose, Turns

_STEPS: dict[Purpose, str] = {
    "train": "train_step",
    "evaluate": "test_step",
    "predict": "predict_step",
}

_Builder: TypeAlias = Literal["call", "step", "tracing"]
"""What builds a model: a call without data, its own step, or the tracing of the first step."""


class ReadyModel:
    """The model of one trainer, and what makes it ready for each `fit`, `evaluate` and `predict`.

    Args:
        model: The model. Between calls it is a plain Keras model.
        strategy: The strategy whose devices compute the model's steps.
        heartbeat: The object that reports what this task is doing to the supervisor.

    Attributes:
        model: The model.
        graphs: The cache of the executors, the objects that run the model's steps.
        turns: The order in which threads use the model.
    """

    def __init__(self, model: keras.Model, strategy: Strategy, heartbeat: Heartbeat) -> None:
        self.model = model
        self._strategy = strategy
        self._heartbeat = heartbeat
        self._placement = Placement(model, strategy)
        self._is_compared = False
        self._compared: tuple[Any, ...] = ()
        self._left: dict[str, list[Any]] = {}
        self._builds_optimizer = False
        self._own_functions: set[str] = set()
        warn_of_own_functions(model, self._own_functions)
        self.turns = Turns(self._placement.parts)
        self.graphs = Graphs(model, strategy, self._placement, heartbeat)

    def turn(self, purpose: Purpose) -> AbstractContextManager[None]:
        """Context in which other threads wait until they may use the model, if they must.

        Args:
            purpose: What the model is used for in the context.
        """
        if not self._strategy.places_variables:
            return nullcontext()
        return self.turns.taken(purpose)

    @contextmanager
    def working(
        self,
        batches: Batches | OneBatch,
        purpose: Purpose,
        *,
        with_optimizer: bool | None = None,
        restores: bool = False,
        validation: Batches | None = None,
        callbacks: Callbacks = None,
    ) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Context in which the model is built and its variables are on the strategy's devices.

        Each `fit`, `evaluate` and `predict` runs in it. On tasks other than the chief, the model
        and Keras' ModelCheckpoint save nothing in this context. It yields a function that returns
        the context of the steps, in which an error that the data has caused names the data.

        Args:
            batches: The data that the model is built for; closed when the context ends.
            purpose: What the model is used for in the context.
            with_optimizer: Whether `build_optimizer` may follow. With None it may only to train.
            restores: Whether a snapshot may be restored before the first step. Then all variables
                are made before, also those that the step would make by itself.
            validation: The validation data of a `fit`, for which the model is built, too.
            callbacks: The callbacks of the call. What they inherit from Keras' callbacks writes no
                files of the run, except on the chief.
        """
        if with_optimizer is None:
            with_optimizer = purpose == "train"
        is_chief = self._strategy.is_chief
        saving = nullcontext() if is_chief else saving_nothing(self.model, callbacks)
        try:
            warn_of_own_functions(self.model, self._own_functions)
            with (
                self.turn(purpose),
                self._heartbeat.call(),
                self._strategy.naming_failures(),
                self._same_compiled(trains=with_optimizer),
                self._placement.placed(trains=with_optimizer),
                resolved_jit(self.model, self._strategy),
                naming_strings(lambda: batches.spec),
                as_if_thawed(),
                saving,
            ):
                with self.turns.lent(to="predictions"):
                    batches.spec  # noqa: B018  may read first batches, which a thread predicts
                step = _STEPS[purpose]
                naming = partial(self._naming_data, batches, step)
                with naming():
                    self._require_same_settings()
                self._make_ready(
                    batches,
                    step,
                    with_optimizer=with_optimizer,
                    restores=restores,
                    validation=validation,
                )
                yield naming
        finally:
            batches.close()

    def place_new(self) -> None:
        """Moves variables that hooks have made to the devices; called within `working`."""
        self._placement.place_new()

    def make_ready_again(self, batches: Batches, validation: Batches | None) -> None:
        """Builds what a hook of `fit` has compiled again, on the strategy's devices.

        All tasks (processes) must call it, within `working`.

        Args:
            batches: The data of the `fit`.
            validation: Its validation data; None if there is none.
        """
        self._placement.place_again(owned_variables(self.model))
        self._make_ready(
            batches, "train_step", with_optimizer=True, restores=True, validation=validation
        )

    def _make_ready(
        self,
        batches: Batches | OneBatch,
        step: str,
        *,
        with_optimizer: bool,
        restores: bool,
        validation: Batches | None,
    ) -> None:
        """Builds the model within `working`, and checks that it can take the data.

        Args:
            batches: The data.
            step: The name of the step that gets the data.
            with_optimizer: As for `working`.
            restores: As for `working`.
            validation: As for `working`.
        """
        at_once = restores or not self._builds_in(step)
        with self._naming_data(batches, step):
            builder = self._build(batches, step, training=with_optimizer, at_once=at_once)
        if validation is not None and (restores or self._strategy.num_replicas > 1):
            self._build_for_validation(validation, batches)
        if with_optimizer:
            self._builds_optimizer = builder != "tracing" and self.graphs.has_default("train_step")
        with self._naming_data(batches, step):
            require_numbers(self.model, batches.spec, step)
        if with_optimizer:
            require_own_weights(self.model, self._strategy)
        self._placement.take_scalars_as_numbers()

    def build_optimizer(self) -> None:
        """Builds the optimizer, if it is not built and the first step need not build it.

        Called within `working`, before the first step or a restore of the optimizer's variables. It
        is called after the hooks that precede it: as in Keras, they may still set what decides on
        the variables of the optimizer, such as `momentum` or `use_ema`.
        """
        own = getattr(self.model, "optimizer", None)
        if own is None or own.built or not self._builds_optimizer:
            return
        building = self._heartbeat.phase(Phase.WORK, counted=BUILDING)
        with building, self._strategy.scope():
            build_optimizer(self.model)
        self._placement.take_scalars_as_numbers()

    def make_variables(self, batches: Batches) -> None:
        """Creates all variables that a training step needs, without taking a step.

        Args:
            batches: Batches such as the step will get.
        """
        with self.working(batches, "train", restores=True) as naming, naming():
            self.build_optimizer()
            if may_make_variables(self.model):
                execution = self.graphs.execution("train_step")
                execution.make_variables(batches.empty_segment(), single_step=True)

    def require_targets(self, batches: Batches | OneBatch, step: str) -> None:
        """Raises an error if the data has no targets, but the loss needs targets.

        If the model overrides the step, nothing is checked, since the step may need no targets.

        Args:
            batches: The data.
            step: The name of the model's step that gets the data, such as "train_step".
        """
        if self.graphs.has_default(step):
            require_targets(self.model, batches.spec)

    def _require_same_settings(self) -> None:
        """Compares the model's settings with those of the other workers, before the first call."""
        host_collectives = self._strategy.host_collectives
        if not self._is_compared and not host_collectives.is_alone:
            require_same_settings(of_model(self.model, with_own_settings=False), host_collectives)
        self._is_compared = True

    @contextmanager
    def _same_compiled(self, *, trains: bool) -> Iterator[None]:
        """Context of a call that begins; compares what was passed to `compile` between workers.

        It does so before the first training that follows a `compile`. It is entered before all
        workers get the chief's variables, among which is the learning rate.

        Args:
            trains: Whether the model is to be trained.
        """
        host_collectives = self._strategy.host_collectives
        if trains and not host_collectives.is_alone:
            compiled = last_compile(self.model)
            if compiled != self._compared:
                found = {**of_optimizers(self.model), **of_compiled(self.model)}
                settings = {k: v for values in found.values() for k, v in values.items()}
                require_same_settings(settings, host_collectives)
                self._compared = compiled
        yield

    @contextmanager
    def _naming_data(self, batches: Batches | OneBatch, step: str) -> Iterator[None]:
        """Context in which an error that the data has caused names the data.

        A model whose building fails may be built for other data in the next call.

        Args:
            batches: The data.
            step: The name of the model's step that gets the data. If the model overrides it, wrong
                data is not named, since the step may call layers with something else than `x`.
        """
        is_plain = self.graphs.has_default(step)
        named = naming_wrong_data(self.model, "x", lambda: batches.spec)
        sized = naming_size(lambda: batches.examples_per_step, self._strategy)
        with sized, named if is_plain else forgetting_failed_inputs(self.model):
            yield

    def _builds_in(self, step: str) -> bool:
        """Returns whether the first step builds the model when it is traced or run, as in Keras.

        One replica can do so. Python code in eager steps then sees no zeros, and the code of a step
        of the model's own is not traced twice.

        Args:
            step: The name of the step.
        """
        if runs_eagerly(self.model):
            return self._strategy.num_replicas == 1
        return not self._strategy.places_variables and overrides(self.model, step)

    def _build_for_validation(self, batches: Batches, of_training: Batches | OneBatch) -> None:
        """Builds what only the validation calls, before the optimizer is built.

        On one replica it is built when the first validation is traced, unless a snapshot may be
        restored before. Python code, such as a generator, must not be asked for a batch before the
        first validation. The training data stands for it, if the `test_step` is Keras' own.

        Args:
            batches: The validation data of a `fit`.
            of_training: Its training data.
        """
        is_own = overrides(self.model, "test_step")
        if is_own or unbuilt_layers(self.model):
            data: Batches | OneBatch = batches
            if isinstance(batches, PythonBatches):
                if is_own:
                    return
                data = of_training
            with self._naming_data(data, "test_step"):
                self._build(data, "test_step", training=False)

    def _build(
        self, batches: Batches | OneBatch, step: str, *, training: bool, at_once: bool = True
    ) -> _Builder:
        """Builds the model, its losses and its metrics on the strategy's devices.

        The layers of a model that overrides the step are built by tracing the step, as in Keras:
        its `call` may take something else than the data, or call other layers first.

        Args:
            batches: The data.
            step: The name of the step that gets the data.
            training: Whether layers are built that only training calls.
            at_once: Whether anything is built; False leaves all to the first step.

        Returns:
            What has built the model, or will build it.
        """
        with self._strategy.scope():
            require_batches(self.model, batches.spec)
        if not at_once:
            return "tracing"
        failure: Exception | None = None
        if overrides(self.model, step) and unbuilt_layers(self.model):
            if self._left.get(step) == self._unbuilt(step):
                return "step"
            try:
                self._build_by_step(batches, step)
                return "step"
            except InitialValueError:
                raise
            except Exception as error:  # such as that of an eager step that reads values
                if self._strategy.num_replicas == 1 and not runs_eagerly(self.model):
                    return "tracing"
                failure = error
        with self._strategy.scope():
            builder = self._build_by_call(batches, step, training)
        if builder == "step":
            if failure is not None:
                raise failure
            self._build_by_step(batches, step)
        return builder

    def _build_by_step(self, batches: Batches | OneBatch, step: str) -> None:
        """Builds what a step of the model's own calls, and remembers what it has left unbuilt.

        Args:
            batches: The data.
            step: The name of the step.
        """
        alone, size = self._strategy.num_replicas == 1, batches.examples_per_step
        try:
            with naming_none(size is not None, self._strategy):
                build_by_step(self.model, batches.spec, step, batch_size=size if alone else None)
            self._left[step] = self._unbuilt(step)
        except InitialValueError:  # there is no value to move to the devices
            raise
        except Exception:
            self._placement.place_again(owned_variables(self.model))
            raise
        self._placement.place_again(owned_variables(self.model))

    def _unbuilt(self, step: str) -> list[Any]:
        return [*unbuilt_parts(self.model, step), *unbuilt_layers(self.model)]

    def _build_by_call(self, batches: Batches | OneBatch, step: str, training: bool) -> _Builder:
        """Builds the model, as far as a call of it without data does.

        As in Keras, a model needs no `call` if it overrides a step, and its `call` need not take
        the data as they come. Then its own step builds its losses and metrics.

        Args:
            batches: The data.
            step: The name of the step that gets the data.
            training: As for `_build`.

        Returns:
            "call" if all is built, and otherwise what must build the rest.
        """
        model = self.model
        examples = batches.examples_per_step
        try:
            build(
                model,
                batches.spec,
                step=step,
                training=training,
                tf_strategy=self._strategy.tf_strategy,
                batch_size=examples and -(-examples // self._strategy.num_replicas),
            )
        except Exception:
            builder = self._other_builder(step)
            if builder is None:
                raise
            return builder
        return "step" if self._left_to(step) else "call"

    def _left_to(self, step: str) -> bool:
        """Returns whether layers, losses or metrics wait for a step of the model's own.

        A step that has left them once, since it does not use them, is not asked again.

        Args:
            step: The name of the step.
        """
        left = unbuilt_parts(self.model, step)
        if not runs_eagerly(self.model):  # an eager step builds layers on all replicas by itself
            left += unbuilt_layers(self.model)
        if not left or self._strategy.num_replicas == 1 or not overrides(self.model, step):
            return False
        is_new = self._left.get(step) != left
        self._left[step] = left
        return is_new

    def _other_builder(self, step: str) -> Literal["tracing", "step"] | None:
        """Says what builds the layers of a model that cannot be called with the data.

        Args:
            step: The name of the step that gets the data.

        Returns:
            "tracing" if nothing is left to build, or the layers are built when the step is traced,
            which one replica can do; "step" if the model's own step must be run on some data first;
            None if nothing builds them, and the data or the model are wrong.
        """
        has_default = self.graphs.has_default
        own_steps = not (has_default("train_step") and has_default("test_step"))
        if not own_steps and is_built(self.model):
            return None
        layers = (layer for layer in all_layers(self.model) if layer is not self.model)
        is_built_whole = all(one.built for one in layers) and not self._left_to(step)
        if self._strategy.num_replicas == 1 or (own_steps and is_built_whole):
            return "tracing"
        return "step" if overrides(self.model, step) else None
