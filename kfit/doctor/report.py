"""The report that a task (process of a cluster) sends to the other tasks in `kfit doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field

from kfit.cluster import meeting


@dataclass(frozen=True)
class Report:
    """What a task says about itself in `kfit doctor`: its identity, software and hardware.

    Tasks send each other their reports, since many problems are differences between two tasks.

    Args:
        task: The name of the task, such as "worker 0".
        cluster: A hash of the addresses that were given to the task as those of the cluster.
        tasks: The number of these addresses.
        process: A random identifier of the task's process.
        host: The name of the task's host.
        machine: An identifier of the host or container, which is equal for all processes there.
        seconds: The time of the host's clock, in seconds since 1970.
        versions: The installed versions by package; "" for a package that is not installed.
        cpus: The indices of the CPUs that the task may use.
        threads: The number of threads on which TensorFlow will compute.
        gpus: The number of GPUs that the task will use; -1 if it is unknown.
        visible_gpus: The names or indices of these GPUs on the host.
        shared_directory: The directory in which all tasks should see the same files; "" if none was
            given.
        probe: The name of the test file that the task has written to this directory, and for which
            the other tasks look; "" if there is none.
        source: What describes the cluster to the task, such as "TF_CONFIG"; "" if it is unknown.
    """

    task: str
    cluster: str
    tasks: int
    process: str
    host: str
    machine: str
    seconds: float
    versions: dict[str, str]
    cpus: list[int]
    threads: int
    gpus: int
    visible_gpus: list[str]
    shared_directory: str = ""
    probe: str = ""
    source: str = ""


@dataclass(frozen=True)
class Message(meeting.Message):
    """The message with which a task that runs `kfit doctor` sends its report to another task.

    Args:
        receiver: The name of the task to which the message is sent.
        report: The report of the task that sends the message.
        addresses: Some of the addresses of its cluster (`AddressList.sent_to`).
    """

    magic = b"KFIT-DOCTOR/4 "

    receiver: str
    report: Report
    addresses: dict[str, str] = field(default_factory=dict)
