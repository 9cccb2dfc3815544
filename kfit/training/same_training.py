"""Checks that a snapshot is of the training that is to resume from it.

Only the chief checks this. It has the snapshot, and all tasks were given the same data as the
chief.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.state import PARTS, Part, SnapshotMismatchError, form_in, stable_name
from kfit.cluster.printable import printable
from kfit.fingerprints import (
    SECTIONS,
    Difference,
    Section,
    compare,
    differing_attributes,
    names_of_layers,
)
from kfit.heartbeat.tracebacks import warn_user
from kfit.training.fit_state import FitState

Fingerprint = Mapping[Any, Mapping[str, Any]]

_OF_PART: dict[Part, tuple[Section, ...]] = {
    "progress": ("data", "validation_data", "seed", "class_weight"),
    "optimizer": ("optimizer", "learning_rate"),
    "metrics": ("metrics",),
}

_OTHER_VALUES = re.compile(
    r"(validation_)?data: .+? is (.+) #\w+, in the snapshot \2 #\w+", re.DOTALL
)
"""The line of arrays that have the shape and the dtype of those in the snapshot."""

_TRAINABLE = re.compile(r"model: .*\.trainable is .*")
"""The line of a layer that was frozen or thawed."""

_MOST = 12
"""The most variables that differ which a message shows."""


def refuse_another(
    fit: FitState,
    snapshot: Snapshot,
    own: Fingerprint,
    parts: Sequence[Part],
    allowed: Collection[Section],
) -> list[Section]:
    """Raises an error if a snapshot is of a different training than the `fit` that begins.

    It is called on the chief before anything is restored. The two trainings are compared by the
    model's variables and by their fingerprints. The fingerprint of a training describes its data,
    model, optimizer and so on. It has a section for each of these.

    Args:
        fit: The state of the `fit` that begins.
        snapshot: The snapshot.
        own: The fingerprint of this training.
        parts: The parts of the snapshot that are to be restored, such as "model" or "progress".
        allowed: The sections of the fingerprint that may differ, such as "data" or "learning_rate".

    Returns:
        The allowed sections that differ.

    Raises:
        SnapshotMismatchError: If anything else differs that the restored parts need. The message
            lists every difference.
    """
    if snapshot.about.get("compiled_anew"):
        raise SnapshotMismatchError(
            f"The snapshot of {snapshot.described} is of a model that a callback had "
            "compiled again, or given another optimizer or schedule of the learning rate, in the "
            "middle of `fit`. The program starts with the model as it was compiled before, so the "
            "training cannot be resumed. Split it into two `fit`s, with that change between them, "
            "each with `BackupAndRestore`; and delete the directory, or give another one. Numbers "
            "may be assigned to `optimizer.learning_rate` anywhere."
        )
    _warn_of_another_order(own, snapshot)
    versions = ("python", "keras", "tensorflow")
    ours, theirs = fit.versions, snapshot.about.get("versions", {})
    alike = all(_minor(ours.get(name)) == _minor(theirs.get(name)) for name in versions)
    found = compare(own, snapshot.state.get("fingerprint", {}), alike=alike)
    compared = _compared(parts)
    found = [difference for difference in found if difference.section in compared]
    _warn_of_attributes(own, snapshot, set(compared).difference(allowed))
    differ = {difference.section for difference in found}
    # The settings of the data, such as the batch size, are in no fingerprint.
    settings = [Difference("data", line) for line in fit.differing_data(snapshot, parts)]
    # Weights of other shapes, say, cannot be restored, whatever the user allows.
    impossible = fit.differing_variables(snapshot, parts, changes=["metrics"])
    # A metric can begin anew.
    of_metrics = [] if impossible else fit.differing_variables(snapshot, parts)
    differ.update(each.section for each in settings)
    differ.update(["metrics"] if of_metrics else [])
    trains_others = "optimizer" in parts and _trains_others(found, snapshot)
    refused = [
        each
        for each in (*settings, *found)
        if each.section not in allowed or (trains_others and _TRAINABLE.fullmatch(each.line))
    ]
    variables = [*impossible, *(of_metrics if "metrics" not in allowed else ())]
    names = names_of_layers(fit.model)
    told = [_with_own_name(each, names) for each in refused]
    lines = [*told, *_unexplained(variables, refused)]
    if not lines:
        return sorted(differ)
    change = sorted(differ.difference(allowed))
    is_random = any(_OTHER_VALUES.fullmatch(each.line) for each in refused)
    seed = " (and a seed, if the program draws or splits its data at random)" if is_random else ""
    raise SnapshotMismatchError(
        f"The snapshot of {snapshot.described} is of another training:\n  "
        + "\n  ".join(map(printable, dict.fromkeys(lines)))
        + f"\nTo continue the training of the snapshot, give `fit` what it was saved with{seed}"
        + (
            f"; if the change is meant, pass `allow_changes={change}`."
            if not (impossible or trains_others)
            else ". No `allow_changes` can accept this change: the snapshot's weights, or its "
            "variables of the optimizer, do not fit this model."
        )
        + " To train anew, delete the directory, or give `BackupAndRestore` another one. To take "
        + f"only some of the snapshot's state, pass `parts`, any of {list(PARTS)}."
    )


def _with_own_name(difference: Difference, names: Mapping[str, str]) -> str:
    """Returns the line of a difference, in which a layer of this model has its own name.

    Args:
        difference: The difference.
        names: The layers' own names by those in the fingerprint, such as "dense (2)".
    """
    line = difference.line
    found = re.match(r"model: (.*? \(\d+\))", line)
    if found is None or found[1] not in names or line.endswith(" is only in the snapshot"):
        return line
    return f"model: {names[found[1]]}{line[found.end() :]}"


def _trains_others(found: Sequence[Difference], snapshot: Snapshot) -> bool:
    """Returns whether other variables are trained, for which the optimizer has no state.

    An optimizer that is not built yet does not show it. Some keep no state of each variable.
    """
    kept = [each for each in snapshot.state["variables"] if each["part"] == "optimizer"]
    has_slots = any(not form_in(each).startswith("()") for each in kept)
    return has_slots and any(_TRAINABLE.fullmatch(each.line) for each in found)


def _unexplained(variables: Sequence[str], told: Sequence[Difference]) -> list[str]:
    """Leaves out variables that only one side has because of a difference that is told anyway.

    Args:
        variables: A line for each variable that differs: the part of the state, and its path.
        told: The differences that are told of layers, optimizers and metrics.
    """
    sections = {each.section for each in told}
    layers = {found[1] for each in told if (found := re.match(r"model: (.*?) \(\d+\)", each.line))}
    if layers:
        layers.add("seed_generator")  # its path does not name the layer that it belongs to
    left = []
    for line in variables:
        part, _, path = line.partition(": ")
        of_layers = not layers.isdisjoint(stable_name(path.partition(" ")[0]).split("/"))
        is_told = of_layers if part == "model" else part in sections
        if not (is_told and line.endswith(("is not in the snapshot", "is only in the snapshot"))):
            left.append(line)
    return (
        left if len(left) <= _MOST else [*left[:_MOST], f"and {len(left) - _MOST} more variables"]
    )


def _warn_of_another_order(own: Fingerprint, snapshot: Snapshot) -> None:
    """Warns if a tf.data pipeline is shuffled in a different order than in the snapshot's training.

    That happens on several workers if the program sets no global seed. kfit then draws a global
    seed, which is different in each run.

    Args:
        own: The fingerprint (description) of this training, with the seed that kfit has drawn.
        snapshot: The snapshot, which contains the fingerprint of its training.
    """
    drawn = snapshot.state.get("fingerprint", {}).get("drawn_seed", {})
    if drawn != own.get("drawn_seed", {}):
        warn_user(
            "`x`, a tf.data.Dataset, is shuffled in another order than before: the program sets no "
            "global seed, and each start of the workers draws another one. Of the epoch that was "
            "interrupted some examples may be seen twice and others not. Call "
            "`keras.utils.set_random_seed` before the data set is made."
        )


def _warn_of_attributes(
    own: Fingerprint, snapshot: Snapshot, sections: Collection[Section]
) -> None:
    """Warns if objects of the user's hold other numbers than in the snapshot's training.

    Args:
        own: The fingerprint (description) of this training.
        snapshot: The snapshot, which contains the fingerprint of its training.
        sections: The sections of the fingerprint that must be equal.
    """
    found = differing_attributes(own, snapshot.state.get("fingerprint", {}))
    lines = [each.line for each in found if each.section in sections]
    if lines:
        warn_user(
            f"Since the snapshot of {snapshot.described} some attributes have other "
            "values:\n  "
            + "\n  ".join(map(printable, lines))
            + "\nTraining goes on with the present ones. That is right for what a clock gave. But "
            "what a hook of a finished `fit` has set must be set again; and a setting that is an "
            "argument of the constructor, by the name of the attribute, is compared strictly."
        )


def _compared(parts: Sequence[Part]) -> Collection[Section]:
    """Returns the sections of the fingerprint that must be equal to restore parts of a snapshot.

    The fingerprint describes a training; its sections are "data", "model", "optimizer" and so on.

    Args:
        parts: The parts of the snapshot to restore, such as "progress".
    """
    if set(parts) >= set(PARTS):
        return SECTIONS
    return [section for part in parts for section in _OF_PART.get(part, ())]


def _minor(version: Any) -> str:
    return ".".join(str(version).split(".")[:2])
