"""What a task tells the others of itself."""

from __future__ import annotations

from dataclasses import dataclass

from kfit.cluster import meeting


@dataclass(frozen=True)
class Report:
    """What one task is and has.

    Args:
        task: Its name, such as "worker 0".
        cluster: The digest of the addresses it was given.
        tasks: How many addresses these are.
        process: A random name of the process that speaks.
        host: The host's name.
        machine: A name that only processes on one host share.
        seconds: Its clock, in seconds since 1970.
        versions: By package, the installed version, or "" where it is missing.
        cpus: The CPUs that it may use.
        threads: How many threads TensorFlow will compute on.
        gpus: How many GPUs it will use; -1 where nobody knows.
        visible_gpus: Their names or indices on the host.
        shared_directory: The directory that all should see, or "".
        probe: The name of a file that it holds there, or "".
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
    """The one message there is: to whom, and the sender's report."""

    magic = b"KFIT-DOCTOR/1 "

    receiver: str
    report: Report
