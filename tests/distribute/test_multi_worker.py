"""Real processes that train together: all end with the same numbers, those of one process.

`programs/cases.py` holds what they train on; many cases share the processes of one cluster, for
starting them takes most of the time.
"""

import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfit.distribute.multi_worker import _seed_of_run
from tests.sweeps import only

PROGRAM = Path(__file__).parent / "programs" / "cases.py"
SECONDS = 600

ON_TWO = [
    "arrays",
    "arrays_without_a_seed",
    "on_batches",
    "all_of_the_optimizer",
    "accumulated",
    "directories_of_their_own",
    "overflow_on_the_last_replica",
    "batch_normalization",
    "embedding",
    "embedding_of_varying_lengths",
    "kept_by_layers",
    "returned_values",
    "of_types_that_are_not_sent",
    "examples_in_place",
    "sparse_and_ragged_predictions",
    "predictions_without_rows",
    "strings_predicted",
    "finite",
    "infinite",
    "unknown_length",
    "policy_data",
    "policy_off",
    "policy_file",
    "predicted_files",
    "dataset_function",
    "endless_parts_of_other_sizes",
    "py_dataset",
    "generator",
    "derived_from_writers",
    "stopped_by_one",
    "watched_by_one",
    "written",
    "saved_after_a_call_in_a_hook",
    "rolled_back",
]
DAILY = ["arrays", "finite", "derived_from_writers", "stopped_by_one"]
ONLY_TOGETHER = [
    "other_seeds_on_other_workers",
    "made_without_a_seed",
    "pipeline_made_without_a_seed",
    "other_batches_on_other_workers",
    "other_data_on_other_workers",
    "other_settings_on_other_workers",
    "weights_changed_by_the_chief",
    "mirrored_beside_a_cluster",
    "out_of_time",
    *(["heard"] if sys.platform == "linux" else []),
]
LOOKED_AT = {
    "test_a_stop_of_one_worker_is_heard_by_all_at_the_same_step": "stopped_by_one",
    "test_seeds_that_differ_between_workers_are_told": "other_seeds_on_other_workers",
    "test_what_python_makes_without_a_seed_is_the_same_on_all_workers": "made_without_a_seed",
    "test_what_a_pipeline_draws_without_a_seed_is_the_same_on_all": "pipeline_made_without_a_seed",
    "test_batches_that_differ_between_workers_are_refused_on_all": "other_batches_on_other_workers",
    "test_other_data_on_another_worker_are_told_on_all": "other_data_on_other_workers",
    "test_other_settings_of_compile_on_another_worker_are_told_on_all": (
        "other_settings_on_other_workers"
    ),
    "test_what_derives_from_a_writer_writes_on_the_chief_only": "derived_from_writers",
    "test_weights_that_a_hook_changes_on_the_chief_only_are_told": "weights_changed_by_the_chief",
    "test_mirrored_takes_the_devices_of_its_own_task": "mirrored_beside_a_cluster",
    "test_other_hosts_cannot_connect_to_the_servers_of_a_cluster_on_one": "heard",
    "test_only_the_chief_prints_the_progress": "arrays",
    "test_what_callbacks_and_save_write_is_whole": "written",
    "test_a_hook_evaluates_and_the_chief_alone_saves_after_it": "saved_after_a_call_in_a_hook",
    "test_time_that_is_up_on_the_chief_interrupts_all_after_the_same_step": "out_of_time",
    "test_what_is_rolled_back_is_passed_over_on_all": "rolled_back",
}
"""The cases that have a test of their own, by its name."""
ON_THREE = ["finite", "accumulated", "embedding", "embedding_of_varying_lengths"]


