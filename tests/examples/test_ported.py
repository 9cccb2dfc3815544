"""The ported tutorials run on one device, on two devices and as two workers, to equal numbers.

The first two run in this process, one program after the other, so that TensorFlow is imported only
once. A device is a logical device of the CPU; `tests/conftest.py` makes them.
"""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

import pytest
import tensorflow as tf  # imported before the tests begin, for the logical devices

from kfit.distribute import Mirrored, factory

PORTED = Path(__file__).parents[2] / "examples" / "ported"
PROGRAMS = sorted(path.name for path in PORTED.glob("*.py"))
DEADLINE = 150  # seconds; about ten times what a program takes on two idle cores

SAYS = {
    "checkpoint_saver.py": [
        "Saved: step-0100.keras, step-0150.keras, step-0200.keras; ",
        "200 steps",
    ],
    "distributed_input.py": [r"difference of a weight: (0|\de-0[789])\n", "Predicted rows: 1497"],
    "distributed_keras.py": [r"(?s)Epoch 1: learning rate 0.200.*Epoch 8: learning rate 0.020"],
    "early_stopping.py": [r"Stopped after 3 epochs by the target, after \d+ by EarlyStopping"],
    "evaluator.py": [r"(?s)Step 72: loss.*Step 144: loss.*Step 216: loss"],
    "fault_tolerance.py": ["step 80", "are those of a training that has not failed: True"],
    "logging_stop_hook.py": [r"(?s)Step 50: .*Step 100: .*Step 200: ", "Stopped at step 210"],
    "metrics_optimizers.py": [r"Recognized eights: 0\.9"],
    "migrating_estimator.py": ["kfit: evaluated step 240", r"Best model: \['best.keras'\]"],
    "multi_worker_with_ctl.py": [r"(?s)Epoch 1: loss 1\.8.*Epoch 10: loss 0\.1"],
    "parameter_server_training.py": [
        "Trained on (one_device|mirrored|multi_worker|parameter_server)"
    ],
    "save_and_load.py": ["The loaded model is the saved one: True"],
    "saved_model.py": [r"Served: 9\d"],
    "tensorboard_curves.py": [
        "train: 8 epochs, 19 in between",
        "validation: 8 epochs, 0 in between",
        r"train: .*\bkernel\b",
    ],
    "sessionrunhook_callback.py": ["120 calls for 120 steps", "15 calls for 120 steps"],
}
"""What a program prints besides its accuracy, as patterns."""
DRAWS = ["fault_tolerance.py"]
"""Programs with dropout, which draws other numbers on another number of replicas."""

MIRRORED = {"custom_training.py"}
"""Programs that run on two devices every day: one with a step of its own."""

LEFT_OUT = {
    "dtensor_keras_tutorial",
    "dtensor_ml_tutorial",
    "canned_estimators",
    "migrate_tf2",
    "migrating_checkpoints",
    "migrating_feature_columns",
    "migration_debugging",
    "model_mapping",
    "multi_worker_with_estimator",
    "tf1_vs_tf2",
    "tflite",
    "tpu_embedding",
    "tpu_estimator",
    "upgrade",
    "validate_correctness",
}
"""The other pages of `tutorials/distribute` and `guide/migrate`, each left out for a reason."""

long = pytest.mark.long
Run = Callable[..., str]


def programs(daily: Collection[str]) -> pytest.MarkDecorator:
    """Runs a test with the name of each program; with those that are not daily, as a long test."""
    names = [pytest.param(name, marks=() if name in daily else long) for name in PROGRAMS]
    return pytest.mark.parametrize("name", names)


@pytest.fixture(scope="module")
def run_here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program in this process; a second call with the same arguments runs nothing.

    Its arguments are the name of the program, the number of devices, and the program's own
    arguments. With two devices kfit chooses what it chooses on a host with two GPUs. It returns
    what the program printed.
    """

    def two() -> Mirrored:
        return Mirrored(["CPU:0", "CPU:1"])

    @cache
    def run(name: str, devices: int, *arguments: str) -> str:
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            patch.chdir(tmp_path_factory.mktemp("ported"))
            patch.setattr(sys, "argv", [name, *arguments])
            if devices == 2:
                patch.setattr(factory, "OneDevice", two)
            runpy.run_path(str(PORTED / name), run_name="__main__")
        return out.getvalue()

    assert len(tf.config.list_logical_devices("CPU")) > 1
    return run


def run_workers(name: str, folder: Path, *options: str) -> str:
    """Runs a program by `kfit run --workers 2`, and returns what it printed.

    Args:
        name: The name of the program.
        folder: The directory to run it in.
        *options: Further options of `kfit run`.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-m", "kfit", "run", "--workers", "2", *options, str(PORTED / name)],
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def accuracy(output: str) -> float:
    """The accuracy that a program printed at its end, once, in percent."""
    [found] = re.findall(r"Test: .*accuracy ([\d.]+)%", output)
    return float(found)


