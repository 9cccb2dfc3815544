"""What to change so that a training takes less time, as far as the figures of its report say."""

from __future__ import annotations

from kfit.report.figures import Figures

_LARGE = 0.2
"""The share of the time from which a phase is worth advice."""
_SHORTEST = 0.2
"""Seconds of training from which its times say anything."""
_SHORT_STEP = 0.001
"""Seconds below which one step is short: a large part of it is overhead of TensorFlow."""
_FEW_STEPS = 100
"""The number of steps below which the times of the steps say little."""
_FEW_SAVES = 2
"""The number of snapshots up to which saving them less often would save little."""
_OF = "of the time without building and tracing"
"""What the shares of advice are of; those of the table are of the whole time."""


def advice_of(report: Figures) -> list[str]:
    """Returns what to change, a sentence for each; empty if the figures support no advice.

    Args:
        report: The report of a `fit`.
    """
    if report.seconds_of_training < _SHORTEST:
        return []
    rules = (_on_input, _on_exchange, _on_callbacks, _on_saving, _on_validation, _on_short_steps)
    return [sentence for rule in rules if (sentence := rule(report))]


def _share(report: Figures, phase: str) -> float:
    """Returns the share of a phase in the time after all was prepared."""
    seconds = report.phases[phase] - (report.first_input if phase == "input" else 0.0)
    return seconds / report.seconds_of_training


def _on_input(report: Figures) -> str:
    share = _share(report, "input")
    if share < _LARGE or report.in_memory:
        return ""
    return (
        f"Training waits for data {100 * share:.0f} % {_OF}: prepare it ahead and in "
        "parallel. For a tf.data.Dataset use `.map(..., num_parallel_calls=tf.data.AUTOTUNE)`, "
        "`.cache()` if it fits into memory, and `.prefetch(tf.data.AUTOTUNE)`; give a PyDataset as "
        "many `workers` as there are cores, and `use_multiprocessing=True` if its code is Python's "
        "own; replace a Python generator by one of these."
    )


def _on_exchange(report: Figures) -> str:
    if report.num_tasks == 1:
        return ""
    # The exchange within steps may overlap with computation, so it need not cost time.
    within = report.exchange_in_steps or 0.0
    share = (within + report.phases["exchange"]) / report.seconds_of_training
    if share < _LARGE:
        return ""
    return (
        f"Exchanges between tasks run {100 * share:.0f} % {_OF}: use a larger global batch, "
        "`gradient_accumulation_steps` of the optimizer, or fewer workers. If one worker is slower "
        "than the others, they wait for it there."
    )


def _on_callbacks(report: Figures) -> str:
    share = _share(report, "callbacks")
    are_short = _step(report) < 5 * _SHORT_STEP  # so that a graph call for each takes long
    if share < _LARGE / 2 and not (report.single_steps and are_short):
        return ""
    largest = max(report.hooks.items(), key=lambda item: item[1], default=("", 0.0))[0]
    names = ", ".join(report.single_steps) if are_short or "batch" in largest else ""
    single = (
        f" {names} {'has' if len(report.single_steps) == 1 else 'have'} hooks for batches, so each "
        "step is a graph call of its own, and the steps take longer: use `on_epoch_end`, or a "
        "kfit.callbacks.TrainingCallback with `steps_until_due`."
        if names
        else ""
    )
    most = f", most of it in `{largest}`" if largest else ""
    return f"Callbacks take {100 * share:.0f} % {_OF}{most}.{single}"


def _on_saving(report: Figures) -> str:
    share = _share(report, "saving")
    # The last state is always saved, so that few saves are a matter of a short training.
    are_few = 0 < report.snapshots <= _FEW_SAVES
    if share < _LARGE / 2 or report.saves_as_allowed or are_few:
        return ""
    return (
        f"Training waits for saves {100 * share:.0f} % {_OF}: save less often "
        '(`save_freq="auto"` of kfit.callbacks.BackupAndRestore saves as often as 1 % of the time '
        "allows)."
    )


def _on_validation(report: Figures) -> str:
    share = _share(report, "validation")
    if share < 0.4:
        return ""
    return (
        f"Validation takes {100 * share:.0f} % {_OF}: validate less often "
        "(`validation_freq`), on fewer batches (`validation_steps`), or in larger ones "
        "(`validation_batch_size`)."
    )


def _on_short_steps(report: Figures) -> str:
    step = _step(report)
    if report.steps < _FEW_STEPS or step >= _SHORT_STEP or _share(report, "steps") < 0.5:
        return ""
    return (
        f"A step takes {1e6 * step:.0f} µs, much of it the overhead of TensorFlow's operations: "
        "use a larger batch, or try `compile(jit_compile=True)`."
    )


def _step(report: Figures) -> float:
    """Returns the seconds of one step, without those of waiting for data."""
    return report.phases["steps"] / max(report.steps, 1)
