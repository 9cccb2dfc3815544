"""Executes the notebooks in `examples/`, and writes their outputs into them.

python -m tests.examples.execute_notebooks                      all notebooks
python -m tests.examples.execute_notebooks a_worker_dies        one of them

The outputs of the notebooks are written by this command only, never by hand. Run it from the root
of the sources after a change that readers see in an output.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from kfit.supervisor.start_up_messages import is_start_up_message

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))
TIMEOUT = 600
"""Seconds that a cell may take; about twenty times what the longest takes on two idle cores."""


def read(name: str) -> Any:
    """The notebook of that name."""
    return nbformat.read(EXAMPLES / f"{name}.ipynb", 4)


def execute(notebook: Any, folder: Path) -> None:
    """Executes all cells of a notebook, and puts their outputs into them.

    The outputs have no start-up messages of TensorFlow, as those of `kfit run` have none.

    Args:
        notebook: The notebook, which is changed in place.
        folder: The working directory of its kernel.

    Raises:
        CellExecutionError: If a cell raises an error.
    """
    # `!kfit run` in a cell is that of this interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PATH": path})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _cleaned(cell.outputs)


def _cleaned(outputs: list[Any]) -> list[Any]:
    """Outputs without start-up messages; what is printed in a row is one output, as in Jupyter."""
    kept: list[Any] = []
    for output in outputs:
        if output.output_type != "stream":
            kept.append(output)
        elif kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    for output in kept:
        if output.output_type == "stream":
            lines = output.text.splitlines(keepends=True)
            output.text = "".join(line for line in lines if not is_start_up_message(line))
    return [output for output in kept if output.get("text", "shown").strip()]


def main() -> None:
    """Executes the notebooks that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.examples.execute_notebooks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help=f"which ones: {', '.join(NOTEBOOKS)}")
    options = parser.parse_args()
    for name in options.name:
        if name not in NOTEBOOKS:
            parser.error(f"no notebook {name!r} in examples/; there are {', '.join(NOTEBOOKS)}")
    for name in options.name or NOTEBOOKS:
        begun = time.monotonic()
        notebook = read(name)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
        nbformat.write(notebook, EXAMPLES / f"{name}.ipynb")
        print(f"examples/{name}.ipynb: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
