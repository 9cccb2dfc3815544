"""The notebooks run from their first cells to their last, and show the outputs of a run."""

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import nbformat
import pytest

from tests.examples.execute_notebooks import NOTEBOOKS, execute, read

# A launch that fails, put between two that train; its workers join no cluster, so it takes no time.
BROKEN = """
def broken():
    raise ValueError("not like this")

try:
    kfit.launch(broken, workers=2, join=False)
except kfit.LaunchError as error:
    print(error)
"""


def printed(cell: Any, name: str = "stdout") -> str:
    """What a cell printed."""
    return "".join(output["text"] for output in cell.outputs if output.get("name") == name)


def the_cell(notebook: Any, words: str) -> Any:
    """The one code cell with these words in it."""
    [cell] = [c for c in notebook.cells if c.cell_type == "code" and words in c.source]
    return cell


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def pictures_of(notebook: Any) -> list[bytes]:
    data = [output.get("data", {}) for output in outputs_of(notebook)]
    return [base64.b64decode(found["image/png"]) for found in data if "image/png" in found]


def check_tutorial(notebook: Any) -> None:
    """Asserts what the text between the cells says of them."""
    trained = printed(the_cell(notebook, "kfit.launch(train, workers=2)"))
    seen = {
        number for found in re.findall(r"examples \[(.*)\]", trained) for number in found.split()
    }
    assert sorted(seen) == [str(number) for number in range(10)]
    assert "[worker 0] examples [0 1]" in trained
    assert "[worker 1] examples [2 3]" in trained
    assert "[worker 0] Epoch 6/6" in trained
    difference = printed(the_cell(notebook, "largest difference"))
    assert float(difference.rpartition(":")[2]) < 1e-4
    loaded = printed(the_cell(notebook, "load_model"))
    assert float(loaded.partition("%")[0]) >= 90
    assert len(pictures_of(notebook)) == 3


def check_death(notebook: Any) -> None:
    """Asserts what the tutorial says of the worker that dies."""
    died = the_cell(notebook, "kfit.launch(train_and_die")
    assert "kfit: worker 1 was killed by SIGKILL" in printed(died, "stderr")
    assert "[worker 0] kfit: going on from digits-run/backup, step 60" in printed(died)
    [equal] = the_cell(notebook, "survived.history == two.history").outputs
    assert equal["data"]["text/plain"] == "True"


def check_whole_tutorial(notebook: Any) -> None:
    check_tutorial(notebook)
    check_death(notebook)


def check_callbacks(notebook: Any) -> None:
    hooks = printed(the_cell(notebook, "class PrintHooks"))
    called = re.findall(r"^ *(on_\w+)", hooks, re.MULTILINE)
    batch = ["on_train_batch_begin", "on_train_batch_end"]
    test = ["on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"]
    epoch = ["on_epoch_begin", *batch, *batch, *test, "on_epoch_end"]
    assert called == ["on_train_begin", *epoch, "on_train_end"]
    everywhere = printed(the_cell(notebook, "kfit.launch(train, workers=2)"))
    lines = re.findall(r"\[worker (\d)\] (epoch \d: loss [\d.]+)", everywhere)
    written = printed(the_cell(notebook, 'Path("losses.txt")')).split("\n")[:3]
    assert [line for worker, line in lines if worker == "0"] == written
    assert [line for worker, line in lines if worker == "1"] == written
    stopped = printed(the_cell(notebook, "kfit.launch(train_and_stop"))
    assert stopped.count("I ask for a stop") == 1
    assert sorted(re.findall(r"\[worker (\d)\] my last batch was 7", stopped)) == ["0", "1"]
    assert "failed: no electricity" in printed(the_cell(notebook, "except RuntimeError"))
    assert "kfit: going on from backup, step 50" in printed(the_cell(notebook, "resumed = "))
    equal = printed(the_cell(notebook, "resumed == undisturbed")).split()
    assert equal[-1] == "True"
    assert 0 < float(equal[-3]) < 3
    due = printed(the_cell(notebook, "class HalveRate"))
    assert re.findall(r"step (\d+) learning rate ([\d.]+)", due) == [
        ("30", "0.0005"),
        ("60", "0.00025"),
    ]


def check_custom_training(notebook: Any) -> None:
    step, loop = (
        printed(the_cell(notebook, words))
        for words in ('compare("loss", history_1', "def own_loop")
    )
    assert 0 < float(step.rpartition(":")[2]) < 1e-4
    first, last = re.findall(r"loss of the \w+ epoch: ([\d.]+) and ([\d.]+)", step)
    assert float(first[0]) == pytest.approx(float(first[1]), abs=1e-5)
    assert float(last[0]) == pytest.approx(float(last[1]), abs=1e-5)
    assert 0 < float(last[0]) < float(first[0]) / 2
    assert float(loop.rpartition(":")[2]) < 1e-4
    one, two = (float(found) for found in re.findall(r"([\d.]+)%", loop))
    assert one == pytest.approx(two, abs=0.5)
    assert one > 85
    assert "scale_loss" in printed(the_cell(notebook, "class LossOfEach"))
    assert len(pictures_of(notebook)) == 2


