"""The Trainer: Keras' `compile`, `fit`, `evaluate` and `predict` on any `tf.distribute` strategy.

The Trainer checks the arguments, and makes what a call needs, such as batches and graphs. Then it
calls the loops over epochs and steps, which are in `training/loops.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import keras

from kfit import fault_sites
from kfit.argument_checks import check_positive, is_integer
from kfit.checkpoint import state as checkpoint_state
from kfit.checkpoint.callback_states import CallbackStates
from kfit.checkpoint.late_variables import may_make_variables
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.state import Part, belongings
from kfit.cluster.cluster import Cluster, check_trains
from kfit.cluster.resolvers import cluster_source, current_cluster
from kfit.distribute.dataset_sharding import in_order
from kfit.distribute.factory import as_strategy, explain_choice, tell_choice
from kfit.distribute.scopes import check_scope, scope_of
from kfit.distribute.strategy import Strategy, TFStrategy
from kfit.fingerprints import fingerprint_of
from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.tracebacks import each_for_user, for_user, warn_user, warning_once
from kfit.inputs import Batches, columns_as_arrays, kind_of, split_validation
from kfit.inputs.foreign_passes import counting_foreign_passes
from kfit.internals.keras_methods import own_method
from kfit.internals.models import metrics_in_order
from kfit.report import Account, Report
from kfit.report.one_batch import first_batch
from kfit.report.step_parts import parts_of_step
from kfit.saving import write_path
from kfit.steps.frozen import remember_trained, warn_of_thawed
from kfit.steps.jit import remember_jit
from kfit.steps.metrics import as_numbers, reset_metrics
from kfit.steps.prediction import concatenate
from kfit.training import loops
from kfit.training.arguments import (
    capped_epochs,
    capped_steps,
    check_callbacks,
    check_class_weight,
    check_epochs,
    check_model,
    check_profile,
    check_shuffle,
    check_takes_no_targets,
    validation_rule,
    warn_of_one_reading,
    warn_of_unused,
)
from kfit.training.call import Call, Callbacks, callback_list
from kfit.training.callback import TrainingCallback
from kfit.training.chief_only import listed
from kfit.training.fit_executor import FitExecutor
from kfit.training.fit_state import FitState
from kfit.training.made_model import made_model
from kfit.training.one_batch import OneBatchMaker
from kfit.training.order_seeds import OrderSeeds
from kfit.training.own_methods import direct, through_model
from kfit.training.progress_bar import bars_shown
from kfit.training.ready_model import ReadyModel
from kfit.training.restored_first import restoring_first
from kfit.training.same_data import BatchComparison, batches_of_all
from kfit.training.save_points import PeerFailedError
from kfit.training.shown_elsewhere import progress_shown_elsewhere
from kfit.training.turns import Purpose
from kfit.training.unsynchronized import tell_of_unsynchronized
from kfit.training.validation import ValidationData
from kfit.verification.report import Verification
from kfit.verification.runs import Way
from kfit.verification.verify import check_replicas, verify

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _judged(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of a method: while the method runs, hang detection watches this task.

    `kfit run` starts tasks under a supervisor process. Only during such a call does the supervisor
    judge whether the task makes progress.
    """

    @wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with Heartbeat.of_environment().call():
            return method(*args, **kwargs)

    return called


