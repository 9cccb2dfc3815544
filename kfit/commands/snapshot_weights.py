"""Compares the weights of a snapshot with others, and saves them in a Keras model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kfit.argument_checks import CommandError
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.snapshot_manifest import DamagedSnapshotError
from kfit.checkpoint.store import SnapshotName, Store
from kfit.checkpoint.training_schema import check_training
from kfit.commands.inspected_snapshots import chosen, inspect
from kfit.commands.named_model import model_of
from kfit.verification.report import printable

Kept = Sequence[dict[str, Any]]


def read(directory: str, found: Mapping[str, Any], only: str | None) -> Snapshot:
    """Reads the newest good snapshot of those that `inspect` has found.

    Args:
        directory: The directory of the snapshots.
        found: What `inspect` has found.
        only: The option `--snapshot`, if only this snapshot was looked for; or None.

    Raises:
        CommandError: If all of them are damaged.
    """
    good = [each["name"] for each in found["snapshots"] if not each["damage"]]
    if not good:
        damage = "; ".join(f"{s['name']}: {printable(s['damage'])}" for s in found["snapshots"])
        if only is None:
            raise CommandError(f"all snapshots are damaged: {damage}")
        others = [each for each in inspect(directory)["snapshots"] if not each["damage"]]
        listed = ", ".join(f"{each['name']} (step {each['step']})" for each in others)
        raise CommandError(
            f"`--snapshot` is {only!r}, a damaged snapshot: {damage}. The good ones of the "
            f"directory: {listed or 'none'}"
        )
    name = SnapshotName.parse(good[-1])
    assert name is not None
    return Store(directory, check=check_training).read(name)


def compare(directory: str, snapshot: Snapshot, other: str, model: str | None) -> dict[str, Any]:
    """Compares a snapshot's weights, layer by layer, with those of a model or another snapshot.

    Args:
        directory: The directory of the snapshot.
        snapshot: The snapshot.
        other: The path of a saved model, or the name or the step of a snapshot in the directory.
        model: The option `--model`, if the saved model needs the classes of a script; or None.

    Returns:
        A dict: `with`, what was compared; and `layers`, a list with a dict for each layer: its
        `name`, whether it is `equal` bit for bit, the largest `difference` of a weight, and the
        same `relative` to the layer's largest weight. A difference is infinite where only one of
        two weights is finite.

    Raises:
        CommandError: If `other` cannot be read, or its weights have other names or shapes.
    """
    ours = [entry for entry in snapshot.state["variables"] if entry["part"] == "model"]
    if other.endswith((".keras", ".h5")):
        loaded = model_of(other, "--against", model)
        _require_same(loaded, snapshot, ("model",), "--against")
        theirs = _weights_of(loaded)
    else:
        if os.path.isfile(other):
            raise CommandError(
                f"`--against` is {other!r}; expected a saved model, which is a file that ends in "
                ".keras or .h5, or the name or the step of a snapshot of the directory"
            )
        store = Store(directory, check=check_training)
        name = chosen(store, other, "--against")
        try:
            variables = store.read(name).state["variables"]
        except (DamagedSnapshotError, OSError) as error:
            raise CommandError(f"`--against` is {other!r}, a damaged snapshot: {error}") from error
        kept = [entry for entry in variables if entry["part"] == "model"]
        if [_form(entry) for entry in kept] != [_form(entry) for entry in ours]:
            raise CommandError(f"`--against` is {other!r}, a snapshot of another model")
        theirs = [np.asarray(entry["value"]) for entry in kept]
    return {"with": other, "layers": _layers(ours, theirs)}


def as_lines(compared: Mapping[str, Any]) -> list[str]:
    """Returns the result of `compare` as lines of text."""
    layers = compared["layers"]
    if all(layer["equal"] for layer in layers):
        return [f"Its weights are equal to those of {compared['with']!r}, bit for bit."]
    if all(layer["difference"] == 0 for layer in layers):
        return [
            f"Its weights are equal to those of {compared['with']!r}, though not bit for bit: a "
            "zero has another sign, or a weight another dtype."
        ]
    rows = [("", "difference", "relative")]
    for layer in layers:
        shown = f"{layer['difference']:.3g}", f"{layer['relative']:.1e}"
        rows.append((printable(layer["name"]), *shown))
    width = max(len(row[0]) for row in rows)
    return [
        f"Its weights differ from those of {compared['with']!r}:",
        *(f"  {name:<{width}}  {one:>10}  {two:>8}" for name, one, two in rows),
    ]


def export(snapshot: Snapshot, model: str, path: str) -> dict[str, Any]:
    """Saves a Keras model that has the weights of a snapshot.

    If the model is compiled, and its optimizer has the variables of the snapshot's, the optimizer's
    state is saved, too.

    Args:
        snapshot: The snapshot.
        model: The option `--model`: where the architecture comes from.
        path: The file to write.

    Returns:
        A dict: the `file`, and the `parts` of the snapshot that it holds.

    Raises:
        CommandError: If the model cannot be made, has other variables than the snapshot, or the
            file must not be replaced.
    """
    from kfit.checkpoint.state import Part, differences, restore
    from kfit.distribute.one_device import OneDevice
    from kfit.saving import write_path

    made = model_of(model, "--model")
    _require_same(made, snapshot, ("model",), "--model")
    parts: list[Part] = ["model"]
    if made.compiled and made.optimizer is not None:
        if not made.optimizer.built:
            made.optimizer.build(made.trainable_variables)
        if not differences(made, snapshot.state["variables"], ["optimizer"]):
            parts.append("optimizer")
    restore(made, snapshot, parts, OneDevice())
    try:
        with write_path(path, "--export") as aside:
            made.save(aside)
    except (ValueError, OSError) as error:
        raise CommandError(f"`--export` is {path!r}, which cannot be written: {error}") from error
    return {"file": path, "parts": parts}


def _require_same(model: Any, snapshot: Snapshot, parts: Any, option: str) -> None:
    from kfit.checkpoint.state import differences

    lines = differences(model, snapshot.state["variables"], parts)
    if lines:
        raise CommandError(
            f"`{option}` is a model with other variables than the snapshot's model "
            f"{snapshot.about['model']!r}:\n  " + "\n  ".join(map(printable, lines))
        )


def _weights_of(model: Any) -> list[np.ndarray]:
    from kfit.checkpoint.state import entries
    from kfit.distribute.one_device import OneDevice
    from kfit.distribute.variable_values import get_values

    variables = [entry.variable for entry in entries(model) if entry.part == "model"]
    return [np.asarray(value) for value in get_values(variables, OneDevice())]


def _layers(ours: Kept, theirs: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Compares two lists of variables, and summarizes the differences of each layer.

    Names in snapshots lack the numbers by which Keras tells layers apart. So the next layer begins
    when a name of a variable comes again, and layers with equal names are counted here. The states
    of random generators, such as those of dropout, are left out.
    """
    pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    counts: Counter[str] = Counter()
    names: set[str] = set()
    last = name = ""
    for entry, other in zip(ours, theirs, strict=True):
        if entry["name"].endswith("seed_generator_state"):
            continue
        layer = entry["name"].rpartition("/")[0] or entry["name"]
        if not counts or layer != last or entry["name"] in names:
            names.clear()
            counts[layer] += 1
            name = layer if counts[layer] == 1 else f"{layer} ({counts[layer]})"
        last = layer
        names.add(entry["name"])
        pairs.setdefault(name, []).append((np.asarray(entry["value"]), np.asarray(other)))
    return [_layer(name, found) for name, found in pairs.items()]


def _layer(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    difference = max(_difference(one, other) for one, other in pairs)
    largest = max(_largest(one) for one, _ in pairs)
    return {
        "name": name,
        "equal": all(_is_same(one, other) for one, other in pairs),
        "difference": difference,
        "relative": difference / (largest or 1.0),
    }


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference of two weights; NaN and infinity differ only from others."""
    a, b = _wide(one), _wide(other)
    differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(a - b)[differs]
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0.0))


def _largest(values: np.ndarray) -> float:
    sizes = np.abs(_wide(values))
    return float(np.max(sizes[np.isfinite(sizes)], initial=0.0))


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype("complex128" if values.dtype.kind == "c" else "float64")


def _form(entry: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    return entry["name"], tuple(np.asarray(entry["value"]).shape)