def losses(output: str) -> list[float]:
    """The losses that a program printed, with six decimals, in order."""
    return [float(found) for found in re.findall(r"loss (\d\.\d{6})", output)]


def check(name: str, output: str) -> None:
    """Asserts what a program's text says of its results."""
    assert accuracy(output) >= 90
    for pattern in SAYS.get(name, []):
        assert re.search(pattern, output), pattern


def check_same(name: str, output: str, other: str) -> None:
    """Asserts that a program came to the same numbers twice."""
    if name not in DRAWS:
        # One example of 300 may fall to the other side of a decision.
        assert accuracy(output) == pytest.approx(accuracy(other), abs=0.34)
        assert losses(output) == pytest.approx(losses(other), abs=1e-5)
        assert losses(output)


@programs(PROGRAMS[::8])
def test_on_one_device(name: str, run_here: Run) -> None:
    check(name, run_here(name, 1))


@programs(MIRRORED)
def test_two_devices_come_to_the_same_numbers(name: str, run_here: Run) -> None:
    output = run_here(name, 2)
    check(name, output)
    check_same(name, output, run_here(name, 1))


@long
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_workers_come_to_the_same_numbers(name: str, run_here: Run, tmp_path: Path) -> None:
    output = run_workers(name, tmp_path)
    check(name, output)
    check_same(name, output, run_here(name, 1))


@long
@pytest.mark.parametrize(
    "name", ["parameter_server_training.py", "multi_worker_cpu_gpu_training.py"]
)
def test_with_a_parameter_server(name: str, tmp_path: Path) -> None:
    output = run_workers(name, tmp_path, "--ps", "1")
    assert "chose 'parameter_server'" in output or "Trained on parameter_server" in output
    assert accuracy(output) >= 85


@long
def test_with_an_evaluator(run_here: Run, tmp_path: Path) -> None:
    output = run_workers("evaluator.py", tmp_path, "--evaluator")
    assert "[evaluator 0] Test: loss" in output
    check("evaluator.py", output)
    check_same("evaluator.py", output, run_here("evaluator.py", 1))


@long
def test_the_loop_by_hand_resumes(run_here: Run, tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path / "checkpoints"))
    first = run_here("multi_worker_with_ctl.py", 1, *folder, "--epochs", "4")
    then = run_here("multi_worker_with_ctl.py", 1, *folder)
    assert "Epoch 4" in first
    assert "Epoch 4" not in then
    assert "Epoch 5" in then
    at_once = run_here("multi_worker_with_ctl.py", 1)
    assert losses(first) + losses(then) == pytest.approx(losses(at_once), abs=1e-5)


@programs(PROGRAMS)
def test_each_program_is_short_and_marks_what_differs(name: str) -> None:
    text = (PORTED / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert re.match(r'"""Ported from `(tutorials/distribute|guide/migrate)/\w+`: ', text)
    code = text.split('"""', 2)[2].splitlines()
    assert sum("  # kfit: " in line for line in code) >= 2
    for line in code:
        # The data and the types of arguments and results are no difference.
        if (
            re.search(r"\b(kfit\.(?!datasets)|trainer\.(?!is_chief)\w)", line)
            and "def " not in line
        ):
            assert "  # kfit: " in line, line
    assert not re.search(r"gettempdir|[\"']/tmp|rmtree", text)


def test_the_table_lists_each_program() -> None:
    text = (PORTED / "README.md").read_text(encoding="utf-8")
    for name in PROGRAMS:
        page = re.match(r'"""Ported from (`[\w/]+`)', (PORTED / name).read_text(encoding="utf-8"))
        assert page is not None
        assert f"| {page[1]} | [{name}]({name}) |" in text


def test_it_is_said_why_a_page_is_left_out() -> None:
    text = (PORTED / "README.md").read_text(encoding="utf-8").partition("Some pages have no")[2]
    told = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    assert all(reason.strip() for _, reason in told)
    pages = {page for pages, _ in told for page in re.findall(r"(\w+)`", pages)}
    assert pages == LEFT_OUT
