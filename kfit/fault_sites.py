"""Named places in kfit's code at which a test can make a process fail; otherwise they do nothing.

The tests of what happens when something fails need faults at places that no hook of a callback and
no clock hits for certain, such as the middle of a sum over the workers. These places are the sites:
the code calls `reach` there. A test arms some of them by environment variables, before the
processes are started:

    KFIT_FAULT=exchange:1:kill:40         worker 1 kills itself when it is the 40th time in a sum
    KFIT_FAULT=building:*:kill            all workers kill themselves when they first build a model
    KFIT_FAULT=met:1:kill,restoring:0:kill      two faults, one after the other
    KFIT_FAULT_TESTS=/a/folder            says that this is a test; gets the marks of what was hit

A fault is `site:task:action`, or `site:task:action:count`. The task is the number of a task in its
cluster, or `*` for all; a process without a cluster has the number 0. Before a process acts, it
writes its process id to a file in the folder, the mark, whose name is that of the site and the
number of the task. If the mark is there already, it does not act: so each fault happens once,
however often `kfit run` starts the tasks again, and the test can tell that it has happened.

Nobody trains with these variables. KFIT_FAULT without KFIT_FAULT_TESTS is an error.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from kfit.cluster.resolvers import current_cluster

VARIABLE = "KFIT_FAULT"
MARKS = "KFIT_FAULT_TESTS"


class Site(Enum):
    """The sites; the value of each one is its name in KFIT_FAULT, and in the name of its mark."""

    STARTING = "starting"
    """A worker has started, and is about to meet the others (the rendezvous)."""
    MET = "met"
    """The workers have met; TensorFlow connects them next."""
    BUILDING = "building"
    """A call of `fit`, `evaluate` or `predict` is about to build the model."""
    EXECUTION = "execution"
    """An execution (a graph call) of training steps is about to begin."""
    EXCHANGE = "exchange"
    """Within a sum of gradients or other values over the workers: the neighbours have begun it."""
    VALIDATION = "validation"
    """An execution of an evaluation or a validation is about to begin."""
    EPOCH_END = "epoch_end"
    """The logs of an epoch are known on all workers; no `on_epoch_end` was called yet."""
    SAVE_POINT = "save_point"
    """All workers have come to a save point; no callback was called there yet."""
    BEFORE_DATA = "before_data"
    """The temporary folder of a snapshot was made, and is empty."""
    BEFORE_MANIFEST = "before_manifest"
    """The arrays and the state of a snapshot were written and synced, but not its manifest."""
    BEFORE_RENAME = "before_rename"
    """A snapshot is complete on the disk, but has its temporary name."""
    AFTER_RENAME = "after_rename"
    """A snapshot has its name, but its directory was not synced yet."""
    DELETING = "deleting"
    """Old snapshots have temporary names, and their files are about to be deleted."""
    RESTORING = "restoring"
    """The variables of a snapshot were restored, and nothing else of it yet."""
    FIT_END = "fit_end"
    """A `fit` has succeeded, and the chief has not recorded yet that its snapshots are obsolete."""
    TASK_STARTED = "task_started"
    """The supervisor has started the process of a task, and not yet those of the tasks after it."""


_ACTIONS: Mapping[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # To this thread, which would otherwise go on for a moment while another one gets the signal.
    "stop": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sleep": lambda: time.sleep(3600),
}
"""What a process can do at a site. With "sleep", only the thread waits that has come there."""


class _Fault(NamedTuple):
    """What a process does at a site.

    Attributes:
        site: The site.
        task: The number of the task that does it, or "*" for all tasks.
        action: A name in `_ACTIONS`.
        arrival: At which arrival of a process at this site it happens, from 1.
    """

    site: Site
    task: str
    action: str
    arrival: int


_asked = os.environ.get(VARIABLE) or None
"""The faults that a test has asked for; None in each normal run."""
_arrivals: Counter[Site] = Counter()


def reach(site: Site) -> None:
    """Does nothing, unless a test has asked for a fault at this site.

    Args:
        site: The place in the code that has called this function.

    Raises:
        ValueError: If KFIT_FAULT is set, and is wrong or this is no test.
    """
    if _asked is not None:
        _arrive(site)


def check() -> None:
    """Checks that no fault is asked for in a normal run.

    Called before a process does anything else. `reach` checks the same, if nobody has done so.

    Raises:
        ValueError: If KFIT_FAULT is set, but not KFIT_FAULT_TESTS; or if one of them is wrong.
    """
    if _asked is not None:
        _faults(_asked)


def _arrive(site: Site) -> None:
    assert _asked is not None
    faults = _faults(_asked)
    _arrivals[site] += 1
    cluster = current_cluster()
    task = "0" if cluster is None else str(cluster.task.id)
    for fault in faults:
        if fault.site is site and fault.task in ("*", task) and fault.arrival == _arrivals[site]:
            try:
                with open(os.path.join(os.environ[MARKS], f"{site.value}-{task}"), "x") as mark:
                    mark.write(str(os.getpid()))
            except FileExistsError:
                continue  # it has happened in an earlier start
            _ACTIONS[fault.action]()


def _faults(asked: str) -> list[_Fault]:
    folder = os.environ.get(MARKS)
    if folder is None:
        raise ValueError(
            f"`{VARIABLE}` is {asked!r}: it makes processes fail on purpose, and only kfit's own "
            f"tests set it, together with `{MARKS}`. Unset {VARIABLE}."
        )
    if not os.path.isdir(folder):
        raise ValueError(f"`{MARKS}` is {folder!r}; expected a folder, in which marks are made")
    return [_parsed(text) for text in asked.split(",")]


def _parsed(text: str) -> _Fault:
    names = {site.value: site for site in Site}
    parts = text.split(":")
    parts = [*parts, "1"] if len(parts) == 3 else parts
    site, task, action, count = parts if len(parts) == 4 else [""] * 4
    is_task, is_count = task == "*" or task.isdecimal(), count.isdecimal() and int(count) > 0
    if site not in names or not is_task or action not in _ACTIONS or not is_count:
        raise ValueError(
            f"`{VARIABLE}` has {text!r}; expected `site:task:action` or `site:task:action:count` "
            f"with a site of {sorted(names)}, the number of a task or `*`, an action of "
            f"{sorted(_ACTIONS)}, and a count from 1 up; several of them are separated by commas"
        )
    return _Fault(names[site], task, action, int(count))
