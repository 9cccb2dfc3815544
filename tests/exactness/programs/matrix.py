"""What tests/exactness/test_matrix.py runs: every case on every combination of devices.

Usage: python matrix.py FOLDER expected                 what Keras computes on one device
       python matrix.py FOLDER one_device mirrored_2... what kfit computes, compared with it
       TF_CONFIG=... python matrix.py FOLDER workers_2  the same on two workers of 1 replica each
CASES in the environment names the cases, separated by commas; all by default.
Prints a line `RESULT {json}` for each case, size and combination.
"""

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy

COMBINATIONS = sys.argv[2:]
ON_WORKERS = {"workers_2": 1, "workers_4": 2}
"""Combination -> replicas a worker, over two workers."""


def split_the_cpu() -> None:
    """Makes logical devices, which comes before joining the cluster."""
    local = max((ON_WORKERS.get(name, 4) for name in COMBINATIONS), default=1)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * local
    )
    if COMBINATIONS == ["workers_4"]:
        # TensorFlow takes all GPUs of a worker, but only one of its CPU devices.
        extended = collective_all_reduce_strategy.CollectiveAllReduceExtended

        def all_cpus(self: Any, resolver: Any, worker_device: str) -> tuple[Any, str]:
            return tuple(f"{worker_device}/device:CPU:{i}" for i in range(local)), "CPU"

        extended._initialize_local_devices = all_cpus


split_the_cpu()

import kfit  # noqa: E402

kfit.join_cluster()

# isort: split
import keras  # noqa: E402
import numpy as np  # noqa: E402

# Last, so that an installed kfit is not hidden by the folder of that name.
sys.path.append(str(Path(__file__).parents[3]))

from tests.exactness.cases import BATCH_SIZE, CASES, ROUGH  # noqa: E402

EPOCHS = 2


def made(name: str, examples: int) -> tuple[keras.Model, Any, dict[str, Any]]:
    keras.utils.set_random_seed(1)
    model, data, *rest = {**CASES, **ROUGH}[name](examples)
    size = BATCH_SIZE[examples]
    fixed = {"batch_size": size, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    return model, data, {**fixed, **(rest[0] if rest else {})}


def expected(folder: Path, name: str, examples: int) -> None:
    """Notes what Keras computes; eagerly, because that takes no time to trace."""
    model, data, options = made(name, examples)
    model.run_eagerly = True
    history = model.fit(*data, **options).history
    weights = {f"{i:03d}": np.asarray(w) for i, w in enumerate(model.get_weights())}
    np.savez(
        folder / f"{name}-{examples}.npz",
        history=json.dumps(history, default=np.ndarray.tolist),
        **weights,
    )


def compared(folder: Path, name: str, examples: int, combination: str) -> dict[str, Any]:
    """The largest differences of a weight and of a logged number from one device."""
    model, data, options = made(name, examples)
    history = kfit.Trainer(model, strategy_of(combination)).fit(*data, **options).history
    with np.load(folder / f"{name}-{examples}.npz") as file:
        wanted = json.loads(str(file["history"]))
        weights = [file[key] for key in sorted(file.files) if key != "history"]
    if history.keys() != wanted.keys():
        raise AssertionError(f"logs {sorted(history)} instead of {sorted(wanted)}")
    return {
        "weights": max(
            difference(*pair) for pair in zip(model.get_weights(), weights, strict=True)
        ),
        "metrics": max(difference(history[key], wanted[key], relative=True) for key in wanted),
    }


def difference(got: Any, wanted: Any, relative: bool = False) -> float:
    """The largest difference, in units of the values where those are above 1 and `relative`."""
    got, wanted = np.asarray(got, "float64"), np.asarray(wanted, "float64")
    if got.shape != wanted.shape:
        raise AssertionError(f"shape {got.shape} instead of {wanted.shape}")
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        away = np.abs(got - wanted) / (np.maximum(np.abs(wanted), 1) if relative else 1)
    return float(np.where(same, 0, away).max(initial=0))


def strategy_of(combination: str) -> Any:
    if combination in ON_WORKERS:
        return "multi_worker"
    if combination == "one_device":
        return combination
    count = int(combination.removeprefix("mirrored_"))
    return kfit.distribute.Mirrored([f"CPU:{i}" for i in range(count)])


def main() -> None:
    folder = Path(sys.argv[1])
    known = [*CASES, *ROUGH]
    for name in [name for name in os.environ.get("CASES", "").split(",") if name] or known:
        for examples in BATCH_SIZE:
            for combination in COMBINATIONS:
                keras.backend.clear_session()
                told = {"case": name, "examples": examples, "combination": combination}
                try:
                    if combination == "expected":
                        expected(folder, name, examples)
                    else:
                        told |= compared(folder, name, examples, combination)
                except Exception as error:
                    told["error"] = f"{type(error).__name__}: {error}"[:300]
                    traceback.print_exc()
                print(f"RESULT {json.dumps(told)}", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
