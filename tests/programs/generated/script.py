"""A program's text: plain data turned into the Keras code that a person would have written."""

import inspect
import re
from typing import Any

from tests.programs.generated.action_text import action_lines
from tests.programs.generated.data_text import data_lines
from tests.programs.generated.model_text import model_lines
from tests.programs.generated.pieces import callbacks, inputs, layers, losses, models, recorder
from tests.programs.generated.place import Place

PIECES = {
    name: inspect.getsource(piece)
    for module in (recorder, losses, layers, models, inputs, callbacks)
    for name, piece in vars(module).items()
    if getattr(piece, "__module__", None) == module.__name__
}


def script(program: dict[str, Any], place: Place, folder: str) -> str:
    """The whole program, to be run by Python as it stands."""
    body = "\n\n".join(
        [
            "\n".join(_beginning(program, place, folder)),
            "\n".join(data_lines(program, place)),
            "\n".join(model_lines(program)),
            *("\n".join(action_lines(program, place, n)) for n in range(len(program["actions"]))),
        ]
    )
    imports = ["import os", "import signal", "from collections.abc import Iterator"]
    imports += ["from typing import Any", "", "import keras", "import numpy as np"]
    imports += ["import tensorflow as tf"] + (["", "import kfit"] if place.strategy else [])
    text = "\n".join(imports) + "\n\n\n" + "\n\n".join(_pieces(body)) + "\n\n" + body
    return text + "\n"


def _pieces(body: str) -> list[str]:
    """The sources of all pieces that the text names, and of those that these name."""
    found: list[str] = []
    text = body
    while True:
        more = [n for n in PIECES if n not in found and re.search(rf"\b{n}\b", text)]
        if not more:
            return [source for name, source in PIECES.items() if name in found]
        found += more
        text += "\n".join(PIECES[name] for name in more)


def _beginning(program: dict[str, Any], place: Place, folder: str) -> list[str]:
    dtype = program["dtype"]
    return [
        f"keras.config.set_floatx({'float64' if dtype == 'float64' else 'float32'!r})",
        f"keras.config.set_dtype_policy({dtype!r})",
        f"keras.utils.set_random_seed({program['seed']})",
        f"folder = {folder!r}",
        "os.makedirs(folder, exist_ok=True)",
        f"recorder = Recorder(cut={place.cut}, kill={place.kill})",
        f"strategy = {place.strategy or None}",
        f"hooks = {'BatchHooks' if program.get('watch') else 'Hooks'}(recorder)",
    ]