@pytest.fixture(scope="module")
def cases() -> Any:
    """The program as a module, for what one process comes to."""
    spec = importlib.util.spec_from_file_location("multi_worker_cases", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Ran:
    """What the tasks of one cluster printed, and the results that they told."""

    def __init__(self, outputs: list[str], errors: list[str]) -> None:
        self.outputs, self.errors = outputs, errors
        self.results: list[dict[str, Any]] = []
        for output in outputs:
            lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
            told = [json.loads(line.removeprefix("RESULT ")) for line in lines]
            self.results.append({each["case"]: each for each in told})


def run_cluster(
    roles: dict[str, int], folder: Path, names: list[str], *, behind_a_firewall: int | None = None
) -> Ran:
    """Runs the cases on every task of a cluster; kills what does not end by itself."""
    addresses = iter(free_addresses(sum(roles.values())))
    spec = {role: [next(addresses) for _ in range(count)] for role, count in roles.items()}
    tasks = [(role, index) for role, count in roles.items() for index in range(count)]
    processes = []
    for number, (role, index) in enumerate(tasks):
        config = {"cluster": spec, "task": {"type": role, "index": index}}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(config),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_NUM_INTRAOP_THREADS": "1",
            **({"CASES_FIREWALL": "1"} if number == behind_a_firewall else {}),
        }
        out, err = (folder.joinpath(f"{number}.{kind}").open("w+") for kind in ("out", "err"))
        command = [sys.executable, str(PROGRAM), str(folder), *names]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        processes.append((process, out, err))
    deadline = time.monotonic() + SECONDS
    try:
        while any(process.poll() is None for process, *_ in processes):
            # One that failed lets the others wait in a collective.
            if time.monotonic() > deadline or any(process.poll() for process, *_ in processes):
                time.sleep(1)
                break
            time.sleep(0.1)
    finally:
        codes = [process.poll() for process, *_ in processes]
        for process, *_ in processes:
            process.kill()  # SIGKILL: TensorFlow swallows SIGTERM
            process.wait()
    texts = []
    for _, *files in processes:
        for file in files:
            file.seek(0)
            texts.append(file.read())
            file.close()
    outputs, errors = texts[::2], texts[1::2]
    told = [
        f"--- task {n}: {code}\n{o}\n{e}"
        for n, (code, o, e) in enumerate(zip(codes, outputs, errors, strict=True))
    ]
    assert codes == [0] * len(processes), "\n".join(text[-6000:] for text in told)
    return Ran(outputs, errors)