def _accounted(fit: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of `Trainer.fit`: the trainer's account counts the time that the method takes.

    The heartbeat counts the `fit`s, so that the supervisor (`kfit run`) knows whose step it is
    told.

    When the method has ended, the chief prints a line, or the report if `fit` was profiled.
    """

    @wraps(fit)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        self: Any = args[0]
        account = self._account = Account()
        with account.running(), warning_once(), self._heartbeat.fit():
            result = fit(*args, **kwargs)
        self._account = account  # a callback may have called `fit`, too
        if (text := account.summary()) is not None:
            print(text, flush=True)
        return result

    return called


class Trainer:
    """A trainer of a Keras model on one device, several devices or several machines.

    Example:
        >>> trainer = kfit.Trainer(model, strategy="mirrored")
        >>> trainer.compile(optimizer="adam", loss="mse")
        >>> history = trainer.fit(x, y, batch_size=128, epochs=3)

    Args:
        model: Either a Keras model, or a function without arguments that returns one. A model may
            be compiled or not, and need not be made in the strategy's scope; training changes the
            weights of this object. A function is called in the strategy's scope.
        strategy: `"auto"`, `"one_device"`, `"mirrored"`, `"multi_worker"`, `"parameter_server"`,
            `"tpu"`, a `tf.distribute.Strategy` or a wrapper of one from `kfit.distribute`. `"auto"`
            prints its choice, once for several trainers.
        devices: The devices of the strategy "mirrored": a number n takes the first n GPUs, or, if
            there is no GPU, splits the CPU into n logical devices. TensorFlow can split the CPU
            only before it runs its first operation, so `model` must be a function then. Names of
            devices, such as `["GPU:0", "GPU:1"]`, take these. None takes all.
        seed: Seed of the order of the data. If it is None, the chief draws a seed for all workers
            from Python's `random`, which `keras.utils.set_random_seed` seeds. Each `fit` has
            another order; the orders repeat after `keras.utils.set_random_seed`, or in a new
            trainer with the same `seed`.

    Raises:
        ValueError: If `model`, `strategy`, `devices` or `seed` is none of these, if it is too late
            to split the CPU, or if the trainer is created in the scope of another strategy.
        ClusterError: If the description of the cluster is wrong, or its tasks cannot connect to
            each other.
    """

    @for_user
    def __init__(
        self,
        model: keras.Model | Callable[[], keras.Model],
        strategy: str | Strategy | TFStrategy = "auto",
        *,
        devices: int | Sequence[str | int] | None = None,
        seed: int | None = None,
    ) -> None:
        fault_sites.check()
        check_model(model)
        if seed is not None and not is_integer(seed):
            raise ValueError(f"`seed` must be an integer or None. Received: {seed!r}")
        if seed is not None and not -(1 << 63) <= seed < 1 << 63:
            raise ValueError(f"`seed` must be a number of 64 bits. Received: {seed!r}")
        self._strategy = as_strategy(strategy, model, devices)
        self._is_chosen = isinstance(strategy, str) and strategy == "auto"
        check_scope(self._strategy)
        self._strategy.tf_strategy  # noqa: B018  comes up here, with its devices and servers
        choice = None if devices is not None else explain_choice(strategy, self._strategy, model)
        if choice is not None and self._strategy.is_chief:
            tell_choice(choice)
        self._model = made_model(model, self._strategy)
        self._one_batch = OneBatchMaker()
        self._comparison = BatchComparison(self._strategy)
        given = None if seed is None else int(seed)  # as snapshots need it
        self._seeds = OrderSeeds(given, self._model, self._strategy.host_collectives)
        self._single_steps = False
        self._interrupted = False
        self._account: Account | None = None
        self._heartbeat = Heartbeat.of_environment()
        self._ready = ReadyModel(self._model, self._strategy, self._heartbeat)

    def __repr__(self) -> str:
        return f"<kfit.Trainer of {self._model.name!r} on {self._strategy!r}>"

    if not TYPE_CHECKING:  # for checkers a Trainer has no other attributes than it has

        def __getattr__(self, name: str) -> Any:
            """Says of what only the model has, such as `summary`, where it is."""
            __tracebackhide__ = True  # in notebooks
            if hasattr(type(self), name):  # a property, whose own error is raised again
                return object.__getattribute__(self, name)
            says = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(keras.Model, name):
                says += f", but its model has: `trainer.model.{name}`"
            if name == "load":
                says += (
                    ": `keras.models.load_model(path)` reads a saved model, and "
                    "`trainer.model.load_weights(path)` its weights"
                )
            raise AttributeError(says, name=name, obj=self)

    @property
    def model(self) -> keras.Model:
        """The model that is trained. Between calls of the trainer it is a plain Keras model."""
        return self._model

    @property
    def strategy(self) -> Strategy:
        """The strategy that the trainer uses, as kfit's wrapper of TensorFlow's strategy.

        The attribute `tf_strategy` of the wrapper is the `tf.distribute.Strategy` itself.
        """
        return self._strategy

    @property
    def cluster(self) -> Cluster | None:
        """The cluster's tasks and their addresses, or None if this process trains alone."""
        return self._strategy.cluster

    @property
    def num_replicas(self) -> int:
        """The number of replicas (devices that run a copy of each step) on all tasks together."""
        return self._strategy.num_replicas

    @property
    def is_chief(self) -> bool:
        """Whether this task prints and writes files for all tasks; False on an evaluator."""
        return self._strategy.is_chief and not _is_evaluator(self.cluster)

    @property
    def history(self) -> keras.callbacks.History | None:
        """The History of the model's last `fit`, or None before the first."""
        return getattr(self._model, "history", None)

    @property
    def interrupted(self) -> bool:
        """Whether a callback ended the last `fit` early, so that a later run can resume it.

        `kfit.callbacks.TimeLimit` is such a callback. The value is False before the first `fit`.
        """
        return self._interrupted

    @for_user
    def report(self) -> Report:
        """Returns what took the time of the last `fit`, and how much of its work counts.

        It may be called after `fit`, also if `fit` has failed, or by a callback during `fit`. On
        several workers, the chief's report has the steps and examples of all workers, and the
        chief's times.

        Example:
            >>> trainer.fit(x, y, epochs=3)
            >>> print(trainer.report())

        Raises:
            RuntimeError: If `fit` was not called yet.
        """
        if self._account is None:
            raise RuntimeError(
                "`report` tells of the last `fit` of this trainer, and there was none: call `fit` "
                "first."
            )
        return self._account.report()

    @for_user
    @_judged  # creating a variable in a strategy's scope waits for the other tasks
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
            steps_per_execution: The number of steps that one graph call takes. Callbacks' hooks for
                batches are called once for each graph call. "auto" means as many steps as run in a
                fraction of a second, or one step if a callback has hooks for batches.
            jit_compile: As in Keras, but "auto" means False on several replicas on accelerators.
            auto_scale_loss: As in Keras.
            **kwargs: Further arguments of a model that overrides `compile`.

        Raises:
            ValueError: If `steps_per_execution` is neither "auto" nor an integer of at least 1.
        """
        if steps_per_execution != "auto" and (
            not is_integer(steps_per_execution) or int(steps_per_execution) < 1
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
        # Keras' own default is 1, too. So `model.steps_per_execution` does not show whether the
        # user has passed 1.
        self._single_steps = steps_per_execution == 1
        # Between calls a model is a plain Keras model, and so are its optimizer and its metrics.
        is_in_scope = scope_of(self._model) is self._strategy.tf_strategy
        with self._strategy.scope() if is_in_scope else nullcontext():
            if steps_per_execution != "auto":
                arguments["steps_per_execution"] = steps_per_execution
            if type(self._model).compile is keras.Model.compile or optimizer != "rmsprop":
                arguments["optimizer"] = optimizer
            self._model.compile(**arguments, **kwargs)
        remember_jit(self._model, jit_compile)

    @through_model
    @_judged
    @_accounted
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
        *,
        profile: bool = False,
    ) -> keras.callbacks.History:
        """Trains the model. Arguments and result are those of `keras.Model.fit`.

        The same data must be passed on every worker; each worker trains on its own part of the
        data.

        Args:
            x: Arrays in any structure, a `tf.data.Dataset` batched to the global batch size, a
                `keras.utils.PyDataset`, a generator, a torch or grain loader, a distributed data
                set, or a function. A function gets a `tf.distribute.InputContext`, and returns a
                data set batched to the batch size of one replica.
            y: Targets; only if `x` is arrays.
            batch_size: The *global* batch size, over all replicas; only if `x` is arrays. By
                default 32 or, with `steps_per_epoch`, such that an epoch reads all the data once,
                as in Keras.
            epochs: The number of epochs after which training ends, including those before
                `initial_epoch`.
            verbose: 0, 1, 2 or "auto"; only the chief prints.
            callbacks: Keras callbacks; their hooks run on every task.
            validation_split: The fraction of the arrays, from their end, to validate on.
            validation_data: `(x, y)`, `(x, y, sample_weight)`, or anything that `x` may be.
            shuffle: Whether to shuffle arrays, and the batches of a PyDataset, in each epoch;
                "batch" shuffles arrays within batches only.
            class_weight: A dict that maps each class to the weight of its examples in the loss.
            sample_weight: The weight of each example; only if `x` is arrays.
            initial_epoch: The index of the epoch to begin with, counted from 0.
            steps_per_epoch: The number of steps in an epoch; None for all the data. For a generator
                that never ends it must be given: without it, the first epoch never ends, either.
            validation_steps: The number of steps in a validation; None for all the data.
            validation_batch_size: The global batch size of validation; `batch_size` by default.
            validation_freq: A number n, to validate after every n epochs; or a list of the epochs
                to validate after, counted from 1.
            profile: Whether to measure what the parts of a step take, and to print the report
                (`report`) with advice when training has ended, unless `verbose=0`. The parts are
                measured after the last step, for which some steps are run again and undone;
                training itself is the same.

        Returns:
            The `keras.callbacks.History`, equal on all tasks.

        Raises:
            ValueError: If an argument is wrong, or the data and the model do not fit together.
            KeyboardInterrupt: On all tasks after the same step, if Ctrl-C was pressed.
            SystemExit: On all tasks after the same step, if one task got SIGTERM, SIGUSR1 or
                SIGHUP. The code is 128 + the signal's number. `kfit.callbacks.BackupAndRestore`
                saves the training's state after this step.
            PeerFailedError: If a callback has failed on another task. On the task on which it has
                failed, its own error is raised.
            ClusterError: If this task is an evaluator; see `kfit.train_and_evaluate`.
        """
        self._require_compiled()
        self._check_cluster()
        check_profile(profile, self._strategy)
        check_epochs(epochs, initial_epoch)
        check_shuffle(shuffle)
        check_class_weight(class_weight)
        check_callbacks(callbacks)
        check_positive(batch_size=batch_size, steps_per_epoch=steps_per_epoch)
        check_positive(validation_steps=validation_steps)
        check_positive(validation_batch_size=validation_batch_size)
        should_validate = validation_rule(validation_freq)
        epochs, steps_per_epoch = capped_epochs(epochs), capped_steps(steps_per_epoch)
        initial_epoch = int(initial_epoch)  # as snapshots need it
        x, y, sample_weight = columns_as_arrays((x, y, sample_weight))
        validation_data = columns_as_arrays(validation_data)
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
            steps=steps_per_epoch,
            steps_per_execution=int(self._model.steps_per_execution),  # as snapshots need it
            shuffle=shuffle,
            seed=self._seeds.of_next_fit(),
            class_weight=class_weight,
        )
        warn_of_unused(batch_size, batches, kind_of(x))
        told_of_end = warn_of_one_reading(batches, steps_per_epoch, epochs - initial_epoch)
        given = ValidationData(
            validation_data, validation_batch_size or batch_size, validation_steps
        )
        validation = given.batches(self._batches, self._ready)
        own = own_method(self._model, "evaluate")
        own_evaluate = own and partial(given.evaluate_by, own, self)
        is_saved = any(isinstance(c, TrainingCallback) and c.takes_part for c in listed(callbacks))
        if is_saved:
            foreign = belongings(self.model) | set(map(id, listed(callbacks)))
            batches.keep_states(foreign)
            if validation is not None:
                # What the two share, such as a generator, is saved with the training data.
                validation.keep_states(foreign | batches.belongings())
        closed = nullcontext() if validation is None else closing(validation)
        ready = self._ready.working(
            batches, "train", restores=is_saved, validation=validation, callbacks=callbacks
        )
        with ready as naming, closed:
            self._ready.require_targets(batches, "train_step")
            memory = CallbackStates(listed(callbacks), is_chief=self.is_chief)
            shown = {"epochs": epochs, "steps": steps_per_epoch or batches.steps}
            call = self._call(callbacks, verbose, batches, **shown, add_history=True)
            call.progress.epoch = batches.first_epoch = initial_epoch
            call.naming = naming
            state = FitState(
                call=call,
                batches=batches,
                validation=validation,
                should_validate=should_validate,
                memory=memory,
                epochs=epochs,
                told_of_end=told_of_end,
                own_evaluate=own_evaluate,
                build_optimizer=self._ready.build_optimizer,
                seeds=self._seeds,
                fingerprint=partial(
                    fingerprint_of,
                    self._model,
                    (x, y, sample_weight),
                    validation_data,
                    seed=self._seeds.of_program,
                    class_weight=class_weight,
                    validation={"steps": validation_steps, "freq": validation_freq},
                ),
            )
            self._open_account(state, epochs - initial_epoch, verbose, profile)
            elsewhere = progress_shown_elsewhere(self.cluster, state, verbose)
            with bars_shown(call.callbacks), elsewhere:
                self._train(state, is_saved=is_saved)
            if profile and not state.interrupted:
                self._measure_parts(call.account, batches)
        return self._model.history

    @restoring_first
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

        In addition, the weights of a saved training can be evaluated (`snapshot`).

        Args:
            x: As for `fit`.
            y: Targets; only if `x` is arrays.
            batch_size: The global batch size; only if `x` is arrays. By default 32 or, with
                `steps`, such that the steps read all the data once, as in Keras.
            verbose: 0, 1, 2 or "auto"; only the chief prints.
            sample_weight: The weight of each example; only if `x` is arrays.
            steps: The number of steps to take; None for all the data.
            callbacks: Keras callbacks; their hooks run on every task.
            return_dict: Whether to return a dict.
            snapshot: The saved state of a training of this model, read by `kfit.checkpoint.Store`;
                the same on every task. Its weights replace those of the model before the
                evaluation, and stay in the model. None to evaluate the model's present weights.
            parts: The parts of the snapshot to restore: "model", and "optimizer" if the model will
                be saved with its optimizer.

        Returns:
            The loss, a list of the loss and the metrics, or a dict of them. They are computed over
            all examples, and equal on all tasks.

        Raises:
            SnapshotMismatchError: If `snapshot` is of a different model.
        """
        self._require_compiled()
        check_callbacks(callbacks)
        check_positive(batch_size=batch_size, steps=steps)
        batches = self._batches(x, y, sample_weight, batch_size, steps)
        warn_of_unused(batch_size, batches, kind_of(x))
        restores = snapshot is not None
        ready = self._ready.working(
            batches,
            "evaluate",
            with_optimizer=restores and "optimizer" in parts,
            restores=restores,
            callbacks=callbacks,
        )
        with ready as naming, naming():
            self._ready.require_targets(batches, "test_step")
            call = self._call(callbacks, verbose, batches, steps=batches.steps)
            if snapshot is not None:
                self._restore(snapshot, parts, batches)
                call.progress.step = snapshot.about["step"]
            with bars_shown(call.callbacks):
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
        """Predicts outputs for `x`. Arguments and result are those of `keras.Model.predict`.

        Args:
            x: As for `fit`.
            batch_size: The global batch size; only if `x` is arrays. By default 32 or, with
                `steps`, such that the steps read all the data once, as in Keras.
            verbose: 0, 1, 2 or "auto"; only the chief prints.
            steps: The number of steps to take; None for all the data.
            callbacks: Keras callbacks; their hooks run on every task.

        Returns:
            Arrays of shape `(examples, ...)` in the structure of the model's outputs, with a row
            for each example, in the order of the data. Each task gets the rows of all examples.
        """
        return concatenate(list(self.predict_iter(x, batch_size, verbose, steps, callbacks)))

    @each_for_user
    def predict_iter(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> Iterator[Any]:
        """Yields the outputs of `predict` in portions, for outputs that do not fit into memory.

        The tasks compute each portion together, so all tasks must iterate equally often. From the
        first portion until the iterator has ended or is closed, the model's variables are on the
        strategy's devices.

        Args:
            x: As for `predict`.
            batch_size: As for `predict`.
            verbose: As for `predict`.
            steps: As for `predict`.
            callbacks: As for `predict`.

        Yields:
            Arrays of shape `(examples, ...)` in the structure of the model's outputs, with the rows
            of the next batch or of the next few batches.
        """
        check_takes_no_targets(batch_size)
        check_callbacks(callbacks)
        check_positive(batch_size=batch_size, steps=steps)
        batches = self._batches(in_order(x, self._strategy), None, None, batch_size, steps)
        warn_of_unused(batch_size, batches, kind_of(x))
        working = self._ready.working(batches, "predict", callbacks=callbacks)
        with working as naming, naming():
            call = self._call(callbacks, verbose, batches, steps=batches.steps)
            with bars_shown(call.callbacks):
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
        """Takes one training step on one global batch; arguments and result are those of Keras.

        All tasks must pass the same data: the whole batch, as arrays. The tasks compare the first
        batch, the second, the fourth, the eighth and so on, and raise a ValueError if they differ.
        """
        check_class_weight(class_weight)
        return self._on_batch("train_step", (x, y, sample_weight), return_dict, class_weight)

    @through_model
    @_judged
    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Evaluates one global batch; arguments and result are those of Keras.

        All tasks must pass the same data: the whole batch, as arrays. The tasks compare the first
        batch, the second, the fourth, the eighth and so on, and raise a ValueError if they differ.
        """
        return self._on_batch("test_step", (x, y, sample_weight), return_dict)

    @through_model
    @_judged
    def predict_on_batch(self, x: Any) -> Any:
        """Predicts one global batch; the argument and the result are those of Keras.

        All tasks must pass the same data: the whole batch, as arrays. The tasks compare the first
        batch, the second, the fourth, the eighth and so on, and raise a ValueError if they differ.
        """
        data = x, None, None
        batch = self._one_batch.make(data, trains=False)
        self._comparison.compare(data)
        with self._ready.working(batch, "predict") as naming, naming():
            return concatenate(self._ready.graphs.prediction().run(batch.segment, 1)[1])

    @for_user
    def verify(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        *,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        steps_per_epoch: int | None = None,
        replicas: int = 2,
        steps: int = 3,
    ) -> Verification:
        """Compares a few training steps on one device with the same steps on several replicas.

        The model trains for a few steps on one device of this host, and from the same weights,
        seeds and batches on several devices. If a layer, a loss or a `train_step` does not compute
        the same on replicas, the result names it. Afterwards the model, its optimizer and metrics,
        the random generators and the position in the data are as before. A model that was not built
        is built. A `tf.data.Dataset` that shuffles draws a seed for the reading, as it does in each
        epoch.

        Without enough GPUs the CPU is split into devices, which TensorFlow can do only before its
        first operation. The command `kfit verify script.py` does so in a process of its own.

        Args:
            x: As for `fit`, but not a generator, which could not be read again by `fit`.
            y: Targets; only if `x` is arrays.
            batch_size: As for `fit`.
            shuffle: As for `fit`.
            class_weight: As for `fit`.
            sample_weight: As for `fit`.
            steps_per_epoch: As for `fit`.
            replicas: The number of replicas to compare with one device, at least 2.
            steps: The number of steps. With gradient accumulation, the number of updates. The last
                step is on the last, usually shorter batch of the data, if this can be found.

        Returns:
            The result; `print` shows the verdict, the differences and their causes. It is true if
            the numbers are equal.

        Raises:
            ValueError: If an argument is wrong, this process has too few devices, kfit refuses to
                train the model on replicas, or all weights of a layer become NaN.
        """
        self._require_compiled()
        self._check_cluster()
        check_shuffle(shuffle)
        check_class_weight(class_weight)
        check_positive(batch_size=batch_size, steps_per_epoch=steps_per_epoch, steps=steps)
        check_replicas(replicas, self._strategy.num_workers)
        seed = self._seeds.given or 0
        return verify(
            self._model,
            lambda strategy: self._way_of(Trainer(self._model, strategy, seed=seed)),
            (x, y, sample_weight),
            replicas=replicas,
            steps=steps,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            class_weight=class_weight,
            steps_per_epoch=steps_per_epoch,
        )

    @for_user
    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the model as `keras.Model.save` does; all tasks must call this method.

        Only the chief writes the file, while the other tasks wait. Readers never see an incomplete
        file, since the chief writes to a temporary path first.

        Args:
            filepath: The path of the file, the same on every task.
            overwrite: Whether to replace an existing file.
            **kwargs: Further arguments of `keras.Model.save`.

        Raises:
            ValueError: On the chief, if the file exists and `overwrite` is False, or if the
                existing file must not be replaced (see `kfit.saving.write_path`).
            PeerFailedError: On the other tasks, if the chief has not saved the model.
        """
        has_failed = True
        try:
            if self.is_chief and not overwrite and os.path.exists(filepath):
                raise ValueError(
                    f"`filepath` is {os.fspath(filepath)!r}, which exists: give another path, or "
                    "overwrite=True to replace it."
                )
            if self.is_chief:
                with write_path(filepath, "filepath") as aside:
                    self._model.save(aside, **kwargs)
            has_failed = False
        finally:
            chief_failed = self._strategy.host_collectives.any_true(has_failed)
        if chief_failed:
            raise PeerFailedError(
                f"The chief could not save the model as {os.fspath(filepath)!r}; its own output "
                "says why. This task stops with it."
            )

    def _train(self, state: FitState, *, is_saved: bool) -> None:
        """Runs the training loop of `fit`.

        Args:
            state: The state of the `fit`: data, epochs, callbacks and so on.
            is_saved: Whether a callback saves or restores the state of the training.
        """
        warn_of_thawed(self._model)
        executor = FitExecutor(self._ready, state, is_saved=is_saved)
        read = [state.batches, *([] if state.validation is None else [state.validation])]
        sources = [each.counted_by for each in read]
        try:
            with counting_foreign_passes(sources) if is_saved else nullcontext():
                loops.fit(state, executor)
        finally:
            self._seeds.end_fit()
            self._interrupted = state.interrupted
        if state.progress.step:
            # Also if an earlier run has taken all the steps, and this run has traced no graph.
            remember_trained(self._model)

    def _open_account(
        self, state: FitState, epochs: int, verbose: str | int, profile: bool
    ) -> None:
        """Gives a `fit` the account that collects the figures for its report.

        Args:
            state: The state of the `fit`.
            epochs: The number of epochs, without those before `initial_epoch`.
            verbose: As for `fit`.
            profile: As for `fit`.
        """
        account, call, batches = self._account, state.call, state.batches
        assert account is not None
        call.account = account
        per_epoch = batches.examples_per_epoch
        account.expected_examples = None if per_epoch is None else per_epoch * max(0, epochs)
        account.num_replicas, account.num_tasks = self.num_replicas, self._strategy.num_workers
        account.has_parts, account.in_memory = batches.has_parts, batches.in_memory
        account.profiles = profile
        account.shows = verbose != 0 and self.is_chief
        if account.shows:
            tell_of_unsynchronized(self._model, self._strategy)

    def _measure_parts(self, account: Account, batches: Batches) -> None:
        """Measures the parts of a step after the last step of a `fit` with `profile=True`.

        Args:
            account: The account of the `fit`, which gets the figures.
            batches: The training data.
        """
        account.stop()  # the measurement is no part of the training
        size = batches.batch_size or account.mean_batch_size
        batch = first_batch(batches, size) if size else None
        if batch is None:
            warn_user(
                "`profile=True` measures no parts of a step here: they are measured on a batch "
                "of zeros, and the shapes of the batches of `x` are not fixed. The rest of the "
                "report is complete."
            )
            return
        account.step_parts = parts_of_step(self._model, self._strategy, batch, self._heartbeat)

    def _restore(self, snapshot: Snapshot, parts: Sequence[Part], batches: Batches) -> None:
        """Restores a snapshot, within `ReadyModel.working`, before the model is evaluated.

        Optimizers that the model's own `train_step` builds get their variables by tracing it.

        Args:
            snapshot: As for `evaluate`.
            parts: As for `evaluate`.
            batches: The data of the evaluation.
        """
        if "optimizer" in parts:
            self._ready.build_optimizer()
        if "optimizer" in parts and may_make_variables(self._model):
            execution = self._ready.graphs.execution("train_step")
            execution.make_variables(batches.empty_segment(), single_step=True)
        checkpoint_state.restore(self._model, snapshot, parts, self._strategy)

    def _restore_apart(
        self,
        snapshot: Snapshot,
        parts: Sequence[Part],
        x: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> None:
        """Restores a snapshot before the model's own `evaluate` is called; arguments as for it."""
        self._require_compiled()
        batches = self._batches(x, y, sample_weight, batch_size, steps)
        with_optimizer = "optimizer" in parts
        ready = self._ready.working(
            batches, "evaluate", with_optimizer=with_optimizer, restores=True
        )
        with ready as naming, naming():
            self._restore(snapshot, parts, batches)

    def _on_batch(
        self,
        step: str,
        data: tuple[Any, Any, Any],
        return_dict: bool,
        class_weight: Mapping[int, float] | None = None,
    ) -> Any:
        self._require_compiled()
        batch = self._one_batch.make(data, class_weight, trains=True)
        self._comparison.compare(data, class_weight)
        purpose: Purpose = "train" if step == "train_step" else "evaluate"
        with self._ready.turn(purpose):
            # Metrics are reset before their variables are on several devices: that is faster.
            reset_metrics(self._model)
            with self._ready.working(batch, purpose) as naming, naming():
                self._ready.require_targets(batch, step)
                if step == "train_step":
                    self._ready.build_optimizer()
                    warn_of_thawed(self._model)
                execution = self._ready.graphs.execution(step)
                with self._heartbeat.phase(Phase.STEP):
                    logs = as_numbers(execution.run(batch.segment, 1).logs)
                execution.settle()
        return logs if return_dict else metrics_in_order(self._model, logs)

    @staticmethod
    def _way_of(trainer: Trainer) -> Way:
        return Way(
            strategy=trainer._strategy,
            fit=direct(trainer, "fit"),
            predict=direct(trainer, "predict"),
            make_variables=trainer._ready.make_variables,
        )

    def _batches(
        self, x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None
    ) -> Batches:
        """Makes global batches for an evaluation or a prediction, in the order of the data.

        Args:
            x: As for `evaluate`.
            y: As for `evaluate`.
            sample_weight: As for `evaluate`.
            batch_size: The global batch size; None for the default of `as_batches`.
            steps: The number of steps to take; None for all the data.
        """
        steps, strategy = capped_steps(steps), self._strategy
        return batches_of_all(
            x, y, sample_weight, strategy=strategy, batch_size=batch_size, steps=steps
        )

    def _call(
        self, callbacks: Callbacks, verbose: str | int, batches: Batches, **shown: Any
    ) -> Call:
        """Returns an object with what the loops of one `fit`, `evaluate` or `predict` need.

        Args:
            callbacks: The user's callbacks.
            verbose: As for `fit`.
            batches: The data.
            **shown: Further arguments of `callback_list`, such as the numbers of epochs and steps
                that the progress bar shows.
        """
        model, strategy = self._model, self._strategy
        fixed = int(model.steps_per_execution)
        made = callback_list(
            callbacks,
            model,
            strategy,
            verbose=verbose,
            global_batch_size=lambda: batches.examples_per_step,
            **shown,
        )
        return Call(
            model=model,
            strategy=strategy,
            graphs=self._ready.graphs,
            callback_list=made,
            steps_per_execution=fixed if fixed > 1 or self._single_steps else None,
            heartbeat=self._heartbeat,
            turns=self._ready.turns,
        )

    def _check_cluster(self) -> None:
        """Refuses to train on an evaluator; warns if the cluster was described too late."""
        cluster = self.cluster or current_cluster()
        if cluster is not None and cluster.is_evaluator:
            check_trains(cluster)
        if self._is_chosen and self.cluster is None and cluster is not None and cluster.joins:
            warn_user(
                f"{cluster_source()} describes {cluster.num_workers} workers, but this process "
                "trains alone: the strategy 'auto' was chosen for this model before the cluster "
                "was described. Set it before anything else, also in a notebook (after a restart "
                "of its kernel), or start the tasks by `kfit run` or kfit.launch."
            )

    def _require_compiled(self) -> None:
        if not self._model.compiled:
            raise ValueError(
                "You must call `compile()` before using the model: `trainer.compile(optimizer, "
                "loss)` of a kfit.Trainer, or `model.compile(optimizer, loss)`."
            )


def _is_evaluator(cluster: Cluster | None) -> bool:
    """Returns whether this task is an evaluator, which evaluates checkpoints but does not train.

    Args:
        cluster: The cluster that the strategy has found. If None, the environment variables that
            describe a cluster are read.
    """
    cluster = cluster or current_cluster()
    return cluster is not None and cluster.is_evaluator
