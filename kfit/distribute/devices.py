"""Checks the devices that users pass, splits the CPU, and sets how GPU memory is allocated."""

from __future__ import annotations

import sys

import tensorflow as tf

from kfit.cluster.resolvers import current_cluster
from kfit.heartbeat.terminal import in_notebook

CPUS = "KFIT_CPUS"
"""The environment variable by which `kfit run --cpus` says into how many devices to split the CPU.

The starter of the user's program (`kfit/commands/run_script.py`) splits it.
"""


def check_device(device: object, argument: str) -> None:
    """Checks the form of a device that the user passed, without asking TensorFlow for its devices.

    So it can be called before TensorFlow has initialized the devices.

    Args:
        device: The name of a device, or the index of a GPU.
        argument: The name of the argument that the user has set, for the error message.

    Raises:
        ValueError: If `device` is neither a name nor an index.
    """
    is_index = isinstance(device, int) and not isinstance(device, bool) and device >= 0
    if not is_index and not (isinstance(device, str) and device.strip("/ ")):
        raise ValueError(
            f"`{argument}` must name devices such as 'GPU:0', '/gpu:1' or 'CPU:0', or give the "
            f"index of a GPU. Received: {device!r}"
        )


def resolve_device(device: str | int, argument: str) -> str:
    """Returns the short name of a device of this host, such as "GPU:0".

    Args:
        device: "GPU:0", "gpu:0", "/gpu:0", "/device:GPU:0", a full name, or the index of a GPU.
        argument: The name of the argument that the user has set, for the error message.

    Raises:
        ValueError: If this host has no such device. The message lists the devices that it has.
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
    """Returns the names of the logical devices of this host, such as "CPU:0" and "GPU:0".

    Args:
        kind: "CPU" or "GPU" returns only devices of that kind; None returns all devices.
    """
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    own = [name for name in names if _is_of_this_task(name)]
    return [name.rsplit("/", 1)[-1].removeprefix("device:") for name in own]


def _is_of_this_task(name: str) -> bool:
    """Returns whether a device is one of this process, and not of another task of its cluster."""
    spec, cluster = tf.DeviceSpec.from_string(name), current_cluster()
    if cluster is None or spec.job in (None, "localhost"):
        return True
    return (spec.job, spec.task) == (cluster.task.type, cluster.task.id)


def first_devices(count: int, argument: str) -> list[str]:
    """Returns the names of as many devices of this host as the user wants: GPUs, or parts of a CPU.

    On a host without a GPU, the CPU is split into logical devices (`split_cpu`).

    Args:
        count: The number of devices.
        argument: The name of the argument that the user has set, for the error message.

    Raises:
        ValueError: If the host has GPUs, but not as many; or if TensorFlow has already initialized
            the CPU with fewer logical devices.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    if 0 < gpus < count:
        raise ValueError(
            f"`{argument}={count}`, but this host has only {gpus} GPU{'s' * (gpus > 1)}. To train "
            f"on the CPU, split into {count} devices, hide them: set CUDA_VISIBLE_DEVICES=-1."
        )
    if gpus:
        return [f"GPU:{index}" for index in range(count)]
    split_cpu(count, argument)
    return [f"CPU:{index}" for index in range(count)]


def split_cpu(count: int, argument: str) -> None:
    """Splits the CPU of this host into several logical devices, as TensorFlow calls them.

    A replica can be placed on each of them. They share the cores, so training becomes no faster:
    this is for trying out how a model trains on several replicas. If the CPU has been split into at
    least as many devices before, nothing is changed.

    Args:
        count: The number of logical devices.
        argument: The name of the argument that the user has set, for the error message.

    Raises:
        ValueError: If TensorFlow has already initialized the CPU with fewer logical devices.
    """
    [cpu, *_] = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or [cpu]) >= count:
        return
    try:
        one = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [one] * count)
    except RuntimeError:
        raise ValueError(
            f"`{argument}={count}` comes too late: TensorFlow already ran an operation (a model, a "
            "tensor or a data set was made), so the CPU can no longer be split into devices. "
            f"{how_to_split(count)}"
        ) from None  # TensorFlow's error says the same in its own words


def how_to_split(count: int) -> str:
    """Returns advice how to train on several devices of the CPU, in a notebook or in a script."""
    early = (
        "before a model or a data set is made, pass a function that makes the model, "
        f'`kfit.Trainer(make_model, "mirrored", devices={count})`, or make the strategy, '
        f"`strategy = kfit.distribute.Mirrored({count})`."
    )
    if in_notebook(sys.stdout):
        return (
            f"Restart the kernel and, {early} Or train on several workers, whatever has run "
            f"before: `kfit.launch(train, workers={count})`."
        )
    return f"Start the program by `kfit run --cpus {count}`. Or, {early}"


def grow_memory(argument: str, wanted: bool | None) -> None:
    """Sets whether TensorFlow allocates GPU memory as needed, or all of it at once.

    Args:
        argument: The name of the argument that the user has set, for the error message.
        wanted: True to allocate memory as needed, False to allocate all of it at once. None leaves
            TensorFlow's setting unchanged.

    Raises:
        ValueError: If TensorFlow has already initialized the devices, so that it is too late.
    """
    if wanted is None:
        return
    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, wanted)
        except RuntimeError as error:
            raise ValueError(
                f"`{argument}={wanted}` comes too late: TensorFlow already ran an operation (a "
                "model, a tensor or a data set was made, or a cluster joined) and has "
                "configured the memory of the GPUs. Make the strategy first, or set "
                "TF_FORCE_GPU_ALLOW_GROWTH=true in the environment of the program."
            ) from error
