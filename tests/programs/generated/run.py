"""Runs programs within this process, as fresh programs would run one after the other."""

import contextlib
import io
import linecache
import random
import sys
import time
import types
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs.generated.place import Place
from tests.programs.generated.script import script


@dataclass
class Outcome:
    """What a program came to at a place."""

    records: list[tuple[str, Any]] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)
    events: int = 0
    seconds: float = 0.0
    cut_off: bool = False
    error: BaseException | None = None
    warned: list[str] = field(default_factory=list)


def run(program: dict[str, Any], place: Place, folder: Path) -> Outcome:
    """Runs a program once; `folder` keeps what it writes, its own text too.

    The next run's `clear_session` collects what this one leaves behind.
    """
    import keras
    import numpy as np

    from kfit.checkpoint import fits
    from kfit.inputs import arrays as inputs_of_arrays

    # How many batches of a call are fed to an iterator before a pipeline is made.
    inputs_of_arrays.MOST = (0, 3, 32)[program["seed"] % 3]
    keras.backend.clear_session()
    fits.forget()
    random.seed(program["seed"])
    np.random.seed(program["seed"])
    text = script(program, place, str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / "program.py")
    Path(path).write_text(text)
    linecache.checkcache(path)
    module = types.ModuleType("program")
    sys.modules["program"] = module  # where TensorFlow looks for the source of functions
    scope = vars(module)
    scope["__file__"] = path
    outcome, begun = Outcome(), time.monotonic()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            exec(compile(text, path, "exec"), scope)
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise  # somebody ends the process of the tests
            outcome.cut_off = type(error).__name__ == "CutOffError"
            outcome.error = None if outcome.cut_off else error
        # TensorFlow has written into arrays of which replicas get slices.
        given, arrays = (keras.tree.flatten(scope.get(name)) for name in ("given", "arrays"))
        if not all(map(np.array_equal, given, arrays)):
            outcome.error = AssertionError("an array of the program has been changed")
    outcome.seconds = time.monotonic() - begun
    outcome.warned = sorted({str(each.message) for each in caught})
    recorder = scope.get("recorder")
    if recorder is not None:
        outcome.records, outcome.hooks = recorder.records, recorder.hooks
        outcome.events = recorder.events
    sys.modules.pop("program", None)
    scope.clear()
    return outcome
