"""The command: many programs, each drawn by a seed, run, compared and made smaller if it fails."""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

NUM_DEVICES = 4


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    _set_up()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="programs-"))
    seed = options.seed or str(random.SystemRandom().randrange(10**6))
    print(f"seed {seed}, in {folder}", flush=True)
    drawn = _drawn(options, seed)
    if options.print:
        _print(drawn, options)
        return 0
    found: dict[str, int] = {}
    for names in _batches(sorted(drawn, key=_number), 10 if options.workers else 1):
        for name, verdict in _check({n: drawn[n] for n in names}, options, folder).items():
            found[verdict.status] = found.get(verdict.status, 0) + 1
            if verdict.status in ("failed", "invalid"):
                _report(name, verdict, drawn[name], options, folder)
            else:
                print(f"{name}: {verdict.status} {verdict.kind}", flush=True)
    print(f"seed {seed}: " + ", ".join(f"{n} {status}" for status, n in sorted(found.items())))
    rarely = found.get("refused", 0) <= 0.1 * len(drawn)
    return 0 if rarely and not (found.get("failed") or found.get("invalid")) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="number of programs")
    parser.add_argument("--seed", help="of all programs; a fresh one by default")
    parser.add_argument("--only", type=int, help="run this program of the seed alone")
    parser.add_argument("--brief", action="store_true", help="draw brief ones, as the tests do")
    parser.add_argument("--program", help="run the program in this file of JSON instead")
    parser.add_argument("--replicas", type=int, help="mirrored replicas; drawn by default")
    parser.add_argument("--workers", type=int, help="run on this many workers instead")
    parser.add_argument("--killed", action="store_true", help="kill all programs, not a third")
    parser.add_argument("--straight", action="store_true", help="kill none")
    parser.add_argument("--shrink", type=float, default=120.0, metavar="SECONDS", help="0 for none")
    parser.add_argument("--keep", metavar="FOLDER", help="where texts and results are kept")
    parser.add_argument("--print", action="store_true", help="print the programs as scripts")
    return parser


def _set_up() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one] * NUM_DEVICES)


def _drawn(options: argparse.Namespace, seed: str) -> dict[str, dict[str, Any]]:
    """By name, the programs and where they run."""
    from tests.programs.generated.draw import placed

    if options.program:
        program = json.loads(Path(options.program).read_text())
        where = {"replicas": options.replicas or 2, "killed": options.killed}
        return {"0": {"program": program, **where}}
    numbers = range(options.count) if options.only is None else [options.only]
    drawn = {str(number): placed(f"{seed}:{number}", options.brief) for number in numbers}
    for each in drawn.values():
        each["replicas"] = options.replicas or each["replicas"]
        each["killed"] = (each["killed"] or options.killed) and not options.straight
    return drawn


def _number(name: str) -> int:
    return int(name)


def _batches(names: list[str], size: int) -> list[list[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def _check(drawn: dict[str, Any], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if options.workers:
        from tests.programs.generated.workers import check_on_workers

        programs = [(name, each["program"], each["killed"]) for name, each in drawn.items()]
        inside = Path(tempfile.mkdtemp(prefix="workers-", dir=_made(folder)))
        return check_on_workers(programs, options.workers, inside)
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
            found = _check({name: {**drawn, "program": other}}, options, inside)[name]
            return bool(found.kind == verdict.kind)

        program = shrink(program, fails, options.shrink)
        print(f"    smallest: {json.dumps(program)}")
    path = _made(folder) / f"{name}.json"
    path.write_text(json.dumps(program, indent=1))
    where = f"--workers {options.workers}" if options.workers else f"--replicas {drawn['replicas']}"
    killed = " --killed" if drawn["killed"] else ""
    print(f"    again: python -m tests.programs --program {path} {where}{killed}", flush=True)


def _print(drawn: dict[str, Any], options: argparse.Namespace) -> None:
    from tests.programs.generated.check import mirrored
    from tests.programs.generated.place import Place
    from tests.programs.generated.script import script

    for each in drawn.values():
        strategy = '"multi_worker"' if options.workers else mirrored(each["replicas"])
        save_freq = "epoch" if each["killed"] else None
        print(script(each["program"], Place(strategy, save_freq=save_freq), "program"))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
