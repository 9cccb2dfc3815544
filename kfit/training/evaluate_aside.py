"""Evaluates other data during a `fit`, without changing what the `fit` computes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

from kfit.checkpoint import state
from kfit.training.arguments import capped_steps
from kfit.training.call import Callbacks, callback_list
from kfit.training.fit_state import FitState
from kfit.training.loops import evaluate
from kfit.training.same_data import batches_of_all


def evaluate_aside(
    fit: FitState,
    x: Any = None,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    callbacks: Callbacks = None,
) -> dict[str, Any]:
    """Evaluates data with the current weights during a `fit`, then restores the training metrics.

    It is a collective: all tasks must call it at the same save point (a place in training where its
    state may be saved). If a signal, such as SIGTERM, arrives meanwhile, training stops with the
    state at that save point.

    Args:
        fit: The state of the `fit` that is running.
        x: As for `kfit.Trainer.evaluate`.
        y: As for `kfit.Trainer.evaluate`.
        sample_weight: As for `kfit.Trainer.evaluate`.
        batch_size: As for `kfit.Trainer.evaluate`.
        steps: As for `kfit.Trainer.evaluate`.
        callbacks: As for `kfit.Trainer.evaluate`; the callbacks of the `fit` are not called.

    Returns:
        The loss and the metrics by name.
    """
    model, strategy = fit.model, fit.strategy
    with fit.frozen(fit.logs) as before:
        batches = batches_of_all(
            x, y, sample_weight, strategy=strategy, batch_size=batch_size, steps=capped_steps(steps)
        )
        with closing(batches):
            callbacks = callback_list(callbacks, model, strategy, steps=batches.steps)
            # It shares the save points and signals of `fit`, so that a signal stops both.
            logs = evaluate(replace(fit.call, callback_list=callbacks), batches)
    state.give_variables(model, before.state["variables"], ("metrics",), strategy)
    return logs
