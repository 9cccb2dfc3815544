"""Says on a worker without a progress bar that the chief shows the progress of the training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kfit.cluster.cluster import Cluster
from kfit.training.fit_state import FitState


@contextmanager
def progress_shown_elsewhere(
    cluster: Cluster | None, state: FitState, verbose: str | int
) -> Iterator[None]:
    """Context of a `fit`: prints a line before and after it on workers that show no progress.

    In the terminal of such a worker nothing else would tell that it trains. Under a supervisor such
    as `kfit run`, which shows the output of all tasks, nothing is printed.

    Args:
        cluster: The description of the cluster; None if this process trains alone.
        state: The state of the `fit`. The second line has the number of its steps.
        verbose: As for `fit`: 0 prints nothing.
    """
    is_silent = cluster is None or cluster.is_chief or not verbose or "KFIT_RUN" in os.environ
    if cluster is None or is_silent:
        yield
        return
    chief = str(cluster.workers[0][0])
    who = chief if chief.startswith("chief") else f"the chief, {chief},"
    print(
        f"kfit: this task is {cluster.task}; {who} shows the progress of the training", flush=True
    )
    yield
    if not state.interrupted:
        step = state.progress.step
        print(f"kfit: {cluster.task} has ended its training, after step {step}", flush=True)
