"""The tables, in Markdown: what was measured, what is predicted, and what follows for many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from benchmarks.scaling.fitting import (
    Costs,
    Network,
    Step,
    exchange_here,
    step_here,
    step_there,
)
from benchmarks.scaling.formulas import (
    auto_interval,
    cluster_mtbf,
    daly_interval,
    goodput,
    young_interval,
)
from benchmarks.scaling.parts import Found

WORKERS = (1, 2, 4, 8, 16, 64, 256, 1_000, 4_000, 10_000)


class Assumed(NamedTuple):
    """What is not measured here; the options of the program say where the defaults are from.

    Attributes:
        bandwidth: GB/s of a host.
        latency: Microseconds of a message on the way.
        mtbf: Hours between two failures of a host.
        restart: Seconds from a failure to the next step.
        batch: Examples a worker and step of weak scaling.
        global_batch: Examples a step of strong scaling, over all workers.
        gradients: MB that are summed in a step; None takes the measured model's.
        state: MB of a snapshot; None takes the measured model's weights.
        compute: Milliseconds a step of `batch` examples, input included; None takes what was
            measured.
        steps_per_execution: As `compile` is told; None has kfit find them.
    """

    bandwidth: float
    latency: float
    mtbf: float
    restart: float
    batch: int
    global_batch: int
    gradients: float | None = None
    state: float | None = None
    compute: float | None = None
    steps_per_execution: int | None = None


def parameters(costs: Costs) -> str:
    """What was fitted."""
    fixed, shared, example, example_shared = costs.compute
    rows = [
        ("a training step without input and exchange, on t threads of a core each",
         f"{1e3 * fixed:.2f} + {1e3 * shared:.2f} / t + b ({1e3 * example:.3f} + "
         f"{1e3 * example_shared:.3f} / t) ms for b examples"),
        ("drawing a batch", f"{1e3 * costs.input[0]:.2f} + {1e3 * costs.input[1]:.4f} b ms"),
        ("alpha: a message between two workers",
         f"{1e6 * costs.wait:.0f} µs of waiting, {1e6 * costs.work:.0f} µs of work"),
        ("1 / beta: bytes of a worker that has a core", f"{_inverse(costs.beta) / 1e9:.2f} GB/s"),
        ("what a snapshot of S MB costs training",
         f"{1e3 * costs.held[0]:.1f} + {1e3 * costs.held[1]:.2f} S ms"),
        ("until it is written",
         f"{1e3 * costs.written[0]:.1f} + {1e3 * costs.written[1]:.2f} S ms"),
    ]  # fmt: skip
    return _table(("measured and fitted", ""), rows)


def exchanges(costs: Costs, found: Mapping[int, Found]) -> str:
    """Sums over the workers: measured against the ring's formula."""
    rows = [
        (
            str(workers),
            f"{size:,}",
            *_against(each.exchange[size], exchange_here(costs, workers, size)),
        )
        for workers, each in found.items()
        for size in each.exchange
    ]
    return _table(("workers", "bytes", "measured, ms", "model, ms", "error"), rows)


def steps(costs: Costs, found: Mapping[int, Found]) -> str:
    """Steps of a plain `fit`: measured against the sum of the parts."""
    rows = []
    for workers, each in found.items():
        for batch, measured in each.steps.items():
            step = step_here(costs, batch, each.gradients, workers)
            parts = (f"{1e3 * part:.1f}" for part in step)
            rows.append((str(workers), str(batch), *parts, *_against(measured, step.seconds)))
    head = ("workers", "examples a worker", "compute", "input", "exchange", "reading")
    return _table((*head, "measured, ms", "model, ms", "error"), rows)


def errors(costs: Costs, found: Mapping[int, Found]) -> list[float]:
    """Relative errors of the predicted steps."""
    return [
        step_here(costs, batch, each.gradients, workers).seconds / measured - 1
        for workers, each in found.items()
        for batch, measured in each.steps.items()
    ]


