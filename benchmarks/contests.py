"""The contests of the benchmark, their contestants, and the targets for kfit."""

from __future__ import annotations

from typing import NamedTuple


class Contestant(NamedTuple):
    """One program that does the work of a contest.

    Attributes:
        command: Module and arguments of the program.
        processes: The number of processes that do the work together; the slowest one counts.
        threads: Threads that TensorFlow or PyTorch may use for one operation in each process.
    """

    command: tuple[str, ...]
    processes: int = 1
    threads: int = 2


class Contest(NamedTuple):
    """The same work, done by several contestants.

    Attributes:
        title: The title of the table.
        unit: The unit of the figures.
        scale: The number of units in a second; 1 in a contest of memory, whose unit is MB.
        contestants: The contestants by their names. A name is a library and, after a comma, the
            devices that it uses.
        most_rounds: The most turns of each contestant, for work that takes minutes.
    """

    title: str
    unit: str
    scale: float
    contestants: dict[str, Contestant]
    most_rounds: int = 1000

    @property
    def is_of_memory(self) -> bool:
        """Whether the contest measures memory, and not time."""
        return self.unit.startswith("MB")


class Target(NamedTuple):
    """A bound for the ratio of two contestants' medians, or for one median.

    Attributes:
        contest: Key of the contest.
        over: Name of the contestant in the numerator.
        under: Name of the contestant in the denominator; None for the median of `over` itself.
        most: The upper bound, or None.
        least: The lower bound, or None.
        figure: The measured figure: "value", what the contest measures, or "memory".
    """

    contest: str
    over: str
    under: str | None = None
    most: float | None = None
    least: float | None = None
    figure: str = "value"


def _keras(library: str, *work: str, processes: int = 1, threads: int = 2) -> Contestant:
    return Contestant(("benchmarks.contestants.keras_api", library, *work), processes, threads)


def _bare(work: str) -> Contestant:
    return Contestant(("benchmarks.contestants.bare", work))


def _beside_keras(work: str, *strategies: str) -> dict[str, Contestant]:
    """Contestants of one kind of work: kfit, also on the strategies, and Keras."""
    more = {f"kfit, 2 {strategy}": _keras("kfit", work, strategy) for strategy in strategies}
    return {"kfit": _keras("kfit", work), **more, "Keras 3": _keras("keras", work)}


_MLP = {
    "bare loop": _bare("fit"),
    "kfit": _keras("kfit", "fit"),
    "Keras 3": _keras("keras", "fit"),
    "tf_keras": _keras("tf_keras", "fit"),
    "Lightning": Contestant(("benchmarks.contestants.pytorch", "lightning")),
}
_CNN = {
    "kfit, 1 process": _keras("kfit", "cnn"),
    "kfit, 2 mirrored": _keras("kfit", "cnn", "mirrored"),
    "kfit, 2 workers": _keras("kfit", "cnn", "multi_worker", processes=2, threads=1),
    "Keras 3, 1 process": _keras("keras", "cnn"),
    "Keras 3, 2 mirrored": _keras("keras", "cnn", "mirrored"),
    "tf_keras, 2 workers": _keras("tf_keras", "cnn", "multi_worker", processes=2, threads=1),
    "PyTorch, 2 workers": Contestant(("benchmarks.contestants.pytorch", "ddp"), 2, 1),
    "PyTorch, 1 process": Contestant(("benchmarks.contestants.pytorch", "one_process")),
}

