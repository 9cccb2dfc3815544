"""Synchronous training on several tasks (processes), the workers of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kfit.argument_checks import check_seconds
from kfit.cluster.cluster import Cluster, ClusterError, check_trains
from kfit.cluster.loopback import kept_to_this_host
from kfit.cluster.rendezvous import rendezvous
from kfit.cluster.resolvers import current_cluster, start_timeout_of
from kfit.distribute.collective_keys import recovering, reduction, with_keys_of_its_own
from kfit.distribute.connection import check_in_time, is_connected
from kfit.distribute.devices import grow_memory
from kfit.distribute.initial_values import of_every_type
from kfit.distribute.python_random import apart
from kfit.distribute.ring import Ring
from kfit.distribute.ring_ops import RingOps
from kfit.distribute.ring_setup import set_up_ring
from kfit.distribute.ring_strategy import RingStrategy
from kfit.distribute.sigterm import sigterm_kept
from kfit.distribute.strategy import Strategy
from kfit.fault_sites import Site, reach
from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.runtime import abort_collectives, draw_global_seed, has_global_seed
from kfit.internals.strategies import counting_keys_from

# Seconds for TensorFlow to connect workers that have just met. If one has died since, TensorFlow
# would wait for ever; after this time the supervisor ends this task.
_JOIN_LIMIT = 120.0
# Bytes of a pack of gradients; a pack is sent while the gradients of later packs are computed.
_PACK = 4 << 20
_COMMUNICATIONS = ("auto", "sockets", "ring", "nccl")

_KEYS = 1_000_000
"""The first key for collectives of the first strategy here, and the distance to those of the next.
A strategy that the program makes itself counts from 1, and one of a single process in thousands.
All workers make their strategies in one order, so the keys are the same on all."""

_joined: dict[tuple[str, str], tuple[tf.distribute.Strategy, RingOps | None]] = {}
"""Strategies by cluster and options, to be used again: a process can join a cluster only once."""


class MultiWorker(Strategy):
    """A strategy that trains synchronously on all workers of a cluster.

    A worker is one task (process) of the cluster, with a replica on each of its GPUs or, without
    GPUs, one on the CPU. All workers run the same program, and keep equal copies of the variables.

    Args:
        cluster: A `kfit.distribute.Cluster`, or a `tf.distribute.cluster_resolver.ClusterResolver`.
            Either must tell which of the tasks this process is. None takes the result of
            `kfit.distribute.current_cluster()`. If there is no cluster, this process trains alone,
            on all of its GPUs or on the CPU.
        communication: How gradients are summed over the workers. `"sockets"` uses kfit's own
            connections, which need workers with one replica on the CPU. `"ring"` (by gRPC) and
            `"nccl"` (for GPUs) use TensorFlow's collectives. `"auto"` takes `"sockets"` if the
            workers can use them and reach each other, and otherwise lets TensorFlow choose. A
            `tf.distribute.experimental.CommunicationOptions` is possible, too: it selects
            TensorFlow's collectives, and `bytes_per_pack` and `timeout` must be left out.
        bytes_per_pack: The size in bytes of the packs in which TensorFlow's collectives send
            gradients; 0 lets TensorFlow choose. With any other number, `"auto"` takes TensorFlow's
            collectives.
        gradient_dtype: "bfloat16" or "float16" sends half as many bytes: gradients are cast to this
            dtype and summed, and the sums are cast back. None, the default, keeps their own dtype.
        memory_growth: Whether TensorFlow allocates GPU memory as it needs it (True) or all of it at
            once (False). None leaves TensorFlow's setting unchanged. This comes too late if the
            process has joined the cluster already, as under `kfit run`. Then set the environment
            variable TF_FORCE_GPU_ALLOW_GROWTH=true for the tasks instead.
        timeout: Seconds that a collective waits for another worker, before it raises an error. None
            waits for ever.
        start_timeout: Seconds to wait for all workers to start. After that time an error names the
            missing workers. None takes the number in the environment variable KFIT_START_TIMEOUT,
            or 60.

    Raises:
        ValueError: If an option is wrong, or `memory_growth` comes too late. At the first use of
            the strategy it is also raised if `communication` is `"sockets"` and this worker has
            GPUs.
        ClusterError: If the description of the cluster is wrong, the cluster has ps tasks (which
            need `ParameterServer`), or this task (process) does not train. At the first use of the
            strategy it is also raised if this task cannot join the cluster, for example because its
            port is taken, a worker does not start in time, TensorFlow has already run an operation,
            or `"sockets"` cannot connect the workers.
    """

    name = "multi_worker"

    def __init__(
        self,
        cluster: Cluster | tf.distribute.cluster_resolver.ClusterResolver | None = None,
        *,
        communication: str | tf.distribute.experimental.CommunicationOptions = "auto",
        bytes_per_pack: int = 0,
        gradient_dtype: str | None = None,
        memory_growth: bool | None = None,
        timeout: float | None = None,
        start_timeout: float | None = None,
    ) -> None:
        super().__init__(gradient_dtype)
        for argument, seconds in (("timeout", timeout), ("start_timeout", start_timeout)):
            if seconds is not None:
                check_seconds(argument, seconds, above_zero=True)
        self._cluster = _as_cluster(cluster)
        # An evaluator may make this adapter, since every task runs the same program; there
        # `as_strategy` replaces it by an adapter of the evaluator's own devices.
        if self._cluster is not None and not self._cluster.is_evaluator:
            check_trains(self._cluster)
            if self._cluster.has_ps:
                raise ClusterError(
                    "`cluster` lists ps tasks, which only asynchronous training has: take "
                    "strategy='parameter_server', or 'auto', or remove `cluster.ps`"
                )
        self._options = _as_options(communication, bytes_per_pack, timeout)
        self._communication = communication if isinstance(communication, str) else "tensorflow"
        self._timeout = timeout
        self._ring_ops: RingOps | None = None
        grow_memory("memory_growth", memory_growth)
        self._start_timeout = start_timeout or start_timeout_of()

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that this task belongs to; None for a single worker without a cluster."""
        return self._cluster

    @property
    def num_workers(self) -> int:
        """The number of workers, including the chief."""
        return 1 if self._cluster is None else self._cluster.num_workers

    @property
    def worker_index(self) -> int:
        """The index of this worker; the chief has index 0."""
        return 0 if self._cluster is None else self._cluster.worker_index

    def _create(self) -> tf.distribute.Strategy:
        cluster = self._cluster
        if cluster is not None:
            check_trains(cluster)
        if cluster is None or cluster.num_workers == 1:
            return with_keys_of_its_own(tf.distribute.MirroredStrategy())
        key = (cluster.to_tf_config(), f"{self._communication} {self._options.__dict__}")
        if key in _joined:
            strategy, self._ring_ops = _joined[key]
            return strategy
        check_in_time(cluster)
        if not is_connected():
            reach(Site.STARTING)
            rendezvous(cluster, self._start_timeout)
            reach(Site.MET)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            # Only the tasks that train together, so without the evaluator.
            tf.train.ClusterSpec(
                {k: list(v) for k, v in cluster.addresses.items() if k != "evaluator"}
            ),
            task_type=cluster.task.type,
            task_id=cluster.task.id,
            rpc_layer="grpc",
            num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
        )
        limit = max(_JOIN_LIMIT, self._start_timeout)
        try:
            with Heartbeat.of_environment().call(Phase.JOINING, limit), sigterm_kept():
                with kept_to_this_host(cluster), counting_keys_from(_KEYS * (1 + len(_joined))):
                    strategy = RingStrategy(
                        cluster_resolver=resolver, communication_options=self._options
                    )
                met = set_up_ring(
                    cluster,
                    strategy,
                    _seed_of_run(),
                    by_sockets=self._may_use_sockets(strategy),
                    timeout=self._timeout,
                )
        except RuntimeError as error:
            if "program startup" not in str(error):
                raise
            raise ClusterError(
                f"{cluster.task} cannot join its cluster: this process is connected to another one "
                "already. One process joins one cluster."
            ) from error
        if not has_global_seed():
            # With a common seed, an unseeded `shuffle` has the same order on all workers, which
            # take their rows of each batch. The order still differs from run to run; tasks that
            # `kfit run` restarts keep the seed of their run.
            draw_global_seed(met.seed)
        if met.failure:
            self._do_without_sockets(met.failure)
        self._ring_ops = strategy.ring_ops = RingOps(met.ring) if met.ring else None
        Heartbeat.of_environment().trains_with(
            cluster.num_workers, marks_meetings=met.ring is not None
        )
        _joined[key] = strategy, self._ring_ops
        return strategy

    def _may_use_sockets(self, strategy: tf.distribute.Strategy) -> bool:
        """Returns whether this worker can sum through kfit's own sockets, and the user allows this.

        The user does not allow the sockets if `communication` is neither `"sockets"` nor `"auto"`,
        or if `bytes_per_pack` is set.

        Args:
            strategy: TensorFlow's strategy. A worker can use the sockets if it has one replica, on
                the CPU.

        Raises:
            ValueError: If the user has chosen `"sockets"`, and this worker cannot use them.
        """
        devices = strategy.extended.worker_devices
        on_one_cpu = len(devices) == 1 and "CPU" in devices[0].upper()
        if self._communication == "sockets" and not on_one_cpu:
            raise ValueError(
                "`communication='sockets'` needs workers with one replica each, on the CPU, but "
                f"this worker trains on {', '.join(devices)}; take 'nccl' or 'auto'."
            )
        by_default = self._communication == "auto" and not self._options.bytes_per_pack
        return on_one_cpu and (by_default or self._communication == "sockets")

    def _do_without_sockets(self, failure: str) -> None:
        if self._communication == "sockets":
            raise ClusterError(
                f"`communication='sockets'` connects each worker with the next one: {failure}. "
                "Let the workers reach each other at all ports, or take communication='ring'."
            )
        warn_user(
            "Gradients go through TensorFlow's gRPC, which takes longer than sockets between the "
            f"workers: {failure}. Let the workers reach each other at all ports, or choose it by "
            "communication='ring'.",
            RuntimeWarning,
        )

    @property
    def _ring(self) -> Ring | None:
        return None if self._ring_ops is None else self._ring_ops.ring

    def naming_failures(self) -> AbstractContextManager[Any]:
        """Context that handles an error that has aborted TensorFlow's collectives.

        Each `fit`, `evaluate` and `predict` runs in it. The error is raised again. A single worker
        with several devices then sums by copying the replicas' values to one device, in all later
        calls. With several workers the strategy does not change. See `Strategy.naming_failures`.
        """
        return recovering(self.tf_strategy)

    def mark_failed(self, failed: bool) -> None:
        """Records whether this worker has failed, to tell the other workers.

        The other workers can be told only if all workers are connected by kfit's own sockets
        (`Ring`). Otherwise the method does nothing. See `Strategy.mark_failed` for when it is
        called.

        Args:
            failed: True when this worker fails. False when the other workers have learned of the
                failure, or training has ended.
        """
        if self._ring is not None:
            self._ring.has_failed = failed

    def break_off(self, reason: str) -> None:
        """Aborts the sums in which this worker and the other workers wait, and all later ones.

        Both the sums through kfit's own sockets (`Ring`) and TensorFlow's collectives are aborted,
        and raise errors. See `Strategy.break_off` for when the method is called.

        Args:
            reason: The message of the errors of TensorFlow's collectives.
        """
        if self._ring is not None:
            self._ring.break_off()
        abort_collectives(reason)

    @property
    def failed_peer(self) -> str:
        """The name of the worker before this one, if it has reported its failure; otherwise empty.

        Workers report failures only if they are connected in a ring by kfit's own sockets (`Ring`).
        """
        return "" if self._ring is None else self._ring.failed_peer

    @property
    def seconds_of_exchanges(self) -> float | None:
        """How long exchanges between tasks have taken so far, in seconds; None if not measured."""
        return None if self._ring is None else self._ring.seconds

    @property
    def sums_by_collectives(self) -> bool:
        """Whether sums over the replicas are computed by TensorFlow's collectives.

        It is False if there is one replica, or kfit's own sockets (`Ring`) are used.
        """
        return self.num_replicas > 1 and self._ring_ops is None

    @property
    def reduction(self) -> Any:
        """The `CrossDeviceOps` by which TensorFlow's strategy sums over its replicas.

        If it is replaced, the steps are traced again. See `Strategy.reduction`.
        """
        return reduction(self.tf_strategy)

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which variables are created on the replicas, with the chief's initial values.

        Variables of all dtypes can be created, including those that TensorFlow cannot send from the
        chief to the other workers. See `Strategy.scope`.
        """
        return of_every_type(self.tf_strategy) if self.num_workers > 1 else super().scope()

    def all_reduce_sum(self, value: Any) -> Any:
        """Sums tensors over all replicas of all workers; all replicas must call it, inside `run`.

        The arguments and the result are those of `Strategy.all_reduce_sum`. If the workers are
        connected by kfit's own sockets (`Ring`), the sums are computed through these sockets.
        """
        if self.num_workers == 1:
            return super().all_reduce_sum(value)
        if not isinstance(value, list):
            return self.all_reduce_sum([value])[0]
        sums: list[Any] = [None] * len(value)
        in_rows = [i for i, tensor in enumerate(value) if isinstance(tensor, tf.IndexedSlices)]
        for i in in_rows:
            rows, indices = self._gather_rows(value[i].values, value[i].indices)
            sums[i] = tf.IndexedSlices(rows, indices, value[i].dense_shape)
        if self._ring_ops is None:
            others = [i for i in range(len(value)) if i not in in_rows]
            totals = super().all_reduce_sum([value[i] for i in others])
            for i, total in zip(others, totals, strict=True):
                sums[i] = total
            return sums
        for chosen in _packs(value):
            totals = self._ring_ops.sum(*(value[i] for i in chosen))
            for i, total in zip(chosen, totals, strict=True):
                sums[i] = total
        return sums

    def keeps_rows(self, grad: Any) -> bool:
        """Returns whether a sparse gradient (`tf.IndexedSlices`) remains sparse when it is summed.

        TensorFlow's collectives keep a gradient sparse only if its number of rows is known when the
        step is traced. kfit's own sockets (`Ring`) keep every sparse gradient sparse. See
        `Strategy.keeps_rows`.

        Args:
            grad: A gradient. If it is dense, the result is True and has no effect.
        """
        in_rows = isinstance(grad, tf.IndexedSlices)
        if not self.sums_by_collectives or not in_rows:
            return True
        return grad.values.shape[0] is not None

    def _gather_rows(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Concatenates the rows of all replicas for each tensor; used to sum sparse gradients.

        The numbers of rows may differ between replicas.
        """
        if self._ring_ops is not None:
            return self._ring_ops.gather(*tensors)
        context = tf.distribute.get_replica_context()
        return [context.all_gather(tensor, axis=0) for tensor in tensors]


