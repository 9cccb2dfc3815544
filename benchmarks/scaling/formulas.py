"""The model's formulas. Times are in seconds, sizes in bytes; nothing is measured or drawn here.

alpha is what a message costs however small it is, beta what each of its bytes costs:

    Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH,
        Int. J. of High Performance Computing Applications 19(1), 2005
    Patarasuk, Yuan: Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations,
        J. of Parallel and Distributed Computing 69(2), 2009

Snapshots against failures that come independently of each other, as a Poisson process:

    Young: A First Order Approximation to the Optimum Checkpoint Interval, CACM 17(9), 1974
    Daly: A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps, Future
        Generation Computer Systems 22(3), 2006
    Vaidya: Impact of Checkpoint Latency on Overhead Ratio of a Checkpointing Scheme, IEEE
        Transactions on Computers 46(8), 1997
"""

from __future__ import annotations

import math


def ring_all_reduce(workers: int, size: float, alpha: float, beta: float, packs: int = 1) -> float:
    """Seconds to sum `size` bytes around a ring: a reduce-scatter, then an all-gather.

    Each of the two has N-1 rounds, in each of which every worker sends a Nth of the bytes.

    Args:
        workers: N.
        size: Bytes of what each worker holds.
        alpha: Seconds a message.
        beta: Seconds a byte.
        packs: How many all-reduces the bytes are sent in.
    """
    rounds = 2 * (workers - 1)
    return packs * rounds * alpha + rounds / workers * size * beta


def halving_all_reduce(
    workers: int, size: float, alpha: float, beta: float, packs: int = 1
) -> float:
    """Seconds by Rabenseifner's algorithm: recursive halving, then recursive doubling.

    It sends as many bytes as a ring does, in 2 log2 N rounds instead of 2 (N-1). The trees of NCCL
    have that many rounds, too. Arguments are those of `ring_all_reduce`.
    """
    rounds = 2 * math.ceil(math.log2(workers))
    return packs * rounds * alpha + 2 * (workers - 1) / workers * size * beta


def threads_of(workers: int, cores: int) -> int:
    """Threads that `kfit run` gives each of the workers of one host."""
    return max(1, cores // workers)


def crowding(workers: int, cores: int) -> float:
    """How many threads of the workers of a host share a core; 1 where each has its own."""
    return max(1.0, workers * threads_of(workers, cores) / cores)


def steps_per_execution(step: float, reading: float, execution: float = 0.2) -> int:
    """Steps that kfit takes in one graph call.

    Args:
        step: Seconds of one.
        reading: Seconds that an execution takes however many steps it has.
        execution: How long an execution should last.
    """
    return max(1, int((execution - reading) / step))


def young_interval(cost: float, mtbf: float) -> float:
    """Seconds of training between two snapshots, by Young: sqrt(2 C M).

    Args:
        cost: Seconds that a snapshot holds training up.
        mtbf: Mean seconds between two failures of the whole cluster; `inf` is none ever.
    """
    return math.sqrt(2 * cost * mtbf)


def daly_interval(cost: float, mtbf: float) -> float:
    """Seconds of training between two snapshots, by Daly's higher order estimate.

    Young's is its first term; they part where a snapshot takes a good part of the time between
    failures. Arguments are those of `young_interval`.
    """
    if cost >= 2 * mtbf:
        return mtbf
    if math.isinf(mtbf):
        return mtbf if cost else 0.0
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def auto_interval(cost: float, latency: float) -> float:
    """Seconds between two snapshots of `BackupAndRestore(save_freq="auto")`.

    Args:
        cost: Seconds that a snapshot holds training up.
        latency: Seconds that it is written.
    """
    return max(5.0, 100 * (cost + latency))


def goodput(
    interval: float, cost: float, mtbf: float, restart: float = 0.0, latency: float = 0.0
) -> float:
    """The fraction of the time in which steps are taken that count.

    The rest goes into snapshots, into what is done again after a failure, and into restarts. It is
    the inverse of Daly's time to solution; with Vaidya's `latency` for snapshots that are written
    while training goes on, and cannot be gone back to before.

    Args:
        interval: Seconds of training between two snapshots.
        cost: Seconds that a snapshot holds training up.
        mtbf: Mean seconds between two failures of the whole cluster.
        restart: Seconds from a failure to the next step.
        latency: Seconds from the beginning of a snapshot until it can be gone back to.
    """
    if math.isinf(interval):
        return 1.0 if math.isinf(mtbf) else 0.0
    lost = restart + max(0.0, latency - cost)
    if math.isinf(mtbf):
        return interval / (interval + cost)
    try:
        took = mtbf * math.exp(lost / mtbf) * math.expm1((interval + cost) / mtbf)
    except OverflowError:
        return 0.0
    return interval / took


def cluster_mtbf(host_mtbf: float, hosts: int) -> float:
    """Mean seconds between two failures among hosts that fail independently.

    Args:
        host_mtbf: That of one host.
        hosts: How many there are; the failure of any ends the work of all.
    """
    return host_mtbf / hosts
