"""Ends a script at its first `fit`, and verifies the model on the data that `fit` was given.

`kfit verify` runs the user's script in a process of its own, in which `verify_first_fit` is called
before the first line of the script.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any, NoReturn

import kfit
from kfit.cluster.variables import VERIFY
from kfit.commands.replaced_fit import replaced_fit
from kfit.commands.verify import COULD_NOT_RUN
from kfit.heartbeat.tracebacks import of_user

_MOST = 64
"""The most batches that are read from a generator."""
_KEPT = ("batch_size", "shuffle", "class_weight", "steps_per_epoch")
"""The arguments of `fit` that `Trainer.verify` takes as they are, besides the data."""


def verify_first_fit() -> None:
    """Makes the first `fit` of a Keras model, or of kfit, verify the model and end the process."""
    import tensorflow as tf

    from kfit.distribute.devices import split_cpu
    from kfit.trainer import Trainer

    settings = json.loads(os.environ[VERIFY])
    if len(tf.config.list_physical_devices("GPU")) < settings["replicas"]:
        split_cpu(settings["replicas"], "--replicas")
    stdout = os.dup(1)
    if settings["json"]:
        os.dup2(2, 1)
    signature, replaced = inspect.signature(Trainer.fit), ExitStack()

    def fit(*args: Any, **kwargs: Any) -> NoReturn:
        replaced.close()  # verifying calls the real one
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        _end(settings, stdout, *_verified(given.arguments, settings))

    replaced.enter_context(replaced_fit(fit))
    kfit.install("one_device")


def _verified(given: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[int, Any]:
    """Verifies the model of a `fit`.

    Args:
        given: The arguments of `Trainer.fit`, by name.
        settings: The settings of the command.

    Returns:
        The exit code; and the result, or the text of an error.
    """
    from kfit.inputs import ReadBatches, split_validation
    from kfit.training.stop_signals import Preempted

    try:
        x, y, sample_weight = given["x"], given["y"], given["sample_weight"]
        if given["validation_split"] and given["validation_data"] is None:
            (x, y, sample_weight), _ = split_validation(
                (x, y, sample_weight), given["validation_split"]
            )
        kept = {name: given[name] for name in _KEPT}
        if isinstance(x, Iterator):
            # The script will not go on, so its generator may be used up.
            read = islice(x, kept.pop("steps_per_epoch") or _MOST)
            x, kept["shuffle"] = ReadBatches([_parts_of(batch) for batch in read]), False
        found = given["self"].verify(
            x,
            y,
            sample_weight=sample_weight,
            replicas=settings["replicas"],
            steps=settings["steps"],
            **kept,
        )
    except (KeyboardInterrupt, Preempted):  # the script must not go on
        return COULD_NOT_RUN, "a signal has stopped it"
    except Exception as error:
        if not isinstance(error, (ValueError, NotImplementedError)):
            traceback.print_exception(error.with_traceback(of_user(error, error.__traceback__)))
        return COULD_NOT_RUN, f"{type(error).__name__}: {error}"
    return int(not found.is_equal), found


def _parts_of(batch: Any) -> tuple[Any, ...]:
    """Returns what a generator has yielded as the parts that `fit` passes to the model's step."""
    return tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)


def _end(settings: Mapping[str, Any], stdout: int, code: int, found: Any) -> NoReturn:
    """Prints the result and ends the process at once, so that the script writes nothing more."""
    is_error = isinstance(found, str)
    if settings["json"]:
        text = json.dumps({"error": found} if is_error else found.as_dict(), indent=2)
    else:
        text = f"COULD NOT RUN: {found}" if is_error else str(found)
    sys.stdout.flush()
    sys.stderr.flush()
    with open(stdout, "w", encoding="utf-8", errors="replace", closefd=False) as file:
        print(text, file=file, flush=True)
    for child in multiprocessing.active_children():
        child.terminate()
    os.write(settings["pipe"], str(code).encode())
    os._exit(code)
