"""Every example runs for real: as a plain process and as the workers of a cluster."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE = 150  # seconds; about ten times what an example takes on two idle cores

long = pytest.mark.long


def run(
    example: str,
    *arguments: str,
    workers: int = 1,
    evaluator: bool = False,
    restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    exit_code: int = 0,
) -> str:
    """Runs an example and returns what it printed.

    Args:
        example: Name of the file in `examples/`.
        *arguments: The example's own arguments.
        workers: How many workers `kfit run` starts; 1 is a plain process.
        evaluator: Whether it starts an evaluator as well.
        restarts: How many restarts it may.
        environment: Environment variables to set.
        exit_code: What the example has to return.

    Raises:
        AssertionError: If it ends in another way, or not by the deadline.
    """
    launcher = ["-m", "kfit", "run", "--workers", str(workers), "--max-restarts", str(restarts)]
    launcher += ["--evaluator"] if evaluator else []
    launcher = launcher if workers > 1 or restarts or evaluator else []
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    with subprocess.Popen(
        [sys.executable, *launcher, str(EXAMPLES / example), *arguments],
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            _kill(process)
            output, _ = process.communicate()
            raise AssertionError(f"not done after {DEADLINE} s:\n{output}") from None
        except BaseException:
            _kill(process)
            raise
    assert process.returncode == exit_code, f"exit code {process.returncode}:\n{output}"
    return output


def _kill(process: "subprocess.Popen[str]") -> None:
    """Kills a process and its group; the tasks of `kfit run` die with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def numbers(pattern: str, output: str) -> list[float]:
    """What the group of `pattern` matched, in order."""
    return [float(found) for found in re.findall(pattern, output)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60


@long  # .ci/run runs it, as the README says
@pytest.mark.parametrize("workers", [1, 2])
def test_digits(workers: int) -> None:
    output = run("digits.py", workers=workers)
    (accuracy,) = numbers(rf"Test accuracy: ([\d.]+)% on {workers} replica", output)
    assert accuracy >= 95


@long
@pytest.mark.parametrize("workers", [1, 2])
def test_the_tutorial_on_digits(workers: int) -> None:
    output = run("multi_worker_mnist.py", "--data", "digits", "--steps", "10", workers=workers)
    assert output.count("They are not MNIST.") == 1
    # The progress bar may show a number again; the last one of each epoch counts.
    losses = list(dict.fromkeys(numbers(r"val_loss: ([\d.]+)", output)))
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)


@long  # tests/datasets/test_download.py tests the error every day
def test_the_tutorial_says_that_mnist_cannot_be_downloaded(tmp_path: Path) -> None:
    # A proxy that nobody is: the test reaches no network where there is one.
    nowhere = {"https_proxy": "http://127.0.0.1:9", "KERAS_HOME": str(tmp_path)}
    output = run("multi_worker_mnist.py", environment=nowhere, exit_code=1)
    assert "'mnist' is not in Keras' cache and cannot be downloaded" in output
    assert "With `--data digits` this example trains on those." in output
    assert "Traceback" not in output


@long
@pytest.mark.parametrize("workers", [1, 2])
def test_custom_callback(workers: int) -> None:
    output = run("custom_callback.py", workers=workers)
    epochs = numbers(r"Epoch (\d+): learning rate", output)
    assert epochs == list(range(1, len(epochs) + 1))
    assert 1 < len(epochs) < 50
    *before, last = numbers(r"validation accuracy ([\d.]+)%", output)
    assert max(before) < 93 <= last
    rates = numbers(r"learning rate ([\d.]+)", output)
    assert rates == sorted(set(rates), reverse=True)


@long
@pytest.mark.parametrize("workers", [1, 2])
def test_custom_training_loop(workers: int) -> None:
    output = run("custom_training_loop.py", workers=workers)
    (accuracy,) = numbers(r"Test accuracy: ([\d.]+)% of 300;", output)
    assert accuracy >= 90
    assert f"rows of a batch per replica: [{64 // workers}]" in output


def test_no_example_writes_where_anybody_may_have_been_before() -> None:
    """No folder of a known name under that of temporary files, and none is emptied."""
    for path in EXAMPLES.iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"gettempdir|[\"']/tmp|rmtree", text), path


@long  # tests/test_kills.py does the like every day
def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    options = ("--backup", str(tmp_path / "backup"))
    output = run("killed.py", *options, workers=2, restarts=2)
    assert "worker 1 was killed by SIGKILL" in output
    assert "kfit: going on from" in output
    spared = run("killed.py", *options, "--spare", workers=2)
    found = [re.findall(r"Test accuracy: ([\d.]+)%; weights (\w+)", o) for o in (output, spared)]
    assert found[0] == found[1]
    assert float(found[0][0][0]) >= 90


@long
@pytest.mark.parametrize("evaluator", [False, True])
def test_train_and_evaluate(tmp_path: Path, evaluator: bool) -> None:
    workers = 2 if evaluator else 1
    options = ("--model-dir", str(tmp_path))
    output = run("train_and_evaluate.py", *options, workers=workers, evaluator=evaluator)
    steps = numbers(r"kfit: evaluated step (\d+),", output)
    accuracies = numbers(r"kfit: evaluated step .* accuracy ([\d.]+)", output)
    assert steps == [75, 150, 225, 300]
    ((best, step),) = re.findall(r"Best accuracy: ([\d.]+)%, at step (\d+)", output)
    assert float(best) == pytest.approx(100 * max(accuracies), abs=0.01)
    assert steps[accuracies.index(max(accuracies))] == int(step)
    assert float(best) >= 90
    assert (tmp_path / "export" / "best.keras").exists()


@long
@pytest.mark.parametrize("example", ["custom_callback.py", "custom_training_loop.py"])
def test_two_workers_come_to_the_numbers_of_one_process(example: str) -> None:
    one, two = (
        numbers(r"(?:Epoch|rate|weight|loss|accuracy):? ([\d.]+)", run(example, workers=workers))
        for workers in (1, 2)
    )
    # One example of 300 may fall to the other side of a decision.
    assert two == pytest.approx(one, rel=0.005, abs=2e-4)