def check_every_strategy(notebook: Any) -> None:
    [table] = the_cell(notebook, "Markdown(").outputs
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table["data"]["text/markdown"].splitlines()[2:]
    ]
    differences = {row[0]: float(row[3]) for row in rows}
    assert differences["one device"] == 0
    assert differences["two mirrored devices"] < 1e-4
    assert differences["two workers"] < 1e-4
    assert 1e-4 < differences["parameter servers"] < 1
    assert all(float(row[4].rstrip("%")) > 90 for row in rows)
    for command, strategy in (
        ("run train.py", "one_device"),
        ("--cpus 2", "mirrored"),
        ("--workers 2 train.py", "multi_worker"),
        ("--ps 1", "parameter_server"),
    ):
        assert f"'auto' chose '{strategy}'" in printed(the_cell(notebook, command))
    assert len(pictures_of(notebook)) == 1


def check_a_worker_dies(notebook: Any) -> None:
    killed = the_cell(notebook, "kill_worker_1")
    assert "kfit: worker 1 was killed by SIGKILL" in printed(killed, "stderr")
    [step] = re.findall(r"kfit: going on from killed, step (\d+)", printed(killed))
    cost = printed(the_cell(notebook, "def steps_of"))
    [(last, back)] = re.findall(r"killed after step (\d+), went on from step (\d+)", cost)
    assert back == step
    assert int(last) >= 130
    # The newest backup may not have been written yet.
    assert 0 <= int(last) - int(back) <= 40
    assert "all weights are equal: True" in printed(the_cell(notebook, "pairs"))
    assert len(pictures_of(notebook)) == 1


CHECKS: dict[str, Callable[[Any], None]] = {
    "a_worker_dies": check_a_worker_dies,
    "custom_training": check_custom_training,
    "every_strategy": check_every_strategy,
    "multi_worker_training": check_whole_tutorial,
    "writing_callbacks": check_callbacks,
}


def test_each_notebook_is_checked() -> None:
    assert sorted(CHECKS) == NOTEBOOKS


@pytest.mark.long
def test_the_tutorial_runs(tmp_path: Path) -> None:
    """Without its third launch, and with one that fails."""
    notebook = read("multi_worker_training")
    at = notebook.cells.index(the_cell(notebook, "kfit.launch(train, workers=2)"))
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(BROKEN))
    notebook.cells.remove(the_cell(notebook, "kfit.launch(train_and_die"))
    notebook.cells.remove(the_cell(notebook, "survived.history"))
    execute(notebook, tmp_path)
    check_tutorial(notebook)
    assert "raised ValueError: not like this" in printed(notebook.cells[at + 1])


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    notebook = read(name)
    execute(notebook, tmp_path)
    CHECKS[name](notebook)
    check_is_clean(notebook)
    # The next run deletes the snapshots of one that has ended; the notebook, what else it made.
    made = [path for path in tmp_path.rglob("*") if path.parent.parent.name != "backup"]
    kept = {"digits-run", "digits-run/backup", "digits-run/backup/.kfit-lock"}
    left = {str(path.relative_to(tmp_path)) for path in made}
    assert all(name in kept or re.match(r"digits-run/backup/g\d+-", name) for name in left)


def check_is_clean(notebook: Any) -> None:
    """Asserts that the outputs hold no error, no message of TensorFlow and nothing of a machine."""
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = outputs_of(notebook)
    assert not any(output.output_type == "error" for output in outputs)
    said = "".join(printed(cell, "stderr") for cell in cells)
    assert all(re.match(r"kfit: |\[worker \d\]", line) for line in said.splitlines())
    shown = "".join(printed(cell) for cell in cells) + said
    shown += "".join(
        str(text)
        for output in outputs
        for kind, text in output.get("data", {}).items()
        if kind != "image/png"
    )
    shown = shown.replace("127.0.0.1", "this host")
    assert not re.search(
        r"(?<![\w.])/\w+/|\d+(\.\d+){3}|[Ww]arning|Traceback|INFO|\x1b|\.cc:\d",
        shown,
    )
    for picture in pictures_of(notebook):
        # Black on an opaque white can be read on dark pages, too.
        pixels = matplotlib.image.imread(io.BytesIO(picture))
        assert pixels.shape[2] == 3 or (pixels[..., 3] == 1).all()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_outputs_that_are_shown_are_good_ones(name: str) -> None:
    notebook = read(name)
    CHECKS[name](notebook)
    check_is_clean(notebook)
    assert len(nbformat.writes(notebook)) < 150_000
    source = "".join(cell.source for cell in notebook.cells)
    assert not re.search(r"/tmp|/home|/root", source)
