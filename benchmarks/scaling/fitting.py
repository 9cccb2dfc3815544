"""The parameters of the model, and the steps that it predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np

from benchmarks.scaling.formulas import (
    crowding,
    halving_all_reduce,
    ring_all_reduce,
    steps_per_execution,
    threads_of,
)
from benchmarks.scaling.parts import Found

_METRICS = 16
"""Bytes: sum and count of the loss and of the accuracy, which go together."""
_SAID = 16
"""Bytes that each worker says to the others between executions: whether to stop, and when."""


SOME_BYTES = 1024
"""Sums of less than that take less work; somewhere between the 64 bytes and 4 KB measured."""


class Costs(NamedTuple):
    """What the parts of a step cost on the host that was measured.

    Attributes:
        cores: Cores of the host.
        compute: Seconds a step of one thread that has a core: fixed, fixed over the threads, a
            example, an example over the threads.
        input: Seconds a batch of one thread that has a core: fixed, an example.
        wait: Seconds a message, however small it is and many workers share a core.
        work: Seconds a message besides, of a worker that has a core; not of those of some bytes.
        beta: Seconds a byte sent, of a worker that has a core.
        held: Seconds that a snapshot costs training: fixed, a MB.
        written: Seconds until it is written: fixed, a MB.
    """

    cores: int
    compute: tuple[float, ...]
    input: tuple[float, ...]
    wait: float
    work: float
    beta: float
    held: tuple[float, ...]
    written: tuple[float, ...]


class Step(NamedTuple):
    """Seconds of the parts of a step, which follow one another.

    Attributes:
        compute: The model and its optimizer.
        input: Drawing the batch. The cores are taken by computing, so that it is not hidden.
        exchange: Summing the gradients.
        reading: Its part of what the execution does once: metrics, and whether anybody stops.
    """

    compute: float
    input: float
    exchange: float
    reading: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return sum(self)


class Network(NamedTuple):
    """What is between hosts.

    Attributes:
        wait: Seconds a message.
        work: Seconds a message besides; not of those of some bytes.
        beta: Seconds a byte.
        halving: Whether messages go by recursive halving and not in a ring.
    """

    wait: float
    work: float
    beta: float
    halving: bool = False

    def all_reduce(self, workers: int, size: float) -> float:
        """Seconds to sum `size` bytes over the workers."""
        formula = halving_all_reduce if self.halving else ring_all_reduce
        alpha = self.wait + self.work * (size > SOME_BYTES)
        return formula(workers, size, alpha, self.beta)


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
    """Coefficients, none below zero, of which the sum of squared *relative* errors is the least.

    Relative, since the values range over orders of magnitude, and their noise with them.

    Args:
        rows: What the coefficients are multiplied by, a row a value.
        values: What was measured, above zero.
    """
    scaled = np.asarray(rows, "float64") / np.asarray(values, "float64")[:, None]
    ones, columns = np.ones(len(values)), scaled.shape[1]
    best, least = np.zeros(columns), float(len(values))
    # The best one without a bound on the right coefficients, the others being zero, is the best of
    # all; there are so few that every choice can be tried.
    for count in range(1, columns + 1):
        for chosen in map(list, combinations(range(columns), count)):
            found = np.linalg.lstsq(scaled[:, chosen], ones, rcond=None)[0]
            error = float(np.sum((scaled[:, chosen] @ found - 1) ** 2))
            if found.min() >= 0 and error < least - 1e-12:
                best, least = np.zeros(columns), error
                best[chosen] = found
    return tuple(float(value) for value in best)


def fit(found: Mapping[int, Found], cores: int) -> Costs:
    """Fits the parameters to what was measured.

    Args:
        found: By the number of workers. The exchange of the most workers is left out where there
            are others, so that its prediction says something.
        cores: Cores that the workers shared.
    """
    computing = [
        (_compute_row(batch, workers, cores), seconds)
        for workers, each in found.items()
        for batch, seconds in each.compute.items()
    ]
    drawing = [
        (_scaled((1, batch), crowding(workers, cores)), seconds)
        for workers, each in found.items()
        for batch, seconds in each.input.items()
    ]
    several = sorted(workers for workers, each in found.items() if each.exchange)
    summing = [
        (_exchange_row(size, workers, cores), seconds)
        for workers in several[:-1] or several
        for size, seconds in found[workers].exchange.items()
    ]
    wait, work, beta = least_squares(*zip(*summing, strict=True))
    held, written = (
        least_squares([(1, size) for size in each], list(each.values()))
        for each in (found[1].held, found[1].written)
    )
    return Costs(
        cores,
        least_squares(*zip(*computing, strict=True)),
        least_squares(*zip(*drawing, strict=True)),
        wait,
        work,
        beta,
        held,
        written,
    )


def exchange_here(costs: Costs, workers: int, size: float) -> float:
    """Seconds to sum `size` bytes over workers of the measured host, which share its cores."""
    row = _exchange_row(size, workers, costs.cores)
    return _dot((costs.wait, costs.work, costs.beta), row)


def step_here(costs: Costs, batch: float, gradients: float, workers: int) -> Step:
    """A step of workers that share the cores of the measured host.

    Args:
        costs: The parameters.
        batch: Examples of a step of one worker.
        gradients: Bytes that are summed.
        workers: How many.
    """
    crowd = crowding(workers, costs.cores)
    return _step(
        compute=_dot(costs.compute, _compute_row(batch, workers, costs.cores)),
        input=crowd * _dot(costs.input, (1, batch)),
        exchange=exchange_here(costs, workers, gradients),
        readings=_readings(partial(exchange_here, costs), workers),
    )


def step_there(
    costs: Costs,
    batch: float,
    gradients: float,
    workers: int,
    network: Network,
    steps_of_execution: int | None = None,
) -> Step:
    """A step of workers with a host each, like the measured one, on another network.

    Args:
        costs: The parameters.
        batch: Examples of a step of one worker.
        gradients: Bytes that are summed.
        workers: How many.
        network: What each message and byte costs.
        steps_of_execution: As `compile` is told; None has kfit find them.
    """
    return _step(
        compute=_dot(costs.compute, _compute_row(batch, 1, costs.cores)),
        input=_dot(costs.input, (1, batch)),
        exchange=network.all_reduce(workers, gradients),
        readings=_readings(network.all_reduce, workers),
        steps_of_execution=steps_of_execution,
    )


def _readings(all_reduce: Callable[[int, float], float], workers: int) -> float:
    """Seconds of the exchanges of an execution, however many steps it has."""
    return all_reduce(workers, _METRICS) + all_reduce(workers, _SAID * workers)


def _step(
    compute: float,
    input: float,
    exchange: float,
    readings: float,
    steps_of_execution: int | None = None,
) -> Step:
    steps = steps_of_execution or steps_per_execution(compute + input + exchange, readings)
    return Step(compute, input, exchange, readings / steps)


def _compute_row(batch: float, workers: int, cores: int) -> tuple[float, ...]:
    threads = threads_of(workers, cores)
    row = (1, 1 / threads, batch, batch / threads)
    return _scaled(row, crowding(workers, cores))


def _exchange_row(size: float, workers: int, cores: int) -> tuple[float, ...]:
    # The ring's seconds are linear in alpha and beta.
    messages, sent = ring_all_reduce(workers, size, 1, 0), ring_all_reduce(workers, size, 0, 1)
    crowd = crowding(workers, cores)
    return messages, crowd * messages * (size > SOME_BYTES), crowd * sent


def _scaled(row: Sequence[float], by: float) -> tuple[float, ...]:
    return tuple(by * value for value in row)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
