"""A script that names a model is imported: it is not run, and nothing of it trains."""

import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kfit.argument_checks import CommandError
from kfit.commands.named_model import model_of

BUILD = """
    import sys
    import keras

    def build():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model
"""
TRAINS = """
    import numpy as np
    x = np.ones((4, 2), "float32")
"""


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(*parts: str) -> str:
        path = tmp_path / "train.py"
        path.write_text("".join(map(dedent, parts)))
        return str(path)

    return write


@pytest.mark.parametrize(
    "train",
    [
        "build().fit(x, x[:, :1], verbose=0)",
        "import kfit; kfit.fit(build(), x, x[:, :1], verbose=0)",
        "import kfit; kfit.Trainer(build()).fit(x, x[:, :1], verbose=0)",
        "import kfit; kfit.install(); build().fit(x, x[:, :1], verbose=0)",
    ],
)
def test_a_script_that_trains_when_it_is_imported_is_refused(script: Any, train: str) -> None:
    path = script(BUILD, TRAINS, f"{train}\nopen('trained', 'w')\n")
    with pytest.raises(CommandError, match=r"which trains a model when it is imported\. Put its"):
        model_of(f"{path}:build", "--model")


def test_fit_is_itself_again_afterwards(script: Any) -> None:
    import keras
    import numpy as np

    from kfit.trainer import Trainer

    before = keras.Model.fit, Trainer.fit, sys.argv[:], sys.path[:]
    model = model_of(f"{script(BUILD)}:build", "--model")
    assert (keras.Model.fit, Trainer.fit, sys.argv[:], sys.path[:]) == before
    x = np.ones((4, 2), "float32")
    assert model.fit(x, x[:, :1], verbose=0).history["loss"]


def test_a_script_that_lacks_the_function_is_not_imported(script: Any, tmp_path: Path) -> None:
    path = script(f"open({str(tmp_path / 'imported')!r}, 'w')\n", BUILD)
    with pytest.raises(CommandError, match="defines no function 'make'"):
        model_of(f"{path}:make", "--model")
    assert not (tmp_path / "imported").exists()


def test_a_script_finds_the_modules_beside_it_and_no_arguments_of_the_command(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["kfit", "inspect", "--export", "a.keras"])
    (tmp_path / "widths_beside.py").write_text("WIDTH = 1\n")
    path = script(
        "import argparse; argparse.ArgumentParser().parse_args()\n",
        "from widths_beside import *\n",
        BUILD.replace("Dense(1)", "Dense(WIDTH)"),
    )
    assert model_of(f"{path}:build", "--model").output_shape == (None, 1)


@pytest.mark.parametrize("line", ["raise SystemExit('no GPU')", "import a_module_of_nobody"])
def test_a_script_that_cannot_be_imported_is_named(script: Any, line: str) -> None:
    path = script(BUILD, f"{line}\n")
    with pytest.raises(CommandError, match=r"train.py', which cannot be imported: \w+: "):
        model_of(f"{path}:build", "--model")
