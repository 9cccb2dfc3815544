"""The executor of the steps of one `fit`, made anew when a callback has it traced anew."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kfit.checkpoint.model_attributes import label_of, parts_of_model
from kfit.heartbeat.tracebacks import warn_user
from kfit.objects.attributes import listed
from kfit.objects.fields import fields_of, has_fields
from kfit.objects.hidden_state import changed_objects, drawing_operations
from kfit.objects.names import names_in
from kfit.steps.execution import Execution, StepExecutor
from kfit.training.fit_state import FitState
from kfit.training.ready_model import ReadyModel


class FitExecutor:
    """A function that returns the executor of the train step; the loop calls it before each epoch.

    If callbacks save the state of the training, it warns of what a resumed training could not
    repeat. It warns when a callback has compiled the model again, since the program would start
    with the model as it was compiled before, and likewise when it has set a schedule as a learning
    rate. And it warns of random operations in the train step whose state cannot be saved: when the
    step is traced, or now if an earlier call has traced it.

    Args:
        ready: The model, and what makes it ready.
        state: The state of the `fit`: data, epochs, callbacks and so on.
        is_saved: Whether a callback saves or restores the state of the training.
    """

    def __init__(self, ready: ReadyModel, state: FitState, *, is_saved: bool) -> None:
        self._ready = ready
        self._state = state
        self._is_saved = is_saved
        self._compiled = ready.graphs.compiled
        self._has_warned = False
        self._executor = self._made()

    def __call__(self) -> StepExecutor:
        """Returns the executor of the train step as the model is compiled now.

        Variables that hooks have made are moved to the strategy's devices.
        """
        self._ready.place_new()
        before, compiled, state = self._compiled, self._ready.graphs.compiled, self._state
        if self._is_saved and state.compilation.has_another_schedule and not self._has_warned:
            self._has_warned = True
            warn_user(
                "A callback has set another schedule as the learning rate in the middle of `fit`. "
                "Training cannot be resumed from snapshots that are saved from now on, since the "
                "program starts with the learning rate as it was before. Assign numbers to "
                "`optimizer.learning_rate`, or split the training into two `fit`s, with the "
                "schedule set between them."
            )
        if compiled.differs_from(before):
            if self._is_saved and state.compilation.is_anew:
                warn_user(
                    "A callback has compiled the model in the middle of `fit`. Training cannot be "
                    "resumed from snapshots that are saved from now on, since the program starts "
                    "with the model as it was compiled before. Split the training into two `fit`s, "
                    "with `compile` between them."
                )
            self._ready.make_ready_again(state.batches, state.validation)
        elif compiled.train_function == before.train_function:
            return self._executor
        self._compiled, self._executor = compiled, self._made()
        return self._executor

    def _made(self) -> StepExecutor:
        executor = self._ready.graphs.execution("train_step")
        if isinstance(executor, Execution):
            # Data in memory hardly ever keeps a step waiting, so it is not measured every time.
            is_measured = self._state.account.profiles or not self._state.batches.in_memory
            executor.times_input = is_measured
            if self._is_saved:
                executor.look_at_graphs(partial(_warn_of_hidden_state, self._state.model))
        return executor


def _warn_of_hidden_state(model: keras.Model, graph: Any) -> None:
    """Warns if the graph of a step changes a state that cannot be saved.

    It is that of random operations, and of tables, iterators and queues of TensorFlow. A training
    that resumes from a saved state would draw other numbers, and find these as they were made.

    Args:
        model: The model.
        graph: The `tf.Graph` of a step.
    """
    if changed := changed_objects(graph):
        held = [f"{_name_of(model, tensor)} (by {operation})" for tensor, operation in changed]
        warn_user(
            f"The model's step changes {listed(held)}, which is no variable and is not saved: "
            "after a restart it begins as the program makes it. Keep what a step counts in a "
            "variable (`add_weight`), and pass other data that it reads to `fit`, such as by "
            "`tf.data.Dataset.zip`."
        )
    if operations := drawing_operations(graph):
        warn_user(
            f"The model's step draws by TensorFlow's {', '.join(operations)}, which counts inside "
            "of the graph: training that goes on after a restart draws other numbers than it would "
            "have without. Use keras.random with a keras.random.SeedGenerator, or a "
            "tf.random.Generator that is an attribute of the layer; both are saved."
        )


def _name_of(model: keras.Model, tensor: tf.Tensor) -> str:
    """Returns where a model holds the table, iterator or queue that a tensor refers to.

    It is the name of an attribute of the model or of one of its parts, or that of a variable in
    their code.
    """
    for part in parts_of_model(model):
        named = ((f"{label_of(part)}.{name}", held) for name, held in fields_of(part).items())
        for name, held in (*named, *((each.name, each.get()) for each in names_in(part))):
            inside = fields_of(held).values() if has_fields(held) else ()
            if any(value is tensor for value in inside):
                return name
    return "a table, an iterator or a queue of TensorFlow"
