"""`kfit.launch` from the cells of a notebook, run by a real Jupyter kernel."""

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

TRAINS = """
def train(epochs):
    import keras

    keras.utils.set_random_seed(1)
    (x, y), _ = kfit.datasets.digits.load_data()
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(units))
    model.add(keras.layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    history = kfit.fit(model, x, y, batch_size=500, epochs=epochs, verbose=2)
    return history, model

units = 8
history, model = kfit.launch(train, (2,), workers=2)
assert history.epoch == [0, 1] and len(history.history["loss"]) == 2
assert history.params["epochs"] == 2 and history.model is None
print("back with", model.count_params(), "parameters")
"""
RAISES = """
def broken():
    raise ValueError("not like this")

try:
    kfit.launch(broken, workers=2, join=False)
except kfit.LaunchError as error:
    print(error)
"""
IS_INTERRUPTED = """
import os, signal, threading

def endless():
    import time

    print("waiting")
    time.sleep(600)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

before = signal.getsignal(signal.SIGINT)
threading.Timer(2.0, interrupt).start()
try:
    kfit.launch(endless, workers=1)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is before)
"""


def executed(*sources: str) -> list[Any]:
    """Runs cells in one kernel and returns them."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    return list(notebook.cells)


def printed(cell: Any) -> str:
    return "".join(o["text"] for o in cell.outputs if o.get("name") == "stdout")


def test_a_cell_that_raises_and_one_that_is_interrupted() -> None:
    _, broken, interrupted = executed("import kfit", RAISES, IS_INTERRUPTED)
    shown = printed(broken).splitlines()
    assert "raised ValueError: not like this" in shown[0]
    # The cell, with its source, as in a traceback of the notebook's own.
    assert "  Cell In[2], line 2, in broken" in shown
    assert '    raise ValueError("not like this")' in shown
    assert "[worker 0] waiting" in printed(interrupted)
    assert "interrupted True" in printed(interrupted)


@pytest.mark.long
def test_training_again_after_a_failure_though_tensorflow_had_run_before_all() -> None:
    first, trained, _, again = executed(
        "import tensorflow as tf\nprint(int(tf.constant(1) + 1))\nimport kfit",
        TRAINS,
        RAISES,
        "again, _ = kfit.launch(train, (2,), workers=2)\nprint(again.history == history.history)",
    )
    assert printed(first).strip() == "2"
    assert "[worker 0] Epoch 2/2" in printed(trained)
    assert "back with 610 parameters" in printed(trained)
    assert printed(again).splitlines()[-1] == "True"
