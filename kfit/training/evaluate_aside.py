"""Evaluates other data during a `fit`, without changing what the `fit` computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

from kfit.checkpoint import state
from kfit.distribute import variable_values
from kfit.objects import Generators
from kfit.training.arguments import capped_steps
from kfit.training.call import Callbacks, callback_list
from kfit.training.fit_state import FitState
from kfit.training.loops import evaluate
from kfit.training.same_data import batches_of_all

Data = tuple[Any, Any, Any]
"""What `evaluate` takes as `x`, `y` and `sample_weight`."""


@contextmanager
def set_aside(fit: FitState, *, only_evaluates: bool = False) -> Iterator[None]:
    """Context in which the model of a `fit` is used for something else, such as an evaluation.

    Training then continues as if there had been no such context. In the context it draws no batch.
    At the end, the variables of the model, its optimizers and its metrics get their values back,
    and so do the global random generators of Python, NumPy, torch, TensorFlow and Keras. If an
    error leaves the context, it ends training, and nothing is given back.

    It is a collective: all tasks must enter it at the same save point (a place in training where
    its state may be saved).

    Args:
        fit: The state of the `fit` that is running.
        only_evaluates: Whether nothing but Keras' own `test_step` uses the model. It changes no
            weights that are trained, and no optimizer, so these need not be kept.
    """
    listed = [
        entry.variable
        for entry in state.entries(fit.model)
        if not (only_evaluates and _is_trained(entry))
    ]
    with ExitStack() as stack:
        with fit.call.turns.lent(to="predictions"):  # which the batch being drawn may wait for
            stack.enter_context(fit.batches.paused())
        values = variable_values.get_values(listed, fit.strategy)
        generators = Generators.now()
        yield
        variable_values.set_values(listed, values, fit.strategy)
        generators.give()


def evaluate_aside(
    fit: FitState,
    data: Data,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    callbacks: Callbacks = None,
    by_model: Callable[..., dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Evaluates data with the current weights during a `fit`, within `set_aside`.

    It is a collective: all tasks must call it at the same save point (a place in training where its
    state may be saved). If a signal, such as SIGTERM, arrives meanwhile, training stops with the
    state at that save point.

    Args:
        fit: The state of the `fit` that is running.
        data: As for `kfit.Trainer.evaluate`.
        batch_size: As for `kfit.Trainer.evaluate`.
        steps: As for `kfit.Trainer.evaluate`.
        callbacks: As for `kfit.Trainer.evaluate`; the callbacks of the `fit` are not called.
        by_model: The trainer's `evaluate`, which calls the one that the model itself defines; None
            if the model has Keras' own.

    Returns:
        The loss and the metrics by name.
    """
    how = {"batch_size": batch_size, "steps": steps}
    with fit.frozen(fit.logs), fit.batches.kept_from(data[0]):
        if by_model is None:
            return _evaluated(fit, data, callbacks, **how)
        x, y, sample_weight = data
        return by_model(
            x,
            y,
            sample_weight=sample_weight,
            callbacks=callbacks,
            verbose=0,
            return_dict=True,
            **how,
        )


def _evaluated(
    fit: FitState,
    data: Data,
    callbacks: Callbacks,
    *,
    batch_size: int | None,
    steps: int | None,
) -> dict[str, Any]:
    model, strategy = fit.model, fit.strategy
    batches = batches_of_all(
        *data, strategy=strategy, batch_size=batch_size, steps=capped_steps(steps)
    )
    with closing(batches):
        made = callback_list(callbacks, model, strategy, steps=batches.steps)
        # It shares the save points and signals of `fit`, so that a signal stops both.
        return evaluate(replace(fit.call, callback_list=made), batches)


def _is_trained(entry: state.Entry) -> bool:
    if entry.part == "optimizer":
        return True
    return entry.part == "model" and bool(getattr(entry.variable, "trainable", False))
