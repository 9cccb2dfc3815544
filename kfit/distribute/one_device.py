"""Training on one device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from kfit.distribute.strategy import Strategy


class OneDevice(Strategy):
    """Trains on one device: the first GPU, or the CPU where there is none.

    Args:
        device: A device such as `"GPU:1"` or `"/cpu:0"`. With None, TensorFlow places the
            operations as it does without any strategy.

    Raises:
        ValueError: If `device` is no device of this host (when training begins).
    """

    name = "one_device"
    replicas_meet = False

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        if device is not None and not isinstance(device, str):
            raise ValueError(
                f"`device` must be a device name such as 'GPU:0' or None. Received: {device!r}"
            )
        self._device = device

    def _create(self) -> tf.distribute.Strategy:
        if self._device is None:
            return tf.distribute.get_strategy()
        wanted = self._device.strip("/").lower().removeprefix("device:")
        known = [f"{d.device_type}:{d.name[-1]}" for d in tf.config.list_logical_devices()]
        if wanted.split(":device:")[-1] not in {name.lower() for name in known}:
            raise ValueError(
                f"`device` must be one of this host's devices {known}. Received: {self._device!r}"
            )
        return tf.distribute.OneDeviceStrategy(self._device)

    def scope(self) -> AbstractContextManager[Any]:
        """See `Strategy.scope`; without a device nothing needs to be entered."""
        return super().scope() if self.places_variables else nullcontext()

    @property
    def places_variables(self) -> bool:
        """Plain variables serve when TensorFlow chooses the device."""
        return (
            not isinstance(self.tf_strategy, type(tf.distribute.get_strategy()))
            or tf.distribute.has_strategy()
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """The name of the device."""
        if self._device is not None:
            return super().devices
        gpus = tf.config.list_logical_devices("GPU")
        return ("GPU:0" if gpus else "CPU:0",)