def carried_on(costs: Costs, assumed: Assumed, gradients: float) -> str:
    """Steps and efficiencies of many workers, without failures.

    Args:
        costs: The parameters.
        assumed: The assumptions.
        gradients: Bytes that the measured model's step sums.
    """
    rows = []
    for workers in WORKERS:
        row = [f"{workers:,}"]
        for strong in (False, True):
            for network in _networks(costs, assumed):
                one = _step(costs, assumed, gradients, 1, network, strong).seconds
                step = _step(costs, assumed, gradients, workers, network, strong)
                efficiency = one / step.seconds / (workers if strong else 1)
                row += [_milliseconds(step.seconds), _percent(efficiency)]
                if not strong:
                    row.insert(-1, _milliseconds(step.reading))
        rows.append(row)
    head = ["workers"]
    for name in ("weak, ring", "weak, halving"):
        head += [f"{name}: ms a step", "of it reading", "efficiency"]
    for name in ("strong, ring", "strong, halving"):
        head += [f"{name}: ms a step", "efficiency"]
    return _table(head, rows)


def failures(costs: Costs, assumed: Assumed, gradients: float) -> str:
    """Snapshots, and what fraction of the time counts, for many workers of weak scaling.

    Arguments are those of `carried_on`.
    """
    state = gradients / 1e6 if assumed.state is None else assumed.state
    cost, latency = (fixed + a_mb * state for fixed, a_mb in (costs.held, costs.written))
    rows = []
    for workers in WORKERS:
        mtbf = cluster_mtbf(assumed.mtbf * 3600, workers)
        young, daly = young_interval(cost, mtbf), daly_interval(cost, mtbf)
        useful, of_auto = (
            goodput(interval, cost, mtbf, assumed.restart, latency)
            for interval in (daly, auto_interval(cost, latency))
        )
        efficiencies = [
            _step(costs, assumed, gradients, 1, network, False).seconds
            / _step(costs, assumed, gradients, workers, network, False).seconds
            for network in _networks(costs, assumed)
        ]
        times = (_duration(seconds) for seconds in (mtbf, young, daly))
        fractions = (useful, of_auto, *(useful * efficiency for efficiency in efficiencies))
        rows.append((f"{workers:,}", *times, *map(_percent, fractions)))
    head = ("workers", "a failure every", "snapshot every (Young)", "(Daly)", "goodput (Daly)")
    return _table((*head, '`save_freq="auto"`', "times efficiency, ring", "halving"), rows)


def _networks(costs: Costs, assumed: Assumed) -> tuple[Network, Network]:
    """What a message and a byte cost: what they cost the cores here, and their way."""
    wait = costs.wait + assumed.latency / 1e6
    beta = costs.beta + 1 / (assumed.bandwidth * 1e9)
    ring = Network(wait, costs.work, beta)
    return ring, ring._replace(halving=True)


def _step(
    costs: Costs, assumed: Assumed, gradients: float, workers: int, network: Network, strong: bool
) -> Step:
    batch = assumed.global_batch / workers if strong else assumed.batch
    if assumed.gradients is not None:
        gradients = assumed.gradients * 1e6
    if assumed.compute is not None:
        an_example = assumed.compute / 1e3 / assumed.batch
        costs = costs._replace(compute=(0.0, 0.0, an_example, 0.0), input=(0.0, 0.0))
    return step_there(costs, batch, gradients, workers, network, assumed.steps_per_execution)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = list(head)
    lines = ["| " + " | ".join(cells) + " |", "|---" * len(cells) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def _against(measured: float, predicted: float) -> tuple[str, str, str]:
    error = f"{100 * (predicted / measured - 1):+.0f} %"
    return _milliseconds(measured), _milliseconds(predicted), error


def _milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1e3 * size else (
                f"{seconds / size:,.0f} {unit}"
            )  # fmt: skip
    return f"{seconds:.3g} s"


def _inverse(value: float) -> float:
    return 1 / value if value else float("inf")
