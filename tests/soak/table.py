"""The table that the soak test prints, as the Markdown rows of `docs/reliability.md`."""

import datetime as dt
import os
import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.soak.records import Record

HEADER = "| training | run | faults | steps | back after (median) | goodput | violations |"
RULE = "|---|---|---|---|---|---|---|"


def row(record: Record, mtbf: float) -> str:
    """The row of one training."""
    kinds = Counter(fault.name for fault in record.faults)
    faults = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items()))
    back = [fault.recovered - fault.at for fault in record.faults if fault.recovered is not None]
    today = dt.date.today().isoformat()
    own = f"{100 * record.own_goodput:.0f} % by kfit's report"
    cells = [
        record.kind,
        f"{today}, {machine()}, {record.seconds / 60:.1f} min, MTBF {mtbf:g} s",
        f"{len(record.faults)}" + (f": {faults}" if faults else ""),
        f"{record.steps}, {record.steps_again} done again",
        f"{statistics.median(back):.0f} s" if back else "",
        f"{100 * record.goodput:.0f} % ({own})",
        str(len(record.violations)),
    ]
    return "| " + " | ".join(cells) + " |"


def table(records: Sequence[Record], mtbf: float) -> str:
    """The whole table."""
    return "\n".join([HEADER, RULE, *(row(record, mtbf) for record in records)])


def machine() -> str:
    """The number of cores and the model of the CPU of this host."""
    cores = len(os.sched_getaffinity(0))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{cores} cores of {' '.join(name.split())}"