@pytest.fixture(scope="module")
def two_workers(
    request: pytest.FixtureRequest, cases: Any, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    """A chief and a worker; the three below have no chief, so that worker 0 is it.

    They run the cases that this run of the tests has chosen.
    """
    chosen: set[Any] = set()
    for item in request.session.items:
        test = getattr(item, "originalname", "")
        if test == "test_two_workers_train_as_one_process":
            chosen.add(item.callspec.params["name"])
        elif item.path == request.path:
            chosen.add(LOOKED_AT.get(test))
    names = [name for name in [*ON_TWO, *ONLY_TOGETHER] if name in chosen]
    folder = tmp_path_factory.mktemp("two")
    cases.write_records(folder)
    return run_cluster({"chief": 1, "worker": 1}, folder, names)


@pytest.fixture(scope="module")
def one_process(cases: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from a case to its result in this process."""
    folder = tmp_path_factory.mktemp("one")
    cases.write_records(folder)
    known: dict[str, Any] = {}

    def result(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = cases.run(name, cases.Task(folder, "one_device"))
        return known[name]

    return result


def assert_equal(results: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """All tasks tell exactly the same, and what one process tells but for the order of sums."""
    for result in results:
        assert result["exact"] == results[0]["exact"]
        assert result.get("scores") == results[0].get("scores")
        for got, wanted in zip(result["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert result["history"].keys() == expected["history"].keys()
        for name, values in expected["history"].items():
            np.testing.assert_allclose(result["history"][name], values, rtol=1e-4, err_msg=name)
        for part in ("scores", "predicted"):
            if part in expected:
                np.testing.assert_allclose(
                    np.array(_flat(result[part])), _flat(expected[part]), rtol=1e-4, atol=1e-5
                )


def _flat(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for part in value for number in _flat(part)]
    return [float(value)]


@pytest.mark.parametrize("name", only(DAILY, ON_TWO))
def test_two_workers_train_as_one_process(two_workers: Ran, one_process: Any, name: str) -> None:
    assert_equal([results[name] for results in two_workers.results], one_process(name))


def test_a_stop_of_one_worker_is_heard_by_all_at_the_same_step(two_workers: Ran) -> None:
    for results in two_workers.results:
        assert results["stopped_by_one"]["scores"] == [3, 3 + 2 * 6]
        assert len(results["stopped_by_one"]["history"]["loss"]) == 2


def test_joining_leaves_pythons_generator_as_the_program_has_seeded_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KFIT_SEED", raising=False)
    before = random.getstate()
    first = _seed_of_run()
    assert random.getstate() == before
    assert _seed_of_run() == first


@pytest.mark.long
def test_seeds_that_differ_between_workers_are_told(two_workers: Ran) -> None:
    for results in two_workers.results:
        (warning,) = results["other_seeds_on_other_workers"]["warnings"]
        assert "`shuffle` with another seed on each worker" in warning


@pytest.mark.long
def test_what_python_makes_without_a_seed_is_the_same_on_all_workers(two_workers: Ran) -> None:
    for results in two_workers.results:
        told = results["made_without_a_seed"]
        assert told["exact"] == two_workers.results[0]["made_without_a_seed"]["exact"]
        assert told["seen"] == [list(range(20))] * 3  # each example once an epoch


@pytest.mark.long
def test_what_a_pipeline_draws_without_a_seed_is_the_same_on_all(two_workers: Ran) -> None:
    exact = [r["pipeline_made_without_a_seed"]["exact"] for r in two_workers.results]
    assert exact[0] == exact[1]
    for results in two_workers.results:
        assert results["pipeline_made_without_a_seed"]["scores"][0] == 1.0


@pytest.mark.long
def test_batches_that_differ_between_workers_are_refused_on_all(two_workers: Ran) -> None:
    for results in two_workers.results:
        told = results["other_batches_on_other_workers"]
        assert "`x` must make the same batches on every worker" in told["error"]
        assert told["steps"] == 0


def test_other_data_on_another_worker_are_told_on_all(two_workers: Ran) -> None:
    for results in two_workers.results:
        told = results["other_data_on_other_workers"]
        named = (
            "`x` must be the same",
            "`y` must be the same",
            "`x`, a tf.data.Dataset, is another",
        )
        assert [e.startswith(n) for e, n in zip(told["errors"], named, strict=True)] == 3 * [True]
        (warning,) = told["warnings"]
        assert re.search(r"here ShardDataset \d+\.index is", warning)


@pytest.mark.long
def test_other_settings_of_compile_on_another_worker_are_told_on_all(two_workers: Ran) -> None:
    named = [
        "'Adam', worker 1: optimizer = 'SGD'",
        "optimizer.momentum = 0.9, worker 1: optimizer.momentum = 0.0",
        "optimizer.learning_rate = 0.1",
        "from_logits = False, worker 1: ",
    ]
    first, second = (each["other_settings_on_other_workers"] for each in two_workers.results)
    assert first["errors"] == second["errors"]
    for told, name in zip(first["errors"], named, strict=True):
        assert "with its optimizer and metrics" in told
        assert name in told


def test_what_derives_from_a_writer_writes_on_the_chief_only(two_workers: Ran) -> None:
    files = [results["derived_from_writers"]["files"] for results in two_workers.results]
    assert files == [["board", "rows.csv"], []]


def test_weights_that_a_hook_changes_on_the_chief_only_are_told(two_workers: Ran) -> None:
    for results in two_workers.results:
        told = results["weights_changed_by_the_chief"]
        assert "The weights of the model must be the same on every worker." in told["error"]
        assert "a callback has changed them on some workers only" in told["error"]
        assert told["epochs"] == 2


@pytest.mark.long
def test_mirrored_takes_the_devices_of_its_own_task(two_workers: Ran) -> None:
    assert [each["mirrored_beside_a_cluster"]["exact"] for each in two_workers.results] == [1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
def test_other_hosts_cannot_connect_to_the_servers_of_a_cluster_on_one(two_workers: Ran) -> None:
    for results in two_workers.results:
        assert results["heard"]["devices"]
        assert set(results["heard"]["devices"]) == {"lo"}


def test_only_the_chief_prints_the_progress(two_workers: Ran) -> None:
    chief, other = two_workers.outputs
    assert "kfit: strategy 'auto' chose 'multi_worker': TF_CONFIG lists 2 workers." in chief
    assert "Epoch 1/2" in chief
    assert "val_accuracy" in chief.split("RESULT")[0]
    begins = "kfit: this task is worker 0; chief 0 shows the progress of the training"
    ends = r"kfit: worker 0 has ended its training, after step \d+"
    printed = [line for line in other.splitlines() if not line.startswith("RESULT")]
    assert printed[0] == begins
    assert re.fullmatch(ends, printed[1])
    assert all(line == begins or re.fullmatch(ends, line) for line in printed)


@pytest.mark.long
def test_what_callbacks_and_save_write_is_whole(two_workers: Ran) -> None:
    for results in two_workers.results:
        told = results["written"]
        assert told["scores"] == [True] * 4
        assert told["best_size"] > 1000
        assert told["points"]["epoch_loss"] == [0, 1, 2, 3]
        assert len(told["points"]["batch_loss"]) > 1
        for steps in told["points"].values():
            assert steps == sorted(set(steps))
        assert [line.split(",")[0] for line in told["lines"]] == ["epoch", "0", "1", "2", "3"]
        for line, loss in zip(told["lines"][1:], told["history"]["loss"], strict=True):
            assert any(abs(float(value) - loss) < 1e-6 for value in line.split(",")[1:])


@pytest.mark.long
def test_a_hook_evaluates_and_the_chief_alone_saves_after_it(two_workers: Ran) -> None:
    told = [results["saved_after_a_call_in_a_hook"] for results in two_workers.results]
    assert [each["saved"] for each in told] == [True, False]


@pytest.mark.long
def test_time_that_is_up_on_the_chief_interrupts_all_after_the_same_step(two_workers: Ran) -> None:
    told = [results["out_of_time"] for results in two_workers.results]
    assert told[0]["exact"] == told[1]["exact"]
    assert told[0]["scores"] == told[1]["scores"]
    interrupted, ended, steps = told[0]["scores"]
    assert interrupted
    assert not ended
    assert 0 < steps < 6000
    assert [each["written"] for each in told] == [[False, True, True]] * 2


@pytest.mark.long
def test_what_is_rolled_back_is_passed_over_on_all(two_workers: Ran) -> None:
    for results in two_workers.results:
        # Of 6 batches an epoch, the third is passed over in both.
        assert results["rolled_back"]["scores"] == [2, 10]


@pytest.mark.long
def test_three_workers_one_of_which_is_behind_a_firewall(
    cases: Any, one_process: Any, tmp_path: Path
) -> None:
    cases.write_records(tmp_path)
    ran = run_cluster({"worker": 3}, tmp_path, ON_THREE, behind_a_firewall=2)
    for name in ON_THREE:
        assert_equal([results[name] for results in ran.results], one_process(name))
    assert ["TF_CONFIG lists 3 workers" in output for output in ran.outputs] == [True, False, False]
    # Sums by sockets need ports that the last one cannot reach, so all do without.
    assert "worker 2 cannot reach worker 0 at port" in ran.errors[2]
    assert "no answer" in ran.errors[2]
    for errors in ran.errors[:2]:
        assert "worker 2 cannot reach the next worker" in errors
