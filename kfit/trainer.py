"""The Trainer: Keras' `compile`, `fit`, `evaluate` and `predict` on any strategy.

It checks arguments, builds the parts and calls the loops; it holds no loop of its own.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import keras

from kfit.argument_checks import check_positive
from kfit.checkpoint import state as checkpoint_state
from kfit.checkpoint.callback_states import CallbackStates
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.state import Part, belongings
from kfit.cluster.cluster import Cluster, check_trains
from kfit.cluster.resolvers import current_cluster
from kfit.distribute.factory import as_strategy, explain_choice
from kfit.distribute.placement import Placement
from kfit.distribute.python_random import undisturbed
from kfit.distribute.scopes import check_scope
from kfit.distribute.strategy import Strategy, TFStrategy
from kfit.fingerprints import fingerprint_of
from kfit.fingerprints.plain import plain
from kfit.heartbeat import Heartbeat, Phase
from kfit.inputs import (
    Batches,
    Segment,
    as_batches,
    has_an_order,
    require_arrays,
    split_validation,
)
from kfit.inputs.arrays import ArrayBatches
from kfit.inputs.python import PythonBatches
from kfit.internals.layers import all_layers
from kfit.internals.models import metrics_in_order
from kfit.objects.hidden_state import drawing_operations
from kfit.saving import write_path
from kfit.steps.build import build, is_built
from kfit.steps.compiled_steps import Graphs
from kfit.steps.execution import Execution
from kfit.steps.frozen import remember_trained, warn_of_thawed
from kfit.steps.jit import remember_jit, resolved_jit
from kfit.steps.metrics import as_numbers
from kfit.steps.prediction import concatenate
from kfit.training import loops
from kfit.training.arguments import (
    capped_epochs,
    capped_steps,
    check_callbacks,
    check_class_weight,
    check_epochs,
    check_shuffle,
    require_targets,
    validation_rule,
)
from kfit.training.call import Call, Callbacks, callback_list
from kfit.training.callback import TrainingCallback
from kfit.training.chief_only import listed, saving_nothing
from kfit.training.fit_state import FitState
from kfit.training.own_methods import through_model
from kfit.training.same_data import batches_of_all

_P = ParamSpec("_P")
_R = TypeVar("_R")
_SEED_STRIDE = 0x9E3779B1


def _judged(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Reports to the supervisor while a call of the method is under way."""

    @wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with Heartbeat.of_environment().call():
            return method(*args, **kwargs)

    return called


