"""Checks the names of devices that users write, and sets how GPU memory is allocated."""

from __future__ import annotations

import tensorflow as tf


def check_device(device: object, argument: str) -> None:
    """Checks the form of a device argument, without asking TensorFlow for its devices.

    Args:
        device: The name of a device, or the index of a GPU.
        argument: The name of the user's argument, for the error message.

    Raises:
        ValueError: If `device` is neither a name nor the index of a GPU.
    """
    is_index = isinstance(device, int) and not isinstance(device, bool) and device >= 0
    if not is_index and not (isinstance(device, str) and device.strip("/ ")):
        raise ValueError(
            f"`{argument}` must name devices such as 'GPU:0', '/gpu:1' or 'CPU:0', or give the "
            f"index of a GPU. Received: {device!r}"
        )


def resolve_device(device: str | int, argument: str) -> str:
    """Returns the name by which TensorFlow knows a device of this host, such as "GPU:0".

    Args:
        device: "GPU:0", "gpu:0", "/gpu:0", "/device:GPU:0", a full name, or the index of a GPU.
        argument: The name of the user's argument, for the error message.

    Raises:
        ValueError: If this host has no such device; the message lists those it has.
    """
    known = visible_devices()
    name = f"GPU:{device}" if isinstance(device, int) else device.strip("/ ").upper()
    name = name.rsplit("/", 1)[-1].removeprefix("DEVICE:")
    name = name if ":" in name else f"{name}:0"
    if name not in known:
        raise ValueError(
            f"`{argument}` names {device!r}, which this host does not have. It has: {known}. "
            "(CUDA_VISIBLE_DEVICES and `tf.config.set_visible_devices` hide devices; a GPU that "
            "TensorFlow cannot use, such as one without its libraries, is missing as well.)"
        )
    return name


def visible_devices(kind: str | None = None) -> list[str]:
    """Returns the names of this host's logical devices, such as "CPU:0" and "GPU:0".

    Args:
        kind: "CPU" or "GPU" for only those of one kind; None for all.
    """
    logical = tf.config.list_logical_devices(kind)
    return [device.name.rsplit("/", 1)[-1].removeprefix("device:") for device in logical]


def grow_memory(argument: str, wanted: bool | None) -> None:
    """Makes TensorFlow allocate GPU memory as it needs it, or all of it at once.

    This can be set only before TensorFlow has initialized the devices.

    Args:
        argument: The name of the user's argument, for the error message.
        wanted: Whether memory grows; None leaves TensorFlow's setting unchanged.

    Raises:
        ValueError: If TensorFlow has already initialized the devices.
    """
    if wanted is None:
        return
    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, wanted)
        except RuntimeError as error:
            raise ValueError(
                f"`{argument}`={wanted} comes too late: TensorFlow already ran an operation (a "
                "model, a tensor or a data set was made, or a cluster joined) and has "
                "configured the memory of the GPUs. Make the strategy first, or set "
                "TF_FORCE_GPU_ALLOW_GROWTH=true in the environment of the program."
            ) from error
