"""Training on one device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from kfit.distribute.contexts import is_on_devices
from kfit.distribute.devices import check_device, grow_memory, resolve_device, visible_devices
from kfit.distribute.scopes import in_another_scope
from kfit.distribute.strategy import FETCHED_AHEAD, Strategy
from kfit.internals import patch_points as points
from kfit.internals.patching import patched


class OneDevice(Strategy):
    """A strategy that trains on one device: by default the first GPU or, without GPUs, the CPU.

    Args:
        device: A device such as `"GPU:1"` or `"/cpu:0"`, or the index of a GPU. With None,
            TensorFlow places the operations as it does without any strategy.
        memory_growth: Whether TensorFlow allocates GPU memory as it needs it (True) or all of it at
            once (False). None leaves TensorFlow's setting unchanged.

    Raises:
        ValueError: If an option is wrong, or `memory_growth` is set after TensorFlow has
            initialized the devices. At the first use of the strategy it is also raised if this host
            has no such device or, without `device`, if the scope of a different strategy is active.
    """

    name = "one_device"
    replicas_meet = False

    def __init__(
        self, device: str | int | None = None, *, memory_growth: bool | None = None
    ) -> None:
        super().__init__()
        if device is not None:
            check_device(device, "device")
        self._device = device
        grow_memory("memory_growth", memory_growth)

    def _create(self) -> tf.distribute.Strategy:
        if self._device is None:
            if tf.distribute.has_strategy():
                raise in_another_scope(self.name)
            return tf.distribute.get_strategy()
        return tf.distribute.OneDeviceStrategy(resolve_device(self._device, "device"))

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which variables are created on the device that the user has chosen.

        If the user has not chosen a device, the context does nothing, and TensorFlow chooses one.
        """
        return super().scope() if self.places_variables else nullcontext()

    @property
    def places_variables(self) -> bool:
        """Whether variables must be created in the strategy's scope: True if a device was chosen.

        If the user has chosen no device, ordinary variables are used, and TensorFlow chooses their
        device.
        """
        return self._device is not None or isinstance(
            self.tf_strategy, tf.distribute.OneDeviceStrategy
        )

    def is_placed(self, value: Any) -> bool:
        """Returns whether a variable is on the chosen device already, so that it need not move.

        Args:
            value: A `tf.Variable`. For a Keras variable, pass the `tf.Variable` that it contains.
        """
        is_one = isinstance(value, tf.Variable) and not is_on_devices(value)
        if not self.places_variables or not is_one:
            return False
        extended = self.tf_strategy.extended
        return value.device in extended.worker_devices or extended.variable_created_in_scope(value)

    def making_slots(self) -> AbstractContextManager[None]:
        """Context of a call in which optimizers make slots for variables that are on the device.

        TensorFlow would only make them for variables that were made in the strategy's scope.
        """
        if not self.places_variables:
            return nullcontext()
        return patched(points.COLOCATE, _anywhere, of=self.tf_strategy.extended)

    @property
    def has_copies(self) -> bool:
        """Always False: a variable on the one device is an ordinary variable."""
        return False

    @property
    def devices(self) -> tuple[str, ...]:
        """The name of the one device, in a tuple."""
        if self._device is not None:
            return super().devices
        return ("GPU:0" if visible_devices("GPU") else "CPU:0",)

    def fetch_ahead(self, pipeline: Callable[[int, int], tf.data.Dataset]) -> Any:
        """Copies batches to the device in advance, while earlier steps run.

        Args:
            pipeline: A function that creates the data set of this host. It is called once, as
                `pipeline(0, 1)`, since replica 0 is the first and only one. See
                `Strategy.fetch_ahead`.

        Returns:
            A data set that yields the batches on the device.
        """
        to_device = tf.data.experimental.prefetch_to_device(self.devices[0], FETCHED_AHEAD)
        return pipeline(0, 1).apply(to_device)


def _anywhere(_: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `colocate_vars_with`, since the scope makes all variables on the one device."""
    return lambda variable: nullcontext()
