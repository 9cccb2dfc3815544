"""The report about itself that a task sends to the other tasks."""

from __future__ import annotations

from dataclasses import dataclass

from kfit.cluster import meeting


@dataclass(frozen=True)
class Report:
    """The identity, software and hardware of one task.

    Args:
        task: Its name, such as "worker 0".
        cluster: The digest of the addresses in its description of the cluster.
        tasks: The number of these addresses.
        process: A random identifier of the process that reports.
        host: The host's name.
        machine: An identifier that only processes of one host or container share.
        seconds: The time of its clock, in seconds since 1970.
        versions: The installed versions by package; "" for a package that is not installed.
        cpus: The CPUs that it may use.
        threads: The number of threads that TensorFlow will compute on.
        gpus: The number of GPUs that it will use; -1 if it is unknown.
        visible_gpus: Their names or indices on the host.
        shared_directory: The directory that all tasks should see, or "".
        probe: The name of the test file that it keeps there for the time of the exchange, or "".
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


@dataclass(frozen=True)
class Message(meeting.Message):
    """The message that the `kfit doctor` of one task sends to that of another task.

    Args:
        receiver: The name of the task that the message is for.
        report: The sender's report.
    """

    magic = b"KFIT-DOCTOR/1 "

    receiver: str
    report: Report