def _packs(values: Sequence[Any]) -> list[list[int]]:
    """Groups gradients into packs to be sent together, of one dtype and about 4 MiB each.

    Gradients are ready from the last layer to the first. So the first pack has the last tensors,
    and is sent while the gradients of earlier layers are still being computed. Sparse gradients
    (`tf.IndexedSlices`) belong to no pack.

    Returns:
        For each pack, the indices of its gradients in `values`.
    """
    packs: list[list[int]] = []
    size = 0
    for i, tensor in reversed(list(enumerate(values))):
        if not isinstance(tensor, tf.Tensor):
            continue
        own = (tensor.shape.num_elements() or 0) * tensor.dtype.size
        if not packs or values[packs[-1][0]].dtype != tensor.dtype or size >= _PACK:
            packs.append([])
            size = 0
        packs[-1].append(i)
        size += own
    return packs


def _as_cluster(
    cluster: Cluster | tf.distribute.cluster_resolver.ClusterResolver | None,
) -> Cluster | None:
    """Returns the cluster that the user passed, as a `Cluster`.

    If the user passed None, the environment, such as TF_CONFIG, describes the cluster. The result
    is None if there is no description, so that this process trains alone.

    Raises:
        ValueError: If the user passed an object of another kind.
        ClusterError: If the description of the cluster is wrong.
    """
    if cluster is None:
        return current_cluster()
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, tf.distribute.cluster_resolver.TFConfigClusterResolver) and (
        not cluster.cluster_spec().as_dict()
    ):
        return None  # as in TensorFlow: without TF_CONFIG it describes a single worker
    if isinstance(cluster, tf.distribute.cluster_resolver.ClusterResolver):
        return Cluster.from_resolver(cluster)
    if isinstance(cluster, tf.train.ClusterSpec | dict):
        raise ValueError(
            "`cluster` lists addresses, but does not say which of them is this task's; write "
            "kfit.distribute.Cluster(addresses, kfit.distribute.Task('worker', 0)), another index "
            f"in each task. Received: {cluster!r}"
        )
    raise ValueError(
        "`cluster` must be a kfit.distribute.Cluster, a tf.distribute.cluster_resolver."
        f"ClusterResolver, or None, which reads TF_CONFIG. Received: {cluster!r}"
    )


