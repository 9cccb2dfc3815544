"""What the kernel of a notebook shows of its own stderr."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from kfit.supervisor.quiet_notebook import leave_out_start_up_messages

CUDA = "I0000 00:00:1700000000.123456    7 cudart_stub.cc:31] Could not find cuda drivers on it.\n"


def shown_by(*cells: str, **variables: str) -> list[str]:
    """What the stderr of each cell shows, run by a real kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    # Under pytest, a kernel would not read what libraries write.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TF_CPP"))}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    with client.setup_kernel(env={**kept, **variables}):
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    return [
        "".join(output["text"] for output in cell.outputs if output.get("name") == "stderr")
        for cell in notebook.cells
    ]


WRITES = f"""
import os, sys, time
os.write(2, {CUDA!r}.encode())
os.write(2, b"of a library\\n")
time.sleep(0.5)
print({CUDA!r}, end="mine\\n", file=sys.stderr)
print("2026", end="", file=sys.stderr)
"""


def test_the_messages_are_left_out_and_nothing_else() -> None:
    before, _, after = shown_by(WRITES, "import kfit", WRITES)
    assert before.count(CUDA) == 2
    assert after == "of a library\nmine\n2026"


@pytest.mark.long
def test_all_messages_are_shown_if_they_are_asked_for() -> None:
    _, after = shown_by("import kfit", WRITES, TF_CPP_MIN_LOG_LEVEL="0")
    assert after.count(CUDA) == 2


@pytest.mark.long
def test_a_notebook_that_imports_kfit_first_shows_nothing_of_tensorflow() -> None:
    first, then = "import kfit", "import keras"
    program = """
trainer = kfit.Trainer(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), "one_device")
trainer.compile("adam", "mse")
trainer.fit(keras.ops.ones((8, 4)).numpy(), keras.ops.ones((8, 1)).numpy(), verbose=0)
"""
    assert shown_by(f"{first}\n{then}", program) == ["", ""]
    assert "cudart_stub" in "".join(shown_by(f"{then}\n{first}", program))


class Stream:
    """A stream like those of ipykernel, which sends each text by itself."""

    def __init__(self) -> None:
        self.pub_thread = SimpleNamespace(schedule=lambda function: function())
        self.hook: Any = lambda sent: sent
        self.shown = ""

    def register_hook(self, hook: Any) -> None:
        self.hook = hook

    def write(self, text: str) -> None:
        sent = self.hook({"content": {"name": "stderr", "text": text}})
        self.shown += sent["content"]["text"] if sent is not None else ""


Stream.__module__ = "ipykernel.iostream"


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    made = Stream()
    leave_out_start_up_messages(made)
    return made


@pytest.mark.parametrize("cut", [82, len(CUDA) - 1, len(CUDA)])
def test_a_message_is_left_out_though_it_is_sent_in_two_parts(stream: Any, cut: int) -> None:
    stream.write(f"one\n{CUDA[:cut]}")
    stream.write(f"{CUDA[cut:]}two\n")
    assert stream.shown == "one\ntwo\n"


def test_parts_of_lines_are_sent_as_they_come(stream: Any) -> None:
    for text in ("2026", "-01-01\r 10%", "\r 20%", "\nI0000", " is mine\n", CUDA):
        stream.write(text)
    assert stream.shown == "2026-01-01\r 10%\r 20%\nI0000 is mine\n"


def test_other_streams_are_left_alone(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        leave_out_start_up_messages(file)
