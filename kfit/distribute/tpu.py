"""Training on the cores of a TPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kfit.argument_checks import check_seconds
from kfit.cluster.tpu_address import TPUAddress, TPUNotFoundError, find_tpu, no_tpu, wait_for_tpu
from kfit.distribute.strategy import Strategy

_systems: dict[str, tuple[Any, Any]] = {}
"""The resolver and the topology of each initialized TPU, to be used again: initializing a TPU twice
would delete all variables on it."""

_SIGNS_OF_LOSS = ("socket closed", "connection reset", "failed to connect to all addresses")


class TPULostError(RuntimeError):
    """An error that is raised if a TPU is lost while it is in use.

    The TPU was preempted, or the connection to it broke.
    """


class TPU(Strategy):
    """A strategy that trains on all cores of a TPU, with one or several cores for each replica.

    Shapes are static on a TPU. But if the number of replicas does not divide the size of a batch,
    such as the last batch of an epoch, some replicas get one row more than others. The other
    replicas get a row of padding, which is cut off again before the model trains on the rows: the
    compiled program contains the step for both numbers of rows (`kfit.steps.static_shapes`). So no
    example is dropped and no padding counts.

    Args:
        tpu: `"local"` for the TPU of this host, an address `"grpc://host:8470"`, or the name of a
            TPU in Google Cloud. None takes the TPU that the environment names (TPU_NAME,
            KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS or COLAB_TPU_ADDR), and otherwise the TPU of this host.
        device_assignment: Which cores each replica has: a `tf.tpu.experimental.DeviceAssignment`,
            or a function from a `tf.tpu.experimental.Topology` to one. With None, `logical_devices`
            and `num_replicas` decide.
        logical_devices: The number of cores of each replica, for models that are split over several
            cores, or the shape of these cores in the TPU's mesh, `(x, y, z, core)`.
        num_replicas: The number of replicas. None makes as many replicas as the TPU has cores for.
        spmd: Whether XLA partitions one program over the cores of a replica
            (`experimental_spmd_xla_partitioning`).
        zone: The zone of a TPU given by its name; None asks Google's metadata server.
        project: The project of a TPU given by its name; None asks Google's metadata server.
        timeout: Seconds to wait until the TPU accepts a connection. With a large number, such as
            600, a restarted program waits until it gets a TPU again.
        gradient_dtype: "bfloat16" or "float16" sends half as many bytes between cores: gradients
            are cast to this dtype and summed, and the sums are cast back. None keeps their own
            dtype.

    Raises:
        ValueError: If an option is wrong. At the first use of the strategy it is also raised if the
            TPU has too few cores.
        TPUNotFoundError: At the first use of the strategy, if the TPU is not found within
            `timeout`.
        TPULostError: During training, if the TPU is preempted or the connection to it breaks.
    """

    name = "tpu"
    static_shapes = True
    compiles = True
    reads_on_this_host = False  # the host of the TPU reads, which may be another

    def __init__(
        self,
        tpu: str | None = None,
        *,
        device_assignment: Any = None,
        logical_devices: int | Sequence[int] = 1,
        num_replicas: int | None = None,
        spmd: bool = False,
        zone: str | None = None,
        project: str | None = None,
        timeout: float = 1.0,
        gradient_dtype: str | None = None,
    ) -> None:
        super().__init__(gradient_dtype)
        if tpu is not None and (not isinstance(tpu, str) or not tpu.strip()):
            raise ValueError(
                "`tpu` must be 'local', an address such as 'grpc://host:8470', the name of a TPU, "
                f"or None. Received: {tpu!r}"
            )
        shape = logical_devices if isinstance(logical_devices, Sequence) else (logical_devices,)
        if len(shape) not in (1, 4) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise ValueError(
                "`logical_devices` must be a number of cores of at least 1, or their shape "
                f"(x, y, z, core) in the TPU's mesh. Received: {logical_devices!r}"
            )
        if device_assignment is not None and (logical_devices != 1 or num_replicas is not None):
            raise ValueError(
                "`device_assignment` says what a replica is and how many there are: leave "
                "`logical_devices` and `num_replicas` out."
            )
        if num_replicas is not None and num_replicas < 1:
            raise ValueError(f"`num_replicas` must be at least 1. Received: {num_replicas}")
        check_seconds("timeout", timeout, above_zero=True)
        self._address = None if tpu is None else TPUAddress(tpu.strip(), "`tpu`")
        self._device_assignment = device_assignment
        self._shape = tuple(shape)
        self._num_replicas = num_replicas
        self._spmd = spmd
        self._zone, self._project = zone, project
        self._timeout = timeout

    def _create(self) -> tf.distribute.Strategy:
        address = self._address or find_tpu()
        if address is None:
            raise no_tpu()
        resolver, topology = self._system(address)
        return tf.distribute.TPUStrategy(
            resolver,
            experimental_device_assignment=self._assigned(topology),
            experimental_spmd_xla_partitioning=self._spmd,
        )

    def _system(self, address: TPUAddress) -> tuple[Any, Any]:
        """Returns the TPU's resolver and topology, which TensorFlow's `TPUStrategy` needs.

        The first call for a TPU connects to the TPU and initializes it. Later calls in the same
        process return the same two objects, since initializing a TPU again would delete all
        variables on it.

        Args:
            address: The TPU's name or address.

        Raises:
            TPUNotFoundError: If the TPU cannot be reached or initialized.
        """
        self._address = address
        if address.tpu in _systems:
            return _systems[address.tpu]
        wait_for_tpu(address, self._timeout, asks_metadata=not (self._zone and self._project))
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
                tpu=address.tpu, zone=self._zone, project=self._project
            )
            if address.tpu != "local":
                tf.config.experimental_connect_to_cluster(resolver)
            topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        except (tf.errors.NotFoundError, tf.errors.UnavailableError) as error:
            raise TPUNotFoundError(
                f"`tpu={address.tpu!r}` (from {address.source}) could not be initialized: "
                f"{_first_line(error)}. Is it a TPU, is it free, and is this TensorFlow "
                f"({tf.__version__}) one for TPUs (`pip install tensorflow-tpu`)?"
            ) from error
        _systems[address.tpu] = resolver, topology
        return resolver, topology

    def _assigned(self, topology: Any) -> Any:
        """Returns the `DeviceAssignment` that says which cores of the TPU each replica has.

        If the strategy's `device_assignment` was given, it is used; a function is called with
        `topology`. Otherwise the assignment is made from `logical_devices` and `num_replicas`. If
        these have their default values, the result is None: TensorFlow then makes each core a
        replica.

        Args:
            topology: The topology of the TPU, which contains the shape of its mesh of cores.

        Raises:
            ValueError: If the TPU has too few cores, or its mesh cannot be divided into blocks of
                `logical_devices` cores.
        """
        if callable(self._device_assignment):
            return self._device_assignment(topology)
        if self._device_assignment is not None:
            return self._device_assignment
        if self._shape == (1,) and self._num_replicas is None:
            return None
        mesh = tuple(int(size) for size in topology.mesh_shape)
        shape = self._shape if len(self._shape) == 4 else _shape_in(mesh, self._shape[0])
        most = math.prod(mesh) // math.prod(shape) if shape is not None else 0
        fits = shape is not None and all(m % s == 0 for m, s in zip(mesh, shape, strict=True))
        if shape is None or not fits or (self._num_replicas or 1) > most:
            raise ValueError(
                f"`logical_devices={self._shape}` and `num_replicas={self._num_replicas}` do not "
                f"fit this TPU, whose cores are a mesh (x, y, z, core) of {mesh}."
            )
        return tf.tpu.experimental.DeviceAssignment.build(
            topology, computation_shape=list(shape), num_replicas=self._num_replicas or most
        )

    @contextmanager
    def naming_failures(self) -> Iterator[None]:
        """Context that raises a TPULostError instead of TensorFlow's error if the TPU is lost.

        Each `fit`, `evaluate` and `predict` runs in it. Other errors are raised unchanged. If a new
        `TPU` strategy uses a lost TPU again in this process, the TPU is initialized anew.
        """
        try:
            yield
        except tf.errors.OpError as error:
            is_lost = any(sign in str(error).lower() for sign in _SIGNS_OF_LOSS)
            if not is_lost and not isinstance(error, tf.errors.UnavailableError):
                raise
            name = "the TPU" if self._address is None else f"the TPU {self._address.tpu!r}"
            if self._address is not None:
                _systems.pop(self._address.tpu, None)
            raise TPULostError(
                f"{name} is lost: it was preempted, or the connection to it broke. What was on it "
                "since the last snapshot is gone. Start the program again, in a new process: "
                "`kfit.callbacks.BackupAndRestore` goes on from that snapshot, and `kfit run "
                "--max-restarts` starts it by itself (let TPU(timeout=...) wait for the next TPU). "
                f"TensorFlow says: {_first_line(error)}"
            ) from error

    # Methods for models that are split over the logical devices of a replica.

    def assign_to_logical_device(self, tensor: tf.Tensor, logical_device: int) -> tf.Tensor:
        """Places the operations that use a tensor on one core (logical device) of the replica.

        Call it in the model, such as in a layer's `call`. Otherwise all operations are on device 0.
        It cannot be combined with `spmd=True`.

        Args:
            tensor: A tensor of one replica, of any shape.
            logical_device: The index of the core, from 0 to `logical_devices` - 1.

        Returns:
            The same tensor, annotated for the compiler.
        """
        return self.tf_strategy.experimental_assign_to_logical_device(tensor, logical_device)

    def split_to_logical_devices(
        self, tensor: tf.Tensor, partition_dimensions: Sequence[int]
    ) -> tf.Tensor:
        """Splits a tensor over all cores (logical devices) of the replica.

        Call it in the model, such as in a layer's `call`.

        Example:
            >>> images = strategy.split_to_logical_devices(images, [1, 2, 1, 1])  # by height

        Args:
            tensor: A tensor of one replica, such as images of shape
                `(per-replica batch size, height, width, channels)`.
            partition_dimensions: For each dimension, the number of parts it is split into. The size
                of the dimension must be a multiple of this number. The product of the numbers must
                be the number of cores of the replica.

        Returns:
            The same tensor, of the same shape, annotated for the compiler.
        """
        return self.tf_strategy.experimental_split_to_logical_devices(
            tensor, list(partition_dimensions)
        )

    def replicate_to_logical_devices(self, tensor: tf.Tensor) -> tf.Tensor:
        """Keeps the whole tensor on every core (logical device) of the replica.

        Call it in the model, such as in a layer's `call`, for a tensor that is used together with
        tensors that are split over the cores: labels, or the outputs that a loss is computed from.

        Args:
            tensor: A tensor of one replica, of any shape.

        Returns:
            The same tensor, annotated for the compiler.
        """
        return self.tf_strategy.experimental_replicate_to_logical_devices(tensor)

    def received(self, value: Any) -> Any:
        """Returns a replica's input; with `spmd=True`, puts it on all cores of the replica.

        It is called on each replica, before the step uses the input. The model can then split the
        input over the cores (`split_to_logical_devices`). Without `spmd=True` the input is returned
        unchanged.

        Args:
            value: The input: a tensor, or a nested structure of tensors.
        """
        if not self._spmd:
            return value
        return tf.nest.map_structure(self.replicate_to_logical_devices, value)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _shape_in(mesh: Sequence[int], cores: int) -> tuple[int, ...] | None:
    """Returns the shape of a block of cores that tiles the mesh; None if there is no such block.

    Each replica gets such a block.

    Args:
        mesh: The shape of the TPU's mesh of cores, `(x, y, z, core)`.
        cores: The number of cores in a block. Cores of the same chip are taken first.
    """
    shape = []
    for size in reversed(mesh):
        shape.append(math.gcd(size, cores))
        cores //= shape[-1]
    return tuple(reversed(shape)) if cores == 1 else None
