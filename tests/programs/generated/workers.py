"""Runs a list of programs on the workers of a cluster on this host, all in the same processes."""

import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.programs.generated.check import (
    Verdict,
    compared,
    drawn_save_freq,
    judged_resumed,
    raised,
    reference_of,
)
from tests.programs.generated.run import Outcome

MAIN = Path(__file__).parent / "worker_main.py"
DEADLINE = 300.0
"""Seconds for one program, the start of the processes included."""


class RemoteError(Exception):
    """An error that a worker raised; `told` is its traceback."""

    def __init__(self, kind: str, text: str, told: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.told = told


def check_on_workers(
    programs: list[tuple[str, dict[str, Any], bool]], workers: int, folder: Path
) -> dict[str, Verdict]:
    """Runs programs by Keras here and by kfit on workers, with real kills.

    Args:
        programs: For each a name, the program, and whether a worker is killed in its midst.
        workers: Number of workers.
        folder: Keeps the programs' texts, what they write, and the output of the cluster.
    """
    folder.mkdir(parents=True, exist_ok=True)
    references, verdicts, plan = {}, {}, []
    for name, program, killed in programs:
        inside = folder / f"{name}-reference"
        reference = reference_of(program, workers, inside)
        if reference and reference.error is not None:
            verdicts[name] = raised(program, reference, inside)
            continue
        references[name] = (reference, program, killed)
        plan += _entries(name, program, killed)
    (folder / "plan.json").write_text(json.dumps(plan))
    output = _run(plan, workers, folder)
    for name, (reference, program, killed) in references.items():
        verdicts[name] = _verdict(name, reference, program, killed, workers, folder)
        if verdicts[name].kind == "no result":
            verdicts[name].details += output.splitlines()[-30:]
    return verdicts


def _entries(name: str, program: dict[str, Any], killed: bool) -> list[dict[str, Any]]:
    place: dict[str, Any] = {"strategy": '"multi_worker"'}
    if not killed:
        return [{"name": name, "program": program, "place": place}]
    draw = random.Random(program["seed"])
    place["save_freq"] = drawn_save_freq(draw)
    place["one_directory"] = draw.random() < 0.3
    whole = {"name": f"{name}-untouched", "program": program, "place": place}
    again = {"name": f"{name}-killed", "program": program, "place": place}
    return [whole, {**again, "cut": program["seed"], "after": whole["name"]}]


def _run(plan: list[Any], workers: int, folder: Path) -> str:
    """`kfit run` of the plan; returns what it printed."""
    if not plan:
        return ""
    command = [sys.executable, "-m", "kfit", "run", "--workers", str(workers)]
    command += ["--max-restarts", str(len(plan) + 3), str(MAIN), str(folder)]
    unwanted = ("TF_CONFIG", "PYTHONSAFEPATH")
    environ = {k: v for k, v in os.environ.items() if k not in unwanted}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    with open(folder / "output", "w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=folder
        )
        try:
            process.wait(DEADLINE * len(plan))
        except subprocess.TimeoutExpired:
            output.write("\nkilled: it did not end in time\n")
        finally:
            process.terminate()  # the supervisor ends its tasks
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
    return (folder / "output").read_text(errors="replace")


def _verdict(
    name: str, reference: Any, program: Any, killed: bool, workers: int, folder: Path
) -> Verdict:
    straight = _results(f"{name}-untouched" if killed else name, program, workers, folder)
    if isinstance(straight, Verdict):
        return straight
    verdict = compared(program, reference, straight[0], folder / name)
    if verdict.status != "passed" or not killed:
        return verdict
    again = _results(f"{name}-killed", program, workers, folder)
    if isinstance(again, Verdict):
        return again
    return judged_resumed(straight[0], again[0], f"workers, seed of the kill {program['seed']}")


def _results(
    name: str, program: dict[str, Any], workers: int, folder: Path
) -> list[Outcome] | Verdict:
    """The results of all workers, which must be alike, or what is wrong with them."""
    outcomes = []
    for task in range(workers):
        path = folder / f"{name}.result-{task}"
        if path.exists():
            about = pickle.loads(path.read_bytes())
            told, error = about.pop("told"), about.pop("error")
            outcome = Outcome(**about)
            outcome.error = RemoteError(*error, told) if error else None
            outcomes.append(outcome)
    failed = [each for each in outcomes if each.error is not None]
    if failed:
        return raised(program, failed[0], folder / name)
    if len(outcomes) < workers:
        return Verdict("failed", "no result", [f"{len(outcomes)} of {workers} workers had one"])
    for other in outcomes[1:]:
        verdict = judged_resumed(outcomes[0], other, "workers differ", alike=True)
        if verdict.status != "passed":
            return verdict
    return outcomes
