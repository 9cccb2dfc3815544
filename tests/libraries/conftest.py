"""Runs programs of libraries by Keras, and once more under `kfit.install`, and compares them."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DEADLINE = 240.0


@pytest.fixture
def as_in_keras(
    tiny: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Checks that a program comes to the same numbers by Keras and by kfit on two replicas.

    The program is a function of an empty folder. It returns its numbers, in any structure of lists
    and dicts; the function here returns those that it came to by kfit.
    """
    import keras

    import kfit
    from kfit.training import loops

    def check(program: Callable[[Path], Any], rel: float = 1e-4, atol: float = 1e-6) -> Any:
        expected = program(tmp_path_factory.mktemp("keras"))
        trained, fit = [], loops.fit

        def counted(state: Any, *others: Any) -> None:
            trained.append(state.strategy.num_replicas)
            fit(state, *others)

        monkeypatch.setattr(loops, "fit", counted)
        with kfit.install(tiny.strategy(2)):
            found = program(tmp_path_factory.mktemp("kfit"))
        assert trained
        assert set(trained) == {2}
        keras.tree.assert_same_structure(found, expected)
        for one, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=rel, atol=atol)
        return found

    return check


@pytest.fixture
def run_workers(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a program of `programs/` by `kfit run --workers 2 --keras-fit` in an empty folder.

    It returns the lines that the program printed.
    """

    def run(name: str, environ: dict[str, str] | None = None, words: Sequence[str] = ()) -> Any:
        program = Path(__file__).parent / "programs" / name
        command = ["run", "--workers", "2", "--keras-fit", str(program), *words]
        left_out = ("PYTHONSAFEPATH", "TF_CONFIG")
        inherited = {name: text for name, text in os.environ.items() if name not in left_out}
        done = subprocess.run(
            [sys.executable, "-m", "kfit", *command],
            cwd=tmp_path,
            env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, done.stdout[-5000:]
        return done.stdout.splitlines()

    return run