CONTESTS = {
    "mlp": Contest("Small MLP, batch 32: `fit` with its defaults", "µs a step", 1e6, _MLP),
    "callback": Contest(
        "The same with a callback on every batch",
        "µs a step",
        1e6,
        {"kfit": _keras("kfit", "callback"), "Keras 3": _keras("keras", "callback")},
    ),
    **{
        work: Contest(
            f"The same MLP: `{work}` on 64,000 rows",
            "µs a step",
            1e6,
            {
                "bare loop": _bare(work),
                "kfit": _keras("kfit", work),
                "Keras 3": _keras("keras", work),
            },
        )
        for work in ("evaluate", "predict")
    },
    "cnn": Contest("CNN of the multi-worker tutorial, batch 128", "ms a step", 1e3, _CNN),
    "big": Contest(
        "2 GB of float32, batch 1024, shuffled; linear model",
        "µs a step",
        1e6,
        _beside_keras("big"),
    ),
    "memmap": Contest(
        "2 GB in a file, as an `np.memmap`: the same training",
        "µs a step",
        1e6,
        _beside_keras("memmap"),
    ),
    **{
        f"{work}_memory": Contest(
            f"2 GB {place}: peak memory of an epoch over the data's size",
            "MB",
            1,
            _beside_keras(f"{work}_memory"),
            most_rounds=2,
        )
        for work, place in [("big", "in memory"), ("memmap", "in a file, as an `np.memmap`")]
    },
    "growth": Contest(
        "What `fit`, `evaluate` and `predict` in turn, on one array of 128 MB, add to peak memory",
        "MB a round",
        1,
        _beside_keras("growth"),
        most_rounds=2,
    ),
    **{
        work: Contest(f"A warm call of {title}", "ms", 1e3, _beside_keras(work, *strategies))
        for work, title, *strategies in [
            ("train_on_batch", "`train_on_batch`", "mirrored"),
            ("test_on_batch", "`test_on_batch`", "mirrored"),
            ("predict_on_batch", "`predict_on_batch`", "mirrored"),
            ("fit_1", "`fit`, 1 step"),
            ("fit_10", "`fit`, 10 steps"),
            ("predict_1", "`predict`, 1 batch"),
            ("evaluate_10", "`evaluate`, 10 batches"),
        ]
    },
    "first": Contest(
        "From the call of `fit` to the end of its first step",
        "s",
        1,
        {name: _keras(name.split()[0].lower(), "first") for name in ("kfit", "Keras 3")},
    ),
    "resnet": Contest(
        "ResNet-50: processor time until its first step has ended",
        "s",
        1,
        {
            f"{name}, {devices}": _keras(name.split()[0].lower(), "resnet", *strategy)
            for name in ("kfit", "Keras 3")
            for devices, *strategy in [
                ("1 device",),
                ("2 mirrored", "mirrored"),
                ("4 mirrored", "mirrored_4"),
            ]
        },
        most_rounds=3,
    ),
    "import": Contest(
        "Import",
        "s",
        1,
        {
            "Keras 3": _keras("keras", "import"),
            "kfit, after Keras 3": _keras("kfit", "import"),
        },
    ),
}

TARGETS = [
    Target("mlp", "kfit", "bare loop", most=1.1),
    Target("mlp", "Keras 3", "kfit", least=5),
    Target("mlp", "tf_keras", "kfit", least=2.5),
    Target("mlp", "Lightning", "kfit", least=15),
    Target("mlp", "kfit", "Keras 3", most=1.1, figure="memory"),
    Target("callback", "Keras 3", "kfit", least=1.5),
    Target("evaluate", "Keras 3", "kfit", least=5),
    Target("evaluate", "kfit", "Keras 3", most=1.1, figure="memory"),
    Target("predict", "Keras 3", "kfit", least=5),
    Target("predict", "kfit", "Keras 3", most=1.1, figure="memory"),
    Target("cnn", "kfit, 2 workers", "kfit, 1 process", most=1.3),
    Target("cnn", "tf_keras, 2 workers", "kfit, 2 workers", least=2.5),
    Target("cnn", "PyTorch, 2 workers", "kfit, 2 workers", least=1.4),
    Target("cnn", "kfit, 2 mirrored", "kfit, 1 process", most=1.2),
    Target("cnn", "kfit, 1 process", "Keras 3, 1 process", most=1.1, figure="memory"),
    Target("cnn", "kfit, 2 mirrored", "Keras 3, 2 mirrored", most=1.1, figure="memory"),
    Target("big", "kfit", "Keras 3", most=1.0),
    Target("memmap", "kfit", "Keras 3", most=1.0),
    Target("big_memory", "kfit", most=300),
    Target("memmap_memory", "kfit", most=300),
    Target("growth", "kfit", most=2),
    *[
        target
        for work in ("train_on_batch", "test_on_batch", "predict_on_batch")
        for target in (
            Target(work, "kfit", "Keras 3", most=0.7),
            Target(work, "kfit, 2 mirrored", "kfit", most=1.5),
        )
    ],
    Target("fit_1", "kfit", "Keras 3", most=0.5),
    Target("fit_10", "kfit", "Keras 3", most=0.5),
    Target("predict_1", "kfit", "Keras 3", most=0.2),
    Target("evaluate_10", "kfit", "Keras 3", most=0.2),
    Target("first", "kfit", "Keras 3", most=1.1),
    Target("resnet", "kfit, 2 mirrored", "kfit, 1 device", most=1.5),
    Target("resnet", "kfit, 4 mirrored", "kfit, 1 device", most=1.5),
    Target("import", "kfit, after Keras 3", most=0.1),
]
