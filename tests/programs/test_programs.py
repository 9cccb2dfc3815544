"""Programs that nobody wrote: kfit does with them what Keras does, cut off or not.

Each run of the tests draws 20 others. `KFIT_PROGRAMS_SEED` takes the seed that a failure names;
`python -m tests.programs` runs more of them, on workers too, and makes those that fail smaller.
"""

import importlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

ROOT = Path(__file__).parents[2]
SEED = os.environ.get("KFIT_PROGRAMS_SEED") or str(random.SystemRandom().randrange(10**6))
COUNT, PLACES = 20, 5
DAILY = 1
"""So many of the programs are run each day."""
FIT: dict[str, Any] = {"do": "fit", "epochs": 1, "callbacks": []}
LEAST: dict[str, Any] = {
    "seed": 1,
    "dtype": "float32",
    "inputs": {"kind": "vector"},
    "outputs": {"task": "regression"},
    "model": {"style": "sequential", "body": []},
    "compile": {"optimizer": {"call": "keras.optimizers.SGD"}, "loss": "mse"},
    "data": {"kind": "arrays", "examples": 8, "batch_size": 4},
    "actions": [FIT],
}
refused: list[str] = []
invalid: list[str] = []


@pytest.fixture(scope="module")
def generated() -> Iterator[Any]:
    """Imports a module of the generator; Keras' settings are put back afterwards."""
    # Last, so that an installed kfit is not hidden by the folder of that name.
    sys.path.append(str(ROOT))
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield lambda name: importlib.import_module(f"tests.programs.generated.{name}")
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    sys.path.remove(str(ROOT))


@pytest.mark.parametrize(
    "first",
    [*range(DAILY), *(pytest.param(n, marks=pytest.mark.long) for n in range(DAILY, COUNT))],
)
def test_a_program_does_what_keras_does(generated: Any, tmp_path: Path, first: int) -> None:
    """Where Keras itself cannot run a program, another one is drawn in its place."""
    for number in range(first, PLACES * COUNT, COUNT):
        again = f"python -m tests.programs --brief --seed {SEED} --only {number}"
        print(again)
        drawn = generated("draw").placed(f"{SEED}:{number}", brief=True)
        verdict = generated("check").check(
            drawn["program"], drawn["replicas"], drawn["killed"], tmp_path / str(number)
        )
        if verdict.status != "invalid":
            break
        invalid.append(f"{again}: {verdict.kind}")
    if verdict.status == "refused":
        refused.append(again)
    assert verdict.status in ("passed", "refused"), "\n".join(
        [f"run again, and made smaller, by: {again}", verdict.kind, *verdict.details]
    )


def test_hardly_any_program_is_refused() -> None:
    assert len(refused) <= 4, refused


def test_hardly_any_program_is_one_that_keras_cannot_run() -> None:
    assert len(invalid) <= 4, invalid


def test_a_seed_always_draws_the_same_program(generated: Any) -> None:
    draw = generated("draw")
    assert draw.placed("5:3") == draw.placed("5:3")
    assert draw.placed("5:3") != draw.placed("5:4")


def test_a_difference_is_seen_and_made_smaller(generated: Any) -> None:
    """The generator's own alarm: a difference is seen, and shrinking ends at its cause."""
    differences = generated("compare").differences
    one = [("fit", [[0, 1], {"loss": [1.0, 2.0]}])]
    assert differences(one, [("fit", [[0, 1], {"loss": [1.0, 2.0 + 1e-12]}])], 1e-10) == []
    assert len(differences(one, [("fit", [[0, 1], {"loss": [1.0, 2.1]}])], 1e-10)) == 1
    assert differences(one, [("fit", [[0], {"loss": [1.0]}])], 1e-10) != []
    assert differences(one, [("fit", [[0, 1], {"loss": [1.0, float("nan")]}])], 1e-10) != []
    shrink = generated("shrink").shrink
    program = next(
        drawn
        for drawn in (generated("draw").program(f"0:{number}") for number in range(200))
        if _has(drawn, "keras.layers.Dropout") and drawn["actions"][0]["do"] == "fit"
    )
    smallest = shrink(program, lambda other: _has(other, "keras.layers.Dropout"), 5.0)
    assert [layer["call"] for layer in smallest["model"]["body"]] == ["keras.layers.Dropout"]
    assert smallest["actions"] == []