class Trainer:
    """Trains a Keras model on one device, several devices or several machines.

    Example:
        >>> trainer = kfit.Trainer(model, strategy="mirrored")
        >>> trainer.compile(optimizer="adam", loss="mse")
        >>> history = trainer.fit(x, y, batch_size=128, epochs=3)

    Args:
        model: A Keras model, built anywhere, compiled or not; the same object holds the trained
            weights afterwards. Or a function without arguments that builds one: it is called in
            the strategy's scope.
        strategy: `"auto"`, `"one_device"`, `"mirrored"`, `"multi_worker"`, `"parameter_server"`,
            `"tpu"`, an adapter of `kfit.distribute` or a `tf.distribute.Strategy`. `"auto"` prints
            its choice.
        seed: Seed of the order of the data. None draws one from Python's `random`, which
            `keras.utils.set_random_seed` seeds; all workers use the chief's.

    Raises:
        ValueError: If `model` or `strategy` is none of these.
        ClusterError: If the cluster is wrong, or does not come up.
    """

    def __init__(
        self,
        model: keras.Model | Callable[[], keras.Model],
        strategy: str | Strategy | TFStrategy = "auto",
        *,
        seed: int | None = None,
    ) -> None:
        if seed is not None and not isinstance(seed, int):
            raise ValueError(f"`seed` must be an integer or None. Received: {seed!r}")
        self._strategy = as_strategy(strategy, model)
        check_scope(self._strategy)
        self._strategy.tf_strategy  # noqa: B018  comes up here, with its devices and servers
        choice = explain_choice(strategy, model)
        if choice is not None and self._strategy.is_chief:
            print(choice, flush=True)
        self._model = self._made(model)
        self._placement = Placement(self._model, self._strategy)
        self._seed = self._given_seed = seed
        self._fits = 0
        self._single_steps = False
        self._interrupted = False
        self._heartbeat = Heartbeat.of_environment()
        self._graphs = Graphs(self._model, self._strategy, self._placement, self._heartbeat)

    def _made(self, model: keras.Model | Callable[[], keras.Model]) -> keras.Model:
        if isinstance(model, keras.Model):
            return model
        if not callable(model):
            raise ValueError(
                "`model` must be a keras.Model, or a function without arguments that returns one. "
                f"Received: {model!r} (of type {type(model)})"
            )
        with self._strategy.scope():
            made = model()
        if not isinstance(made, keras.Model):
            raise ValueError(
                "`model` is a function, which must return a keras.Model. It returned: "
                f"{made!r} (of type {type(made)})"
            )
        return made

    @property
    def model(self) -> keras.Model:
        """The model; between calls of the trainer it is a plain Keras model."""
        return self._model

    @property
    def strategy(self) -> Strategy:
        """The adapter; its `tf_strategy` is TensorFlow's object."""
        return self._strategy

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, or None when this task trains alone."""
        return self._strategy.cluster

    @property
    def num_replicas(self) -> int:
        """Number of replicas over all tasks."""
        return self._strategy.num_replicas

    @property
    def is_chief(self) -> bool:
        """Whether this task prints and writes for all; an evaluator does not."""
        return self._strategy.is_chief and not _is_evaluator(self.cluster)

    @property
    def history(self) -> keras.callbacks.History | None:
        """The History of the last `fit`, or None before it."""
        return getattr(self._model, "history", None)

    @property
    def interrupted(self) -> bool:
        """Whether the last `fit` was interrupted, to go on in a later run (`TimeLimit`)."""
        return self._interrupted

    @_judged  # in a strategy's scope even making a variable waits for the other tasks
    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int | str = "auto",
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
        **kwargs: Any,
    ) -> None:
        """Configures the model for training, as `keras.Model.compile` does.

        Args:
            optimizer: As in Keras.
            loss: As in Keras.
            loss_weights: As in Keras.
            metrics: As in Keras.
            weighted_metrics: As in Keras.
            run_eagerly: As in Keras.
            steps_per_execution: Steps that one graph call takes; batch hooks are called once an
                execution. "auto" takes as many as keep the progress bar moving, and every single
                one where a callback watches batches.
            jit_compile: As in Keras; "auto" is False on several replicas of accelerators.
            auto_scale_loss: As in Keras.
            **kwargs: Further arguments of a model that overrides `compile`.
        """
        if steps_per_execution != "auto" and (
            not isinstance(steps_per_execution, int) or steps_per_execution < 1
        ):
            raise ValueError(
                "`steps_per_execution` must be 'auto' or an integer of at least 1. "
                f"Received: {steps_per_execution!r}"
            )
        given = {
            "loss": (loss, None),
            "loss_weights": (loss_weights, None),
            "metrics": (metrics, None),
            "weighted_metrics": (weighted_metrics, None),
            "run_eagerly": (run_eagerly, False),
            "jit_compile": (jit_compile, "auto"),
            "auto_scale_loss": (auto_scale_loss, True),
        }
        arguments = {name: value for name, (value, default) in given.items() if value != default}
        # Keras' own default is 1 as well, so the model cannot tell that somebody asked for it.
        self._single_steps = steps_per_execution == 1
        with self._strategy.scope():
            if steps_per_execution != "auto":
                arguments["steps_per_execution"] = steps_per_execution
            if type(self._model).compile is keras.Model.compile or optimizer != "rmsprop":
                arguments["optimizer"] = optimizer
            self._model.compile(**arguments, **kwargs)
        remember_jit(self._model, jit_compile)

    @through_model
    @_judged
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Callbacks = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> keras.callbacks.History:
        """Trains the model. Arguments and result are those of `keras.Model.fit`.

        Every worker passes the same data and trains on its own part of it.

        Args:
            x: Arrays in any structure, a `tf.data.Dataset` batched to the global batch size, a
                `keras.utils.PyDataset`, a generator, a distributed data set, or a function from
                `tf.distribute.InputContext` to a data set batched per replica.
            y: Targets, with arrays.
            batch_size: The *global* batch size, over all replicas, with arrays; 32 by default.
            epochs: Epoch to stop after, counted from 0.
            verbose: 0, 1, 2 or "auto"; only the chief prints.
            callbacks: Keras callbacks; their hooks run on every task.
            validation_split: Fraction of the arrays to validate on, from their end.
            validation_data: `(x, y)`, `(x, y, sample_weight)`, or anything `x` may be.
            shuffle: Whether to shuffle arrays each epoch; "batch" shuffles within batches.
            class_weight: Weight of each class.
            sample_weight: Weight of each example, with arrays.
            initial_epoch: Epoch to start at.
            steps_per_epoch: Steps of an epoch; None for all the data.
            validation_steps: Steps of a validation; None for all the data.
            validation_batch_size: Global batch size of validation; `batch_size` by default.
            validation_freq: Validate every that many epochs, or after the epochs listed.

        Returns:
            The `keras.callbacks.History`, equal on all tasks.

        Raises:
            ValueError: If an argument is wrong, or the data and the model do not fit together.
            KeyboardInterrupt: After Ctrl-C, at the end of a step, the same on all tasks.
            SystemExit: After SIGTERM, SIGUSR1 or SIGHUP on any task, likewise; with the code 128 +
                the signal's number. `kfit.callbacks.BackupAndRestore` saves that step.
            ClusterError: If this task is an evaluator; see `kfit.train_and_evaluate`.
        """
        self._require_compiled()
        _refuse_evaluator(self.cluster)
        check_epochs(epochs, initial_epoch)
        check_shuffle(shuffle)
        check_class_weight(class_weight)
        check_callbacks(callbacks)
        check_positive(batch_size=batch_size, steps_per_epoch=steps_per_epoch)
        check_positive(validation_steps=validation_steps)
        check_positive(validation_batch_size=validation_batch_size)
        should_validate = validation_rule(validation_freq)
        epochs, steps_per_epoch = capped_epochs(epochs), capped_steps(steps_per_epoch)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = split_validation(
                (x, y, sample_weight), validation_split
            )
        batches = batches_of_all(
            x,
            y,
            sample_weight,
            strategy=self._strategy,
            batch_size=batch_size,
            steps=self._whole_executions(steps_per_epoch),
            shuffle=shuffle,
            seed=self._seed_of_fit(shuffles=bool(shuffle) and has_an_order(x)),
            class_weight=class_weight,
        )
        validation = self._validation(
            validation_data, validation_batch_size or batch_size, validation_steps
        )
        is_saved = any(isinstance(c, TrainingCallback) and c.takes_part for c in listed(callbacks))
        if is_saved:
            foreign = belongings(self.model) | set(map(id, listed(callbacks)))
            batches.keep_states(foreign)
            if validation is not None:
                validation.keep_states(foreign)
        closed = nullcontext() if validation is None else closing(validation)
        with self._working(batches, train=True, callbacks=callbacks), closed:
            self._require_targets(batches, "train_step")
            memory = CallbackStates(listed(callbacks), is_chief=self.is_chief)
            shown = {"epochs": epochs, "steps": steps_per_epoch or batches.steps}
            call = self._call(callbacks, verbose, **shown, add_history=True)
            call.progress.epoch = initial_epoch
            state = FitState(
                call=call,
                batches=batches,
                validation=validation,
                should_validate=should_validate,
                memory=memory,
                epochs=epochs,
                fingerprint=partial(
                    fingerprint_of,
                    self._model,
                    (x, y, sample_weight),
                    validation_data,
                    seed=self._given_seed,
                    class_weight=class_weight,
                    validation={"steps": validation_steps, "freq": plain(validation_freq)},
                ),
            )
            self._train(state, is_saved=is_saved)
        return self._model.history

    @through_model
    @_judged
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Callbacks = None,
        return_dict: bool = False,
        *,
        snapshot: Snapshot | None = None,
        parts: Sequence[Part] = ("model",),
    ) -> Any:
        """Evaluates the model. Arguments and result are those of `keras.Model.evaluate`.

        Args:
            x: As for `fit`.
            y: Targets, with arrays.
            batch_size: The global batch size, with arrays; 32 by default.
            verbose: 0, 1, 2 or "auto"; only the chief prints.
            sample_weight: Weight of each example, with arrays.
            steps: Steps to take; None for all the data.
            callbacks: Keras callbacks; their hooks run on every task.
            return_dict: Whether to return a dict.
            snapshot: A snapshot of a training of this model (`kfit.checkpoint.Store`), the same on
                every task: its weights are evaluated, and stay in the model.
            parts: What to take of it: "optimizer" too, for a model that is to be saved whole.

        Returns:
            The loss, the list of loss and metrics, or a dict of them: over all examples, equal on
            all tasks.

        Raises:
            SnapshotMismatchError: If `snapshot` is of another model.
        """
        self._require_compiled()
        check_callbacks(callbacks)
        check_positive(batch_size=batch_size, steps=steps)
        batches = self._batches(x, y, sample_weight, batch_size, steps)
        with self._working(batches, train=snapshot is not None and "optimizer" in parts):
            self._require_targets(batches, "test_step")
            call = self._call(callbacks, verbose, steps=batches.steps)
            if snapshot is not None:
                checkpoint_state.restore(self._model, snapshot, parts, self._strategy)
                call.progress.step = snapshot.about["step"]
            logs = loops.evaluate(call, batches)
        return logs if return_dict else metrics_in_order(self._model, logs)

    @through_model
    @_judged
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> Any:
        """Predicts. Arguments and result are those of `keras.Model.predict`.

        Args:
            x: As for `fit`.
            batch_size: The global batch size, with arrays; 32 by default.
            verbose: 0, 1, 2 or "auto"; only the chief prints.
            steps: Steps to take; None for all the data.
            callbacks: Keras callbacks; their hooks run on every task.

        Returns:
            Arrays of shape `(examples, ...)` in the structure of the model's outputs, a row for
            each example in its order; all rows on all tasks.
        """
        return concatenate(list(self.predict_iter(x, batch_size, verbose, steps, callbacks)))

    def predict_iter(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> Iterator[Any]:
        """Predicts like `predict`, but yields the outputs as they come, for more than memory holds.

        All tasks must take as many. While they are taken the model's variables are on the devices.

        Args:
            x: As for `predict`.
            batch_size: As for `predict`.
            verbose: As for `predict`.
            steps: As for `predict`.
            callbacks: As for `predict`.

        Yields:
            Arrays of shape `(examples, ...)` in the structure of the model's outputs: the rows of
            one batch or of several, in order.
        """
        check_callbacks(callbacks)
        check_positive(batch_size=batch_size, steps=steps)
        batches = self._batches(x, None, None, batch_size, steps)
        with self._working(batches, train=False):
            call = self._call(callbacks, verbose, steps=batches.steps)
            yield from loops.predict(call, batches)

    @through_model
    @_judged
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Takes one step on one global batch; arguments and result as in Keras."""
        check_class_weight(class_weight)
        return self._on_batch("train_step", (x, y, sample_weight), return_dict, class_weight)

    @through_model
    @_judged
    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Evaluates one global batch; arguments and result as in Keras."""
        return self._on_batch("test_step", (x, y, sample_weight), return_dict)

    @through_model
    @_judged
    def predict_on_batch(self, x: Any) -> Any:
        """Predicts one global batch; arguments and result as in Keras."""
        batches, run = self._one_batch((x, None, None))
        with self._working(batches, train=False):
            return concatenate(self._graphs.prediction().run(run, 1)[1])

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the model as `keras.Model.save` does: the chief writes, all tasks wait for it.

        The file appears at once and whole, or not at all.

        Args:
            filepath: Path, the same on every task.
            overwrite: Whether to replace a file that is there.
            **kwargs: Further arguments of `keras.Model.save`.

        Raises:
            ValueError: If a file is there that must not be replaced, or is no model's file.
        """
        try:
            if self.is_chief and not overwrite and os.path.exists(filepath):
                raise ValueError(
                    f"`filepath` is {os.fspath(filepath)!r}, which exists: give another path, or "
                    "overwrite=True to replace it."
                )
            if self.is_chief:
                with write_path(filepath, "filepath") as aside:
                    self._model.save(aside, **kwargs)
        finally:
            self._strategy.host_collectives.any_true(False)

    def _train(self, state: FitState, *, is_saved: bool) -> None:
        """Runs the loop of `fit`; warns first of what it cannot do as the user may expect.

        Args:
            state: The `fit`.
            is_saved: Whether a callback saves or restores it.
        """
        warn_of_thawed(self._model)
        execution = self._graphs.execution("train_step")
        if is_saved and isinstance(execution, Execution):
            execution.look_at_graphs(_warn_of_hidden_state)
        try:
            loops.fit(state)
        finally:
            self._interrupted = state.interrupted
        if state.progress.step:
            remember_trained(self._model)  # also where an earlier run has taken the steps

    def _on_batch(
        self,
        step: str,
        data: tuple[Any, Any, Any],
        return_dict: bool,
        class_weight: Mapping[int, float] | None = None,
    ) -> Any:
        self._require_compiled()
        batches, run = self._one_batch(data, class_weight)
        with self._working(batches, train=step == "train_step"):
            self._require_targets(batches, step)
            self._model.reset_metrics()
            if step == "train_step":
                warn_of_thawed(self._model)
            execution = self._graphs.execution(step)
            with self._heartbeat.phase(Phase.STEP):
                logs = as_numbers(execution.run(run, 1).logs)
            execution.settle()
        return logs if return_dict else metrics_in_order(self._model, logs)

    def _batches(
        self, x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None
    ) -> Batches:
        """Global batches in their order, to evaluate or predict."""
        steps, strategy = capped_steps(steps), self._strategy
        return batches_of_all(
            x, y, sample_weight, strategy=strategy, batch_size=batch_size, steps=steps
        )

    def _one_batch(
        self, data: tuple[Any, Any, Any], class_weight: Mapping[int, float] | None = None
    ) -> tuple[Batches, Segment]:
        """Batches and a segment of one step on `data`, the whole of it on every task."""
        require_arrays(*data)
        batches = as_batches(*data, strategy=_Alone(), steps=1, class_weight=class_weight)
        assert isinstance(batches, ArrayBatches)
        return batches, batches.whole()

    @contextmanager
    def _working(
        self, batches: Batches, *, train: bool, callbacks: Callbacks = None
    ) -> Iterator[None]:
        """Within it the model is built and its variables are on the devices."""
        is_chief = self._strategy.is_chief
        saving = nullcontext() if is_chief else saving_nothing(self._model, callbacks)
        try:
            with (
                self._heartbeat.call(),
                self._strategy.naming_failures(),
                self._placement.placed(),
                resolved_jit(self._model, self._strategy),
                saving,
            ):
                with self._strategy.scope():
                    self._build(batches, train)
                self._placement.take_scalars_as_numbers()
                yield
        finally:
            batches.close()

    def _validation(self, data: Any, batch_size: int | None, steps: int | None) -> Batches | None:
        """The validation data of a `fit`, checked before its first step."""
        if data is None:
            return None
        try:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            batches = self._batches(x, y, sample_weight, batch_size, steps)
            # A generator is not asked for a batch before the first validation.
            if not isinstance(batches, PythonBatches):
                self._require_targets(batches, "test_step")
        except ValueError as error:
            raise ValueError(f"`validation_data` is wrong: {error}") from error
        return batches

    def _require_targets(self, batches: Batches, step: str) -> None:
        """Refuses data without targets where Keras' own step needs them for its loss."""
        if self._graphs.has_default(step):
            require_targets(self._model, batches.spec)

    def _build(self, batches: Batches, train: bool) -> None:
        model = self._model
        train = train and self._graphs.has_default("train_step")
        spec = batches.spec
        try:
            build(model, spec, train=train, tf_strategy=self._strategy.tf_strategy)
        except Exception:
            # As in Keras, a model needs no `call` if its own steps do not call it. Its layers and
            # metrics must be built already, unless there is one replica only, which builds them
            # in its first step.
            layers = [layer for layer in all_layers(model) if layer is not model]
            own_steps = not (
                self._graphs.has_default("train_step") and self._graphs.has_default("test_step")
            )
            if not own_steps and is_built(model):
                raise
            if self.num_replicas > 1 and not (own_steps and all(x.built for x in layers)):
                raise

    def _call(self, callbacks: Callbacks, verbose: str | int, **shown: Any) -> Call:
        """The state of one call; `shown` is given to the progress bar."""
        model, strategy = self._model, self._strategy
        fixed = model.steps_per_execution
        return Call(
            model=model,
            strategy=strategy,
            graphs=self._graphs,
            callback_list=callback_list(callbacks, model, strategy, verbose=verbose, **shown),
            steps_per_execution=fixed if fixed > 1 or self._single_steps else None,
            heartbeat=self._heartbeat,
        )

    def _whole_executions(self, steps: int | None) -> int | None:
        """Steps of an epoch; as in Keras, rounded up to whole executions where these are fixed."""
        length: int = self._model.steps_per_execution
        return steps and -(-steps // length) * length

    def _seed_of_fit(self, shuffles: bool) -> int:
        """A seed of the order of the data: another one for each `fit`, the same on all workers.

        Where Keras would draw no number from Python's generator (before a model is built, and where
        nothing is shuffled), its state is restored, so that data draw the same numbers as in Keras.
        """
        if self._seed is None:
            with nullcontext() if shuffles and is_built(self._model) else undisturbed():
                drawn = random.getrandbits(31)
            self._seed = int(self._strategy.host_collectives.all_gather([drawn])[0, 0])
        self._fits += 1
        return self._seed + (self._fits - 1) * _SEED_STRIDE

    def _require_compiled(self) -> None:
        if not self._model.compiled:
            raise ValueError("You must call `compile()` before using the model.")


def _warn_of_hidden_state(graph: Any) -> None:
    """Warns of a step whose graph draws random numbers that no snapshot can restore."""
    if operations := drawing_operations(graph):
        warnings.warn(
            f"The model's step draws by TensorFlow's {', '.join(operations)}, which counts inside "
            "of the graph: training that goes on after a restart draws other numbers than it would "
            "have without. Use keras.random with a keras.random.SeedGenerator, or a "
            "tf.random.Generator that is an attribute of the layer; both are saved.",
            stacklevel=2,
        )


def _is_evaluator(cluster: Cluster | None) -> bool:
    """Whether this task is an evaluator; `cluster` is that of its strategy."""
    cluster = cluster or current_cluster()
    return cluster is not None and cluster.is_evaluator


def _refuse_evaluator(cluster: Cluster | None) -> None:
    cluster = cluster or current_cluster()
    if cluster is not None and cluster.is_evaluator:
        check_trains(cluster)


class _Alone(Strategy):
    """A strategy that takes whole batches on every task."""

    num_replicas = num_local_replicas = num_workers = 1
    first_local_replica = worker_index = 0
    fetches_ahead = False
