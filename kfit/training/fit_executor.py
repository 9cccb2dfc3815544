"""The executor of the steps of one `fit`, made anew when a callback has it traced anew."""

from __future__ import annotations

from typing import Any

from kfit.heartbeat.tracebacks import warn_user
from kfit.objects.hidden_state import drawing_operations
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
                executor.look_at_graphs(_warn_of_hidden_state)
        return executor


def _warn_of_hidden_state(graph: Any) -> None:
    """Warns if the graph of a step draws random numbers from a state that cannot be saved.

    A training that resumes from a saved state would then draw different numbers.

    Args:
        graph: The `tf.Graph` of a step.
    """
    if operations := drawing_operations(graph):
        warn_user(
            f"The model's step draws by TensorFlow's {', '.join(operations)}, which counts inside "
            "of the graph: training that goes on after a restart draws other numbers than it would "
            "have without. Use keras.random with a keras.random.SeedGenerator, or a "
            "tf.random.Generator that is an attribute of the layer; both are saved."
        )
