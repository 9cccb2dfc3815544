"""Steps on N workers: their parts measured here, the whole predicted, checked and carried on.

python -m benchmarks.scaling                measures 1, 2, 4 and 8 workers; some 5 minutes
python -m benchmarks.scaling --quick        a tiny form, to see that it works
python -m benchmarks.scaling --write FILE   puts the tables between the markers of a Markdown file
python -m benchmarks.scaling --save FILE    keeps what was measured, as JSON
python -m benchmarks.scaling --load FILE    measures nothing: other assumptions on what was kept

It needs an otherwise idle host. docs/scaling.md says what the model is, what is measured and what
is assumed; the options below are the assumptions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.scaling import tables
from benchmarks.scaling.fitting import fit
from benchmarks.scaling.parts import QUICK, Found, Plan, measure
from benchmarks.scaling.tables import Assumed

_BEGIN, _END = "<!-- scaling -->", "<!-- end of scaling -->"


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _count(text: str) -> int:
    return int(_positive(text))


_ASSUMPTIONS: dict[str, tuple[Callable[[str], float], float | None, str, str]] = {
    "bandwidth": (_positive, 1.25, "GB/S",
        "of a host's network; the default is 10 Gb/s, what clouds give to hosts of two cores"),
    "latency": (_positive, 100.0, "MICROSECONDS",
        "of a message on the way; the default is about half the usual round trip within a data "
        "center (Guo et al.: Pingmesh, SIGCOMM 2015)"),
    "mtbf": (_positive, 6300.0, "HOURS",
        "between two failures of a host; the default is 54 days of 2,048 hosts over 419 failures "
        "(The Llama 3 Herd of Models, 2024)"),
    "restart": (_positive, 300.0, "SECONDS",
        "from a failure to the next step; the default is a guess: another host takes minutes"),
    "batch": (_count, 64, "EXAMPLES", "of a worker and step, for weak scaling"),
    "global-batch": (_count, 65_536, "EXAMPLES", "of a step over all workers, for strong scaling"),
    "gradients": (_positive, None, "MB", "of another model than the measured one"),
    "state": (_positive, None, "MB", "of its snapshot"),
    "compute": (_positive, None, "MS", "that its step of `--batch` examples takes, with input"),
    "steps-per-execution": (_count, None, "STEPS", "as `compile` is told; else kfit finds them"),
}  # fmt: skip


def main() -> None:
    """Measures and prints."""
    parser, options = _options()
    if options.write and _BEGIN not in options.write.read_text():
        parser.error(f"--write: {options.write} has no line {_BEGIN!r}")
    if options.load:
        kept = json.loads(options.load.read_text())
        where, cores, found = kept["machine"], kept["cores"], _loaded(kept["found"])
    else:
        plan = QUICK if options.quick else Plan()
        where, cores = machine("tensorflow", "keras"), len(os.sched_getaffinity(0))
        found = {workers: measure(plan, workers, workers <= cores) for workers in plan.workers}
    if options.save:
        kept = {w: each._asdict() for w, each in found.items()}
        options.save.write_text(json.dumps({"machine": where, "cores": cores, "found": kept}))
    assumed = Assumed(**{name: getattr(options, name) for name in Assumed._fields})
    text = _report(where, cores, found, assumed)
    print(text)
    if options.write:
        before, rest = options.write.read_text().split(_BEGIN)
        options.write.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}")


def _report(where: str, cores: int, found: dict[int, Found], assumed: Assumed) -> str:
    costs, gradients = fit(found, cores), found[1].gradients
    errors = tables.errors(costs, found)
    typical, largest = statistics.median(map(abs, errors)), max(errors, key=abs)
    state = gradients / 1e6 if assumed.state is None else assumed.state
    return "\n".join(
        [
            f"**Measured**: {where}; medians.",
            "",
            tables.parameters(costs),
            "**The exchange**, workers on the cores of this host; the most workers were not fitted",
            "",
            tables.exchanges(costs, found),
            "**A step of `fit`**, ms; no whole step was fitted",
            "",
            tables.steps(costs, found),
            f"The model's error is {typical:.0%} at the median, and {largest:+.0%} at most.",
            "",
            "**Carried on**: hosts like this one, a worker each. Assumed: "
            f"{assumed.bandwidth:g} GB/s and {assumed.latency:g} µs between hosts, "
            f"{assumed.batch:,} examples a worker (weak) or {assumed.global_batch:,} over all "
            "(strong).",
            "",
            tables.carried_on(costs, assumed, gradients),
            f"**With failures**: assumed are {assumed.mtbf:,g} h between failures of a host and "
            f"{assumed.restart:g} s from one to the next step; a snapshot has {state:,.3g} MB.",
            "",
            tables.failures(costs, assumed, gradients),
        ]
    )


def _options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a tiny form")
    parser.add_argument("--write", type=Path, help="a Markdown file with the markers")
    parser.add_argument("--save", type=Path, help="a file for what was measured")
    parser.add_argument("--load", type=Path, help="such a file")
    group = parser.add_argument_group("assumptions")
    for name, (kind, default, unit, what) in _ASSUMPTIONS.items():
        text = f"{what} (default: {default:g})" if default else what
        group.add_argument(f"--{name}", type=kind, default=default, metavar=unit, help=text)
    return parser, parser.parse_args()


def _loaded(kept: dict[str, Any]) -> dict[int, Found]:
    """What JSON made strings of are numbers again."""

    def number(text: str) -> float:
        return float(text) if "." in text else int(text)

    found = {}
    for workers, each in kept.items():
        values: dict[str, Any] = {
            name: {number(key): seconds for key, seconds in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in each.items()
        }
        found[int(workers)] = Found(**values)
    return found


if __name__ == "__main__":
    main()
