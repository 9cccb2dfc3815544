"""The tutorial notebook runs from its first cell to its last, and shows the outputs of a run."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIAL = Path(__file__).parents[2] / "examples" / "multi_worker_training.ipynb"

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


def check_outputs(notebook: Any) -> None:
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
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


def check_death(notebook: Any) -> None:
    """Asserts what the text says of the worker that dies."""
    died = the_cell(notebook, "kfit.launch(train_and_die")
    assert "kfit: worker 1 was killed by SIGKILL" in printed(died, "stderr")
    assert "[worker 0] Going on from digits-run/backup, step 60" in printed(died)
    [equal] = the_cell(notebook, "survived.history == two.history").outputs
    assert equal["data"]["text/plain"] == "True"


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_tutorial_runs(tmp_path: Path, is_whole: bool) -> None:
    notebook = nbformat.read(TUTORIAL, 4)
    at = notebook.cells.index(the_cell(notebook, "kfit.launch(train, workers=2)"))
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(BROKEN))
    if not is_whole:
        # Two more starts of two workers each.
        notebook.cells.remove(the_cell(notebook, "kfit.launch(train_and_die"))
        notebook.cells.remove(the_cell(notebook, "survived.history"))
    here = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=here).execute()
    check_outputs(notebook)
    if is_whole:
        check_death(notebook)
    assert "raised ValueError: not like this" in printed(notebook.cells[at + 1])
    # The next run deletes the snapshots of one that has ended; the notebook, what else it made.
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")} <= {
        "digits-run/backup"
    }


def test_the_outputs_that_are_shown_are_good_ones() -> None:
    notebook = nbformat.read(TUTORIAL, 4)
    nbformat.validate(notebook)
    check_outputs(notebook)
    check_death(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(o.output_type == "error" for cell in cells for o in cell.outputs)
    said = "".join(printed(cell, "stderr") for cell in cells)
    assert all(line.startswith("kfit: ") for line in said.splitlines())
    text = TUTORIAL.read_text(encoding="utf-8")
    assert len(text) < 100_000
    assert not re.search(r"%%|TF_CONFIG[^ ]*=|/tmp|/home|/root|[Ww]arning", text)
