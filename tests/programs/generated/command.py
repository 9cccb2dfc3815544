"""The command: many programs, each drawn by a seed, run, compared and made smaller if it fails."""

import argparse
import json
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.programs.generated.place import NUM_DEVICES

TOGETHER = 10
"""Programs that one cluster of workers runs, one after the other."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    set_up()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="programs-"))
    seed = options.seed or str(random.SystemRandom().randrange(10**6))
    print(f"seed {seed}, in {folder}", flush=True)
    drawn = _drawn(options, seed)
    if options.print:
        _print(drawn)
        return 0
    verdicts: dict[str, Any] = {}
    findings: list[str] = []
    for names in _batches(drawn):
        for name, verdict in _judged({n: drawn[n] for n in names}, folder).items():
            verdicts[name] = verdict
            if verdict.status in ("failed", "invalid"):
                command = _command(name, drawn[name], options, seed)
                findings.append(f"    {verdict.status} {verdict.kind}: {command}")
                _report(name, verdict, drawn[name], options, folder)
            else:
                print(f"{name}: {verdict.status} {verdict.kind}", flush=True)
    print("\n".join([f"seed {seed}: {_total(verdicts, drawn)}", *findings]), flush=True)
    rarely = _count(verdicts, "refused") <= 0.1 * len(drawn)
    return 0 if rarely and not findings else 1


def _total(verdicts: dict[str, Any], drawn: dict[str, Any]) -> str:
    """How many programs were run, where, and what became of them."""
    on_workers = sum(bool(drawn[name]["workers"]) for name in verdicts)
    killed = sum(drawn[name]["killed"] for name in verdicts)
    statuses = ("passed", "refused", "invalid", "failed")
    found = ", ".join(f"{_count(verdicts, status)} {status}" for status in statuses)
    return f"{len(verdicts)} programs, {on_workers} on workers, {killed} killed: {found}"


def _count(verdicts: dict[str, Any], status: str) -> int:
    return sum(verdict.status == status for verdict in verdicts.values())


def _command(name: str, drawn: dict[str, Any], options: argparse.Namespace, seed: str) -> str:
    """The command that runs one program of a seed again."""
    if options.program:
        return "the command that was given"
    parts = [f"python -m tests.programs --seed {seed} --only {name}"]
    parts += ["--brief"] if options.brief else []
    parts += ["--mixed"] if options.mixed else []
    parts += [f"--{n} {drawn[n]}" for n in ("workers", "replicas") if getattr(options, n)]
    parts += ["--killed"] if options.killed else ["--straight"] if options.straight else []
    return " ".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="number of programs")
    parser.add_argument("--seed", help="of all programs; a fresh one by default")
    parser.add_argument("--only", type=int, help="run this program of the seed alone")
    parser.add_argument("--brief", action="store_true", help="draw brief ones, as the tests do")
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="a third on two or three workers, a third killed, half of them brief",
    )
    parser.add_argument("--program", help="run the program in this file of JSON instead")
    parser.add_argument("--replicas", type=int, help="mirrored replicas; drawn by default")
    parser.add_argument("--workers", type=int, help="run on this many workers instead")
    parser.add_argument("--killed", action="store_true", help="kill all programs, not a third")
    parser.add_argument("--straight", action="store_true", help="kill none")
    parser.add_argument("--shrink", type=float, default=120.0, metavar="SECONDS", help="0 for none")
    parser.add_argument("--keep", metavar="FOLDER", help="where texts and results are kept")
    parser.add_argument("--print", action="store_true", help="print the programs as scripts")
    return parser


def set_up(devices: int = NUM_DEVICES) -> None:
    """Has TensorFlow print less, and have logical devices."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one] * devices)


def _drawn(options: argparse.Namespace, seed: str) -> dict[str, dict[str, Any]]:
    """By name, the programs and where they run."""
    from tests.programs.generated.draw import mixed, placed

    if options.program:
        program = json.loads(Path(options.program).read_text())
        where = {"replicas": options.replicas or 2, "workers": options.workers}
        return {"0": {"program": program, **where, "killed": options.killed}}
    numbers = range(options.count) if options.only is None else [options.only]
    drawn = {}
    for number in numbers:
        each = mixed(seed, number) if options.mixed else placed(f"{seed}:{number}", options.brief)
        each["replicas"] = options.replicas or each["replicas"]
        each["workers"] = options.workers or each["workers"]
        each["killed"] = (each["killed"] or options.killed) and not options.straight
        drawn[str(number)] = each
    return drawn


def _batches(drawn: dict[str, Any]) -> Iterator[list[str]]:
    """The programs that are run together: those on as many workers are."""
    waiting: dict[int, list[str]] = {}
    for name, each in drawn.items():
        if not each["workers"]:
            yield [name]
            continue
        others = waiting.setdefault(each["workers"], [])
        others.append(name)
        if len(others) == TOGETHER:
            yield waiting.pop(each["workers"])
    yield from waiting.values()


def _judged(drawn: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The verdicts; where there can be none, that is a finding, and the next ones are run."""
    from tests.programs.generated.check import Verdict

    try:
        return _check(drawn, folder)
    except Exception as error:
        told = traceback.format_exc().splitlines()
        return {name: Verdict("failed", f"no verdict: {error}", told) for name in drawn}


def _check(drawn: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The verdicts on programs that are run together."""
    workers = next(iter(drawn.values()))["workers"]
    if workers:
        from tests.programs.generated.workers import check_on_workers

        programs = [(name, each["program"], each["killed"]) for name, each in drawn.items()]
        inside = Path(tempfile.mkdtemp(prefix="workers-", dir=_made(folder)))
        return check_on_workers(programs, workers, inside)
    from tests.programs.generated.check import check

    return {
        name: check(each["program"], each["replicas"], each["killed"], folder / name)
        for name, each in drawn.items()
    }


def _report(
    name: str, verdict: Any, drawn: dict[str, Any], options: argparse.Namespace, folder: Path
) -> None:
    """Prints a failure, then the smallest program that fails alike, and how to run it again."""
    print(f"{name}: {verdict.status.upper()} {verdict.kind}", flush=True)
    print("\n".join(f"    {line}" for line in verdict.details[:12]))
    print(f"    {json.dumps(drawn['program'])}", flush=True)
    program = drawn["program"]
    if verdict.status == "failed" and options.shrink:
        from tests.programs.generated.shrink import shrink

        def fails(other: dict[str, Any]) -> bool:
            inside = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_made(folder)))
            found = _judged({name: {**drawn, "program": other}}, inside)[name]
            return bool(found.kind == verdict.kind)

        program = shrink(program, fails, options.shrink)
        print(f"    smallest: {json.dumps(program)}")
    path = _made(folder) / f"{name}.json"
    path.write_text(json.dumps(program, indent=1))
    where = f"--replicas {drawn['replicas']}"
    if drawn["workers"]:
        where = f"--workers {drawn['workers']}"
    killed = " --killed" if drawn["killed"] else ""
    print(f"    again: python -m tests.programs --program {path} {where}{killed}", flush=True)


def _print(drawn: dict[str, Any]) -> None:
    from tests.programs.generated.check import mirrored
    from tests.programs.generated.place import Place
    from tests.programs.generated.script import script

    for each in drawn.values():
        strategy = (
            '"multi_worker"'
            if each["workers"]
            else mirrored(each["replicas"], each["program"]["seed"])
        )
        save_freq = "epoch" if each["killed"] else None
        print(script(each["program"], Place(strategy, save_freq=save_freq), "program"))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