def _as_options(
    communication: str | tf.distribute.experimental.CommunicationOptions,
    bytes_per_pack: int,
    timeout: float | None,
) -> tf.distribute.experimental.CommunicationOptions:
    """Checks the user's options for communication, and converts them to TensorFlow's options.

    Raises:
        ValueError: If an option is wrong, or does not go together with `communication`.
    """
    # The public name makes instances of a class with another name, so take the type of one.
    if isinstance(communication, type(tf.distribute.experimental.CommunicationOptions())):
        if bytes_per_pack or timeout is not None:
            raise ValueError(
                "`communication` is a CommunicationOptions, which says `bytes_per_pack` and "
                "`timeout_seconds` itself; leave `bytes_per_pack` and `timeout` out. Received: "
                f"bytes_per_pack={bytes_per_pack}, timeout={timeout}"
            )
        return communication
    if communication not in _COMMUNICATIONS:
        raise ValueError(
            f"`communication` must be one of {_COMMUNICATIONS} or a tf.distribute.experimental."
            f"CommunicationOptions. Received: {communication!r}"
        )
    if bytes_per_pack < 0:
        raise ValueError(f"`bytes_per_pack` must be at least 0. Received: {bytes_per_pack}")
    if communication == "sockets" and bytes_per_pack:
        raise ValueError(
            "`bytes_per_pack` is an option of TensorFlow's collectives, and "
            "communication='sockets' sends all gradients together. Received: "
            f"bytes_per_pack={bytes_per_pack}"
        )
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=bytes_per_pack,
        timeout_seconds=timeout,
        implementation=tf.distribute.experimental.CommunicationImplementation[
            "RING" if communication == "sockets" else communication.upper()
        ],
    )


def _seed_of_run() -> int:
    """Returns the seed that `kfit run` gives to all tasks; without `kfit run`, a random seed.

    Python's generator stays as it is: Keras draws seeds from it, which the program may have seeded.
    """
    text = os.environ.get("KFIT_SEED", "")
    return int(text) if text.isdecimal() else apart().getrandbits(31)
