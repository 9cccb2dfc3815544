"""Finds out which `fit` of a program now begins, if an earlier run has left snapshots.

Usually it is the next `fit` of the process. But a program that is run again may skip by itself the
`fit`s that it has finished. Then the weights and settings show that the beginning `fit` is a later
one. And after an interrupted `fit` the whole program may be run again in the same process, as by
"Run All" in a notebook. Then the weights, or the steps that the optimizer has taken, show that the
beginning `fit` is an earlier one.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kfit.checkpoint import marks
from kfit.checkpoint.fits import Labels, Program, beginning_of, cut_off_after
from kfit.checkpoint.marks import Marks
from kfit.checkpoint.starts import Repeat, Start
from kfit.checkpoint.store import Store
from kfit.fingerprints import compare
from kfit.heartbeat.reached import nth
from kfit.heartbeat.tracebacks import code_of_callers, run_of_program, warn_user
from kfit.training.fit_state import FitState


def start_of(training: FitState) -> Start:
    """Returns what a `fit` begins with, and how the program has called it."""
    return Start(
        weights=training.checksum_of_weights(),
        steps=training.steps_of_optimizers(),
        model=weakref.ref(training.model),
        calls=code_of_callers(),
        run=(run := run_of_program()),
        first_run=run,
    )


@dataclass(frozen=True)
class Beginner:
    """A `fit` that begins, with the properties that show which `fit` of the program it is.

    Attributes:
        start: What the `fit` begins with (`start_of`).
        fingerprint: A description of the data, the model and other settings of the `fit`.
    """

    start: Start
    fingerprint: Mapping[Any, Mapping[str, Any]]

    def number(self, program: Program, store: Store, labels: Labels, known: Marks) -> int:
        """Returns the number of this `fit` in the program, counted from 0.

        Usually this is the next number: the number of `fit`s that this process has run. After an
        interrupted `fit` the result is a lower number if this process runs the program again
        (`Program.repeated`). And if the program is run again, it may have skipped finished `fit`s
        by itself. Then the result is a higher number. It is found in one of two ways:

        - The weights show that this is a later `fit` of an earlier run (`marks.py`).
        - An earlier run was interrupted in a later `fit`, and this `fit` has the settings of that
          one, but not the settings of the `fit` with the next number.

        Args:
            program: The record of the `fit`s that this process has run with one directory of
                snapshots.
            store: The snapshots in this directory.
            labels: The snapshots' labels, which say in which `fit` each snapshot was taken.
            known: The marks of earlier `fit`s: checksums of the weights that they began and ended
                with.
        """

        @cache  # it reads a snapshot
        def may_be(number: int) -> bool | None:
            """Returns whether this `fit` has the settings of a `fit` of an earlier run.

            The result is None if no undamaged snapshot of the earlier run's `fit` is left.

            Args:
                number: The number of the earlier run's `fit`, counted from 0.
            """
            beginning = beginning_of(number, labels)
            names = beginning.names if beginning.kind == "same" else []
            snapshot = store.newest(names)[0]
            if snapshot is None:
                return None
            return not compare(self.fingerprint, snapshot.state["fingerprint"])

        repeat = program.repeated(self.start, may_be)
        if repeat is not None and repeat.doubt is not None:
            assert program.unfinished is not None
            _tell_of_doubt(store.directory, program.unfinished, repeat)
        if repeat is not None and not repeat.fit == program.fits == program.unfinished:
            return repeat.fit
        found, weights = None, self.start.weights
        if weights is not None and not program.has_borrowed:
            found = marks.recognized(program.fits, weights, known, may_be)
        if found is not None:
            _tell(store.directory, program.fits, found, known)
            return found
        later = cut_off_after(program.fits, labels)
        is_later = later is not None and not may_be(program.fits) and may_be(later)
        return later if later is not None and is_later else program.fits


def _tell_of_doubt(directory: str, unfinished: int, repeat: Repeat) -> None:
    is_unfinished = repeat.fit == unfinished
    what = "it" if is_unfinished else f"the {nth(repeat.fit)} one"
    warn_user(
        f"{directory}: the {nth(unfinished)} `fit` of this program was interrupted, and this one "
        f"is taken for {what} and gets the weights of its last snapshot, but {repeat.doubt}. "
        "If it is another `fit`, such as the next one of a loop that goes on after an error, give "
        "it a directory of its own."
    )


def _tell(directory: str, number: int, found: int, known: Marks) -> None:
    is_begun = any(mark.fit == found for mark in known)
    how = (
        f"the {nth(found)} one began with in an earlier run, and goes on as that"
        if is_begun
        else f"the {nth(found - 1)} one ended with in an earlier run, and is trained as the next"
    )
    warn_user(
        f"{directory}: the {nth(number)} `fit` of this program begins with the weights that {how}. "
        f"To have it be the {nth(number)} one, let it begin with the model as that was, and not "
        "with a file of a later one: `fit` brings the weights back by itself."
    )


def tell_of_no_snapshot(directory: str, number: int) -> None:
    """Warns that an interrupted `fit` is called again, and has no snapshot to go on from.

    Args:
        directory: The directory of snapshots.
        number: The number of the `fit` in the program, from 0.
    """
    warn_user(
        f"{directory}: the {nth(number)} `fit` of this program was interrupted before its first "
        "snapshot. It takes all its steps, and begins with the model and the optimizer as the "
        "interruption has left them, as in Keras. Make the model anew to begin as before; "
        "`save_freq` says when the first snapshot is saved."
    )


def message_of_one_left_out(directory: str) -> str:
    """Returns the message for a program that ends without a `fit` which an earlier run had begun.

    The snapshots are kept for that `fit`, and the message tells the user so.

    Args:
        directory: The directory of snapshots.
    """
    return (
        "kfit: an earlier run of this program was cut off in a `fit` that this run has ended "
        f"without. What is in {directory} is kept: a program that calls this `fit` goes on from "
        "it. If it is not wanted any more, delete the directory."
    )