@pytest.mark.long
def test_what_is_made_smaller_is_a_program_still(generated: Any) -> None:
    """Nothing is left out without which there is no text; that it makes sense, Keras says."""
    place = generated("place").Place("strategy", save_freq=1)
    for number in range(15):
        program = generated("draw").program(f"1:{number}", brief=number % 2 == 0)
        for smaller in generated("shrink").smaller(program):
            compile(generated("script").script(smaller, place, "folder"), "program", "exec")
            generated("check").has_own_order(smaller)
            generated("check").depends_on_replicas(smaller)


def test_a_program_is_begun_again_as_a_new_process_would(generated: Any, tmp_path: Path) -> None:
    """Cut off in the second of two `fit`s that share a directory, it finds the first one's end."""
    place = generated("place").Place
    run = generated("run").run
    program = {**LEAST, "actions": [FIT, FIT]}
    here = {"strategy": '"one_device"', "save_freq": 1, "one_directory": True}
    whole = run(program, place(**here), tmp_path / "whole")
    first = run(program, place(**here, cut=whole.events - 1), tmp_path / "cut")
    assert first.cut_off
    again = run(program, place(**here), tmp_path / "cut")
    assert generated("check").judged_resumed(whole, again, "").status == "passed"


@pytest.mark.long
def test_a_program_is_killed_at_a_moment_that_no_hook_knows_of(
    generated: Any, tmp_path: Path
) -> None:
    place = generated("place").Place('"one_device"', save_freq=1)
    clock_kill = generated("clock_kill")
    assert clock_kill.run_and_kill(LEAST, place, tmp_path / "at_once", 0.0, 1)
    assert not (tmp_path / "at_once" / "program.py").exists()
    assert not clock_kill.run_and_kill(LEAST, place, tmp_path / "never", 600.0, 1)
    assert (tmp_path / "never" / "program.py").exists()


def test_of_many_programs_a_third_are_on_workers_and_a_third_are_killed(generated: Any) -> None:
    drawn = [generated("draw").mixed("7", number) for number in range(90)]
    assert sum(each["workers"] in (2, 3) for each in drawn) == 30
    assert sum(each["killed"] for each in drawn) == 30
    assert sum(bool(each["workers"] and each["killed"]) for each in drawn) == 10
    total = generated("command")._total
    verdicts = {
        "0": generated("check").Verdict("passed"),
        "1": generated("check").Verdict("failed"),
    }
    assert total(verdicts, {"0": drawn[0], "1": drawn[1]}) == (
        "2 programs, 1 on workers, 2 killed: 1 passed, 0 refused, 0 invalid, 1 failed"
    )


def test_a_batch_that_never_came_is_not_compared(generated: Any) -> None:
    begin, end, last = ["train_batch_begin", 0, []], ["train_batch_end", 0, {}], ["epoch_end", 0]
    came = generated("check").came
    assert came([begin, end, begin, last, begin]) == [begin, end, last]


def test_keras_rounds_steps_up_to_whole_executions(generated: Any) -> None:
    has_own_order = generated("check").has_own_order
    for steps, whole, other in ((1, 2, True), (4, 2, False), (3, None, False)):
        fit = {"do": "fit", "epochs": 1, "validation_steps": steps}
        program = {"compile": {"steps_per_execution": whole}, "data": {"kind": "dataset"}}
        assert has_own_order({**program, "actions": [fit]}) is other


def _has(program: Any, layer: str) -> bool:
    return any(each["call"] == layer for each in program["model"].get("body", []))
