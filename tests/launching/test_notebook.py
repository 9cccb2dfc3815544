"""`kfit.launch` from the cells of a notebook, run by a real Jupyter kernel."""

from typing import Any

import nbformat
from nbclient import NotebookClient

CELLS = [
    # TensorFlow has run before anything of kfit is there.
    """
import os, signal
import tensorflow as tf

print(int(tf.constant(1) + 1))
import kfit
""",
    """
units = 8

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

history, model = kfit.launch(train, (2,), workers=2)
assert history.epoch == [0, 1] and len(history.history["loss"]) == 2
assert history.params["epochs"] == 2 and history.model is None
print("back with", model.count_params(), "parameters")
""",
    """
def broken():
    raise ValueError("not like this")

try:
    kfit.launch(broken, workers=2, env={"KFIT_JOIN": "0"})
except kfit.LaunchError as error:
    print(error)
""",
    """
import threading

def endless():
    import time

    print("waiting")
    time.sleep(600)

before = signal.getsignal(signal.SIGINT)
threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    kfit.launch(endless, workers=1)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is before)
""",
    """
again, _ = kfit.launch(train, (2,), workers=2)
print(again.history == history.history)
""",
]


def text_of(cell: Any, name: str = "stdout") -> str:
    """What a cell printed."""
    return "".join(o["text"] for o in cell.outputs if o.get("name") == name)


def test_a_notebook_in_which_tensorflow_has_run() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    NotebookClient(notebook, timeout=150, kernel_name="python3").execute()
    _, trained, broken, interrupted, again = notebook.cells
    assert "[worker 0] Epoch 2/2" in text_of(trained)
    assert "back with 610 parameters" in text_of(trained)
    shown = text_of(broken).splitlines()
    assert "raised ValueError: not like this" in shown[0]
    # The cell, with its source, as in a traceback of the notebook's own.
    assert "  Cell In[3], line 2, in broken" in shown
    assert '    raise ValueError("not like this")' in shown
    assert "[worker 0] waiting" in text_of(interrupted)
    assert "interrupted True" in text_of(interrupted)
    assert text_of(again).splitlines()[-1] == "True"
