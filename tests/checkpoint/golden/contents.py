"""What the golden snapshots hold: a value of each kind, in the form of a training's state.

`python -m tests.checkpoint.golden.contents`, at the root of the sources, writes them in the present
format, to `format-N` beside this file. Do so whenever `FORMAT` in
`kfit/checkpoint/snapshot_manifest.py` was raised, and keep the folders of the earlier formats: the
tests then check that those are refused by name. Never write a folder anew that is there already.
"""

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.snapshot_manifest import FORMAT
from kfit.checkpoint.store import Store

FOLDER = Path(__file__).parent
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"),
)


def about() -> dict[str, Any]:
    """The description of the snapshot, but the lock count, which the store adds."""
    return {"step": 3, "epoch": 1, "fit": 0, "finished": False, "model": "ein Modell, 模型"}


def state() -> dict[str, Any]:
    """The state of a training; every number in it is another one."""
    values = [_array(index, name) for index, name in enumerate(DTYPES)]
    values += [np.zeros((0, 3), "float32"), np.float32(0.1), np.array(-0.0)]
    values += [np.array([np.nan, np.inf, -np.inf, 5e-324]), np.arange(12.0).reshape(2, 3, 2)]
    variables = [
        {"part": part, "name": f"layer/{index}", "per_replica": False, "value": value}
        for index, (part, value) in enumerate(
            zip(["model", "optimizer", "metrics"] * len(values), values, strict=False)
        )
    ]
    words = np.arange(2.0**32 - 624, 2.0**32)
    row = [*words, 624, 1, -0.75, *words[::-1], 0, 0, 0.0]
    return {
        "variables": variables,
        "progress": {"epoch": 1, "step": 3, "step_in_epoch": 1},
        "logs": {"loss": 0.1, "of nothing": float("nan"), "of all": float("-inf")},
        "stop_training": False,
        "data": {"described": {"batch_size": 8, "examples": 2**62}, "seed": 2**31 - 1},
        "validation_data": None,
        "learned": [None, 7],
        "callbacks": [
            {"callback": "EarlyStopping", "state": {"wait": 1, "best": 1e-300}, "attributes": []},
            {
                "callback": "Own",
                "state": None,
                "attributes": [{"path": ["text"], "value": 'a"\n\\'}],
            },
        ],
        "random": {
            "tasks": np.array([row]),
            "torch": np.arange(16, dtype="uint8"),
            "keras": np.array([2**32 - 1, 5], "uint32"),
        },
        "account": {
            "began": 1.5,
            "step": 3,
            "step_seconds": 0.25,
            "examples": 24,
            "restarts": 1,
            "restores": 1,
            "again": None,
            "account": "an account",
            "run": None,
            "generation": 0,
        },
        "histories": {"0": {"epoch": [0], "history": {"loss": [2.5]}}},
        "fingerprint": {"seed": 5, "data": [1, [2, {"three": True}]], "model": {}},
    }


def _array(index: int, name: str) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return np.array([[0, 1, index % 7]]).astype(dtype)


def write(folder: Path) -> None:
    """Writes the golden snapshot in the present format."""
    if folder.exists():
        raise FileExistsError(f"{folder} is there, and a golden snapshot is never changed.")
    os.makedirs(folder)
    Store(str(folder), key=b"").save(Snapshot(about(), state()))


if __name__ == "__main__":
    write(FOLDER / f"format-{FORMAT}")
