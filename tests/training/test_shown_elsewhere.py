"""What the terminal of a worker that shows no progress says of a training."""

from types import SimpleNamespace
from typing import Any

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.training.shown_elsewhere import progress_shown_elsewhere

ADDRESSES = ("a:1", "b:1")
WORKER = Cluster({"worker": ADDRESSES}, Task("worker", 1))
BESIDE_CHIEF = Cluster({"chief": ADDRESSES[:1], "worker": ADDRESSES[1:]}, Task("worker", 0))


def told_by(
    cluster: Cluster | None, capsys: Any, verbose: str | int = "auto", interrupted: bool = False
) -> list[str]:
    state: Any = SimpleNamespace(progress=SimpleNamespace(step=7), interrupted=interrupted)
    with progress_shown_elsewhere(cluster, state, verbose):
        print("-")
    lines: list[str] = capsys.readouterr().out.splitlines()
    return lines


def test_a_worker_says_who_shows_the_progress(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("KFIT_RUN", raising=False)
    assert told_by(WORKER, capsys) == [
        "kfit: this task is worker 1; the chief, worker 0, shows the progress of the training",
        "-",
        "kfit: worker 1 has ended its training, after step 7",
    ]
    assert told_by(BESIDE_CHIEF, capsys, verbose=2)[0] == (
        "kfit: this task is worker 0; chief 0 shows the progress of the training"
    )
    # Which signal has stopped it is told elsewhere.
    assert told_by(WORKER, capsys, interrupted=True)[1:] == ["-"]


@pytest.mark.parametrize("cluster", [None, Cluster({"worker": ADDRESSES}, Task("worker", 0))])
def test_a_task_that_shows_progress_says_nothing_more(cluster: Any, capsys: Any) -> None:
    assert told_by(cluster, capsys) == ["-"]


def test_silence_is_kept(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("KFIT_RUN", raising=False)
    assert told_by(WORKER, capsys, verbose=0) == ["-"]
    monkeypatch.setenv("KFIT_RUN", "supervised")
    assert told_by(WORKER, capsys) == ["-"]


def test_fit_of_a_worker_says_it(tiny: Any, capsys: Any, monkeypatch: Any) -> None:
    """`fit` uses the context, with the cluster of its strategy."""
    import kfit

    monkeypatch.delenv("KFIT_RUN", raising=False)
    monkeypatch.setattr(kfit.Trainer, "cluster", WORKER)
    x, y = tiny.data(20)
    kfit.Trainer(tiny.model(), strategy=tiny.strategy(1)).fit(x, y, 10, epochs=2, verbose=2)
    # On a slow machine, where it takes more than two seconds, it also tells how long it took.
    lines = [line for line in capsys.readouterr().out.splitlines() if " steps in " not in line]
    assert [line for line in lines if line.startswith("kfit:")] == [
        "kfit: this task is worker 1; the chief, worker 0, shows the progress of the training",
        "kfit: worker 1 has ended its training, after step 4",
    ]
