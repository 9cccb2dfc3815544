"""Training on several devices of one host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from kfit.argument_checks import is_integer
from kfit.distribute.additions import on_one_device
from kfit.distribute.collective_keys import recovering, reduction, with_keys_of_its_own
from kfit.distribute.contexts import merge
from kfit.distribute.devices import (
    check_device,
    first_devices,
    grow_memory,
    resolve_device,
    visible_devices,
)
from kfit.distribute.strategy import Strategy
from kfit.internals.strategies import collective_ops, cross_device_ops

_CROSS_DEVICE_OPS: dict[str, Callable[[int], tf.distribute.CrossDeviceOps | None]] = {
    "nccl": lambda packs: tf.distribute.NcclAllReduce(num_packs=packs),
    "hierarchical": lambda packs: tf.distribute.HierarchicalCopyAllReduce(num_packs=packs),
    "one_device": lambda packs: on_one_device(),
    "auto": lambda packs: None,
}


class Mirrored(Strategy):
    """A strategy that trains synchronously on several devices of this host, with a replica on each.

    Args:
        devices: Devices such as `["GPU:0", "/gpu:1"]`, or indices of GPUs, `[0, 1]`. A number n
            takes the first n GPUs; if there is no GPU, it splits the CPU into n logical devices, to
            try out several replicas on a laptop (before any model or tensor is made). None takes
            all GPUs, or all logical CPU devices if there is no GPU.
        cross_device_ops: How gradients are summed: `"nccl"`, `"hierarchical"` (copies along a tree,
            for GPUs without NCCL), `"one_device"` (copies all to one device, and the sum back), or
            a `tf.distribute.CrossDeviceOps`. `"auto"` takes `"one_device"` on CPUs, and leaves the
            choice to TensorFlow on GPUs.
        num_packs: The number of packs into which `"nccl"` and `"hierarchical"` group gradients; 0
            sends each gradient by itself.
        memory_growth: Whether TensorFlow allocates GPU memory as it needs it (True) or all of it at
            once (False). None leaves TensorFlow's setting unchanged. This can be set only before
            TensorFlow initializes the devices, so create the strategy before any model or tensor.
        gradient_dtype: "bfloat16" or "float16" sends half as many bytes: gradients are cast to this
            dtype and summed, and the sums are cast back. None, the default, keeps their own dtype.

    Raises:
        ValueError: If an option is wrong, `devices` is larger than the number of GPUs, or it is too
            late to split the CPU or to set `memory_growth`. At the first use of the strategy it is
            also raised if a device does not exist or is named twice.
    """

    name = "mirrored"

    def __init__(
        self,
        devices: int | Sequence[str | int] | None = None,
        *,
        cross_device_ops: str | tf.distribute.CrossDeviceOps = "auto",
        num_packs: int = 1,
        memory_growth: bool | None = None,
        gradient_dtype: str | None = None,
    ) -> None:
        super().__init__(gradient_dtype)
        self._devices = _listed(devices)
        if isinstance(cross_device_ops, str) and cross_device_ops not in _CROSS_DEVICE_OPS:
            raise ValueError(
                f"`cross_device_ops` must be one of {sorted(_CROSS_DEVICE_OPS)} or a "
                f"tf.distribute.CrossDeviceOps. Received: {cross_device_ops!r}"
            )
        if num_packs < 0:
            raise ValueError(f"`num_packs` must be at least 0. Received: {num_packs}")
        self._cross_device_ops = cross_device_ops
        self._num_packs = num_packs
        grow_memory("memory_growth", memory_growth)

    def _create(self) -> tf.distribute.Strategy:
        if self._devices is not None:
            devices = [resolve_device(device, "devices") for device in self._devices]
        else:
            devices = visible_devices("GPU") or visible_devices("CPU")
        if len(set(devices)) < len(devices):
            raise ValueError(f"`devices` names a device twice. Received: {self._devices}")
        ops = self._cross_device_ops
        if ops == "auto" and not any(device.startswith("GPU") for device in devices):
            # CPU devices share their memory, so summing on one of them is fastest.
            ops = "one_device"
        if isinstance(ops, str):
            ops = _CROSS_DEVICE_OPS[ops](self._num_packs)
        return with_keys_of_its_own(tf.distribute.MirroredStrategy(devices, cross_device_ops=ops))

    def naming_failures(self) -> AbstractContextManager[Any]:
        """Context that lets the strategy sum by copies after an error has aborted the collectives.

        Each `fit`, `evaluate` and `predict` runs in it. The error is raised again, and later calls
        copy the values of the replicas to one device to sum them. See `Strategy.naming_failures`.
        """
        return recovering(self.tf_strategy)

    @property
    def copies_in_graphs(self) -> bool:
        """Whether variables are copied to the devices, and back, in one graph call: always True."""
        return True

    @property
    def sums_by_collectives(self) -> bool:
        """Whether sums over the replicas are computed by TensorFlow's collectives.

        It is False if the replicas are on CPUs and sum by copies, as they do by default; if the
        user has chosen another way to sum by `cross_device_ops`; and after an error has aborted the
        collectives.
        """
        return cross_device_ops(self.tf_strategy) is collective_ops(self.tf_strategy)

    def all_reduce_sum(self, value: Any) -> Any:
        """Sums tensors over all replicas; all replicas must call it, inside `run`.

        The arguments and the result are those of `Strategy.all_reduce_sum`. Sparse gradients
        (`tf.IndexedSlices`) are combined by copies between devices, since TensorFlow's collectives
        need the same number of rows in each step.
        """
        values = value if isinstance(value, list) else [value]
        in_rows = [i for i, one in enumerate(values) if isinstance(one, tf.IndexedSlices)]
        if not in_rows or not self.sums_by_collectives:
            return super().all_reduce_sum(value)
        others = [i for i in range(len(values)) if i not in in_rows]
        sums: list[Any] = [None] * len(values)
        rows = merge(_rows_by_copies, ([values[i] for i in in_rows],))
        totals = super().all_reduce_sum([values[i] for i in others]) if others else []
        for i, total in zip([*in_rows, *others], [*rows, *totals], strict=True):
            sums[i] = total
        return sums if isinstance(value, list) else sums[0]

    @property
    def reduction(self) -> Any:
        """The `CrossDeviceOps` by which the strategy sums over its replicas.

        If it is replaced, the steps are traced again. See `Strategy.reduction`.
        """
        return reduction(self.tf_strategy)


def _listed(devices: Any) -> list[str | int] | None:
    """Returns the devices that the user has chosen, as a list; None if the user wants all of them.

    Args:
        devices: The argument `devices` of `Mirrored`, which may be wrong.

    Raises:
        ValueError: If `devices` is wrong, or is a greater number than this host has devices.
    """
    if devices is None:
        return None
    if is_integer(devices) and devices >= 1:
        return [*first_devices(int(devices), "devices")]
    if not isinstance(devices, Sequence) or isinstance(devices, str) or not devices:
        raise ValueError(
            "`devices` must be a number of devices, a list of device names such as ['GPU:0', "
            f"'GPU:1'], or None for all. Received: {devices!r}"
        )
    for device in devices:
        check_device(device, "devices")
    return list(devices)


def _rows_by_copies(_: tf.distribute.Strategy, gradients: list[Any]) -> list[Any]:
    """Sums sparse gradients over the replicas, by copying the rows of all replicas to one device.

    There the rows of each gradient are concatenated, and the result is copied back to all devices.
    The function is called once for all replicas together, by `merge`.

    Args:
        gradients: Sparse gradients, each as a per-replica value of one `tf.IndexedSlices` per
            replica.

    Returns:
        For each gradient, a per-replica value with the rows of all replicas on each replica.
    """
    ops, add = on_one_device(), tf.distribute.ReduceOp.SUM
    return [ops.reduce(add, gradient, destinations=gradient) for gradient in gradients]
