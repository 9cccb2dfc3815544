"""Saves and restores the states of callbacks, so that training resumes as if never interrupted.

A callback can define its state with `state_dict` and `load_state_dict`. Keras' own callbacks have
neither method. For them this module lists the attributes that are their state, and `written_files`
handles the files that they write. The state of any other callback consists of the attributes that
change during training, as far as these can be saved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import keras

from kfit.checkpoint.callback_attributes import attributes_of, is_of_library
from kfit.checkpoint.callback_names import assigned, marks_of, named
from kfit.checkpoint.event_files import have_to_itself
from kfit.checkpoint.schema import (
    Check,
    array,
    count,
    each,
    is_a,
    number,
    optional,
    record,
)
from kfit.checkpoint.snapshot import split, with_scalars, without_others
from kfit.checkpoint.writing_elsewhere import writes_elsewhere
from kfit.checkpoint.written_files import (
    State,
    check_events,
    check_rows,
    events_of,
    mark_events,
    rewind_events,
    rewind_rows,
    rewind_rows_of_later_fits,
    rows_of,
    take_up_events,
)
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.callbacks import (
    ORBAX,
    choose_comparison,
    leave_writers,
    record_by_count,
    set_counted_batches,
)
from kfit.objects import Attributes
from kfit.objects.attributes import listed
from kfit.objects.holders import put

_RESUMED_AT = "resumed_at"
"""The attribute that kfit adds to a History: how many epochs were done at each resume."""

_REMEMBERS: tuple[tuple[type, dict[str, Check]], ...] = (
    (
        keras.callbacks.EarlyStopping,
        {
            **dict.fromkeys(("wait", "stopped_epoch", "best_epoch"), count),
            "best": optional(number),
            "best_weights": optional(each(array)),
        },
    ),
    (
        keras.callbacks.ReduceLROnPlateau,
        {"wait": count, "best": optional(number), "cooldown_counter": count},
    ),
    (
        keras.callbacks.ModelCheckpoint,
        {
            "best": optional(number),
            "_current_epoch": count,
            "_batches_seen_since_last_saving": count,
            "_last_batch_seen": optional(count),  # None until a batch hook was called
        },
    ),
    *(
        (
            kind,
            {
                "best": optional(number),
                **dict.fromkeys(("_batches_seen_since_last_saving", "_total_batches_seen"), count),
                "_last_batch_seen": optional(count),
            },
        )
        for kind in ORBAX
    ),
    (keras.callbacks.SwapEMAWeights, {"_ema_weights_in_model": is_a(bool)}),
    (
        keras.callbacks.History,
        {"epoch": each(count), "history": is_a(dict)},  # to which programs add what they like
    ),
)
"""The attributes that are the state of Keras' callbacks, each with a check of its value. A test
fails if Keras renames one."""


class CallbackStates:
    """The states of the callbacks of one `fit`, which can be saved in a snapshot and restored.

    When training resumes from a snapshot, what CSVLogger and TensorBoard callbacks wrote after the
    snapshot is removed from their files. Creating this object prepares the files for this:

    - Each TensorBoard callback will put a mark into the names of its event files, by which these
      files are recognized when training resumes.
    - If the file of a CSVLogger has several hard links, the file is replaced by a copy, so that the
      content at its other paths does not change.

    A CSVLogger or a TensorBoard that another callback holds, and whose hooks that one calls, is
    treated as one of the callbacks.

    Args:
        callbacks: The callbacks. Their `set_model` must not have been called yet, since some
            callbacks write files in `set_model`.
        is_chief: Whether this task is the chief, the only one where callbacks write files.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], *, is_chief: bool) -> None:
        self._event_files: dict[int, list[str]] = {}
        self._attributes: dict[int, Attributes] = {}
        self._warned: set[str] = set()
        self._appending: list[tuple[keras.callbacks.CSVLogger, bool, bool]] = []
        self._boards: list[keras.callbacks.TensorBoard] = []
        self._held = _held_writers(callbacks)
        for callback in self._with_held(callbacks):
            if _writes_events(callback):
                self._boards.append(callback)
                mark_events(callback)
            elif _writes_rows(callback) and is_chief:
                have_to_itself(callback.filename)

    def begin(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        foreign: Collection[int],
        *,
        saves: bool,
    ) -> None:
        """Records the attributes of callbacks: those that change from now on are saved as state.

        Called after `on_train_begin`. Callbacks that the program's own code gives a `state_dict`
        are skipped. Each callback has a state of its own, so what one callback knows of another one
        is not part of its state.

        Args:
            callbacks: The callbacks, in their order.
            foreign: Ids (as of `id`) of the objects that belong to the model or to the data, and
                so are not part of a callback's state.
            saves: Whether this task saves the states in snapshots. If so, the states are read once
                now, so that the error for a state that can't be saved is raised before training.

        Raises:
            TypeError: If the `state_dict` of a callback returned neither a dict nor None.
            ValueError: If a callback has only one of `state_dict` and `load_state_dict`, or a state
                that can't be saved.
        """
        callbacks = self._with_held(callbacks)
        others = {*foreign, *map(id, callbacks)}
        for name, _, callback in named(callbacks):
            says_all = _says(name, callback) and not is_of_library(callback.state_dict)
            if not says_all and id(callback) not in foreign:
                found = attributes_of(callback, _remembered(callback), others)
                if found is not None:
                    self._attributes[id(callback)] = found
        if saves:
            self.state_dict(callbacks)

    def begin_files(self, callbacks: Sequence[keras.callbacks.Callback], epoch: int | None) -> None:
        """Removes rows from the files of CSVLoggers that this `fit` will write again.

        Called after `on_train_begin`, on the chief.

        Args:
            callbacks: The callbacks.
            epoch: The index of the epoch that is trained next; None if the `fit` resumes from a
                snapshot, so that `load_state_dict` does it.
        """
        callbacks = self._with_held(callbacks)
        for callback in callbacks:
            if _writes_rows(callback):
                rewind_rows_of_later_fits(callback, epoch)

    def state_dict(self, callbacks: Sequence[keras.callbacks.Callback]) -> list[State]:
        """Returns the states of the callbacks that may have a state, in their order.

        The state of a user's callback that has no method `state_dict` consists of the attributes
        that have changed during training. If some of them can't be saved, a warning lists them,
        once for each callback.

        Returns:
            A dict for each such callback. "callback" is the callback's name, and
            "marks" tells it from others of its class. "state" is the result of its `state_dict` or,
            for a callback of Keras, what kfit has read from it; it may be None. "attributes" is the
            list of the attributes that have changed, which may be empty.

        Raises:
            TypeError: If the `state_dict` of a callback returned neither a dict nor None.
            ValueError: If a state contains a value that can't be saved. The message names the
                callback and the key.
        """
        callbacks = self._with_held(callbacks)
        states = []
        for name, _, callback in named(callbacks):
            state = _state_of(callback)
            if isinstance(callback, keras.callbacks.History) and state is not None:
                state = self._of_history(name, state)
            if not isinstance(state, dict | None):
                raise TypeError(f"`{name}.state_dict` must return a dict. It returned: {state!r}")
            attributes = self._attributes_of(name, callback)
            # An entry without state keeps the place of a callback among others of its class.
            if state is not None or id(callback) in self._attributes:
                try:
                    split(state)
                except ValueError as error:
                    raise ValueError(
                        f"The state of the callback {name} can't be saved: {error}"
                    ) from error
                marks = marks_of(callback)
                states.append(
                    {"callback": name, "marks": marks, "state": state, "attributes": attributes}
                )
        return states

    def _of_history(self, name: str, state: State) -> State:
        """Returns the state of a History without objects that hooks have put into the logs.

        The first time, a warning names them.

        Args:
            name: The name of the callback.
            state: The state of the History.
        """
        kept = without_others(state["history"])
        left = [key for key, old in state["history"].items() if _lacks(kept.get(key), old)]
        if left and name not in self._warned:
            self._warned.add(name)
            warn_user(
                f"A hook has put {listed(left)} into the logs, which is no number, string or array "
                "and is not saved: after a restart the History has None for the epochs before."
            )
        return {**state, "history": kept}

    def _attributes_of(self, name: str, callback: keras.callbacks.Callback) -> list[State]:
        """Returns the attributes of a callback that have changed since training began.

        If some of them can't be saved, a warning lists these attributes, once for each callback.

        Args:
            name: The name of the callback, for the warning.
            callback: The callback.

        Returns:
            A list of entries for the snapshot, one for each changed attribute that can be saved.
        """
        attributes = self._attributes.get(id(callback))
        if attributes is None:
            return []
        with attributes.one_look():
            unsaved, state = attributes.unsaved(), attributes.state_dict()
        if unsaved and name not in self._warned:
            self._warned.add(name)
            warn_user(
                f"The state of the callback {name} is not saved whole: {listed(unsaved)} "
                "changed during training, and is not a number, string or array, or a plain list or "
                f"dict of these. {_remedy(callback)}"
            )
        return state

    def check(self, callbacks: Sequence[keras.callbacks.Callback], states: Sequence[State]) -> None:
        """Checks that states which were read from a file can be those of the callbacks.

        The states of callbacks that define `load_state_dict` are theirs. But such a callback may
        also define `check_state_dict`, which gets the state and raises an error if it cannot be
        one. A snapshot with such a state counts as damaged, and the one before is taken. What a
        subclass of the user's keeps in the attributes of Keras' callbacks, or adds to the state of
        another callback, is not checked.

        Args:
            callbacks: The callbacks, in their order. Callbacks without a state are skipped, as are
                states without a callback.
            states: The states in the snapshot.

        Raises:
            Exception: If a state cannot be that of its callback.
        """
        callbacks = self._with_held(callbacks)
        for (name, _, callback), entry in assigned(callbacks, states)[0]:
            if entry is None or entry["state"] is None:
                continue
            state, place = entry["state"], f"the state of the callback {name}"
            if _says(name, callback):
                if _checks_its_state(type(callback)):
                    callback.check_state_dict(state)
            elif _writes_rows(callback):
                check_rows(state, place)
            elif _writes_events(callback):
                check_events(state, place)
            elif type(callback).__module__.partition(".")[0] == "keras":
                record({}, may={**_remembered(callback), _RESUMED_AT: each(number)})(state, place)

    def prepare(
        self, callbacks: Sequence[keras.callbacks.Callback], states: Sequence[State]
    ) -> None:
        """Lets CSVLogger and TensorBoard continue the files of the training that is resumed.

        Called before `on_train_begin`. A CSVLogger then appends to its file until `end` is called.
        A TensorBoard continues with the mark (a part of the names of event files) that it had in
        that training.

        Args:
            callbacks: The callbacks, in their order.
            states: The states in the snapshot, which `state_dict` returned on the chief.
        """
        callbacks = self._with_held(callbacks)
        for (_, _, callback), entry in assigned(callbacks, states)[0]:
            if _writes_rows(callback):
                self._appending.append((callback, callback.append, callback.append_header))
                callback.append = True
            elif _writes_events(callback) and entry and entry["state"]:
                files = take_up_events(callback, entry["state"]["mark"])
                self._event_files[id(callback)] = files

    def load_state_dict(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        states: Sequence[State],
        *,
        epoch: int | None,
        warn: bool = True,
    ) -> None:
        """Restores the states of the callbacks from a snapshot; called after `on_train_begin`.

        What CSVLogger and TensorBoard wrote to their files after the snapshot is removed, since
        training will write it again. If no epoch follows, a CSVLogger keeps its rows.

        Args:
            callbacks: The callbacks, in their order.
            states: The states in the snapshot, which `state_dict` returned on the chief.
            epoch: The index of the epoch that is trained next; None if this training is over.
            warn: Whether to warn about callbacks without a saved state, which begin anew, and about
                saved states without a callback. Only the chief should warn, since the other tasks
                do not have the callbacks that write files.
        """
        callbacks = self._with_held(callbacks)
        found, left = assigned(callbacks, states)
        for (name, _, callback), entry in found:
            if entry is not None:
                if entry["state"] is not None:
                    self._load(callback, with_scalars(entry["state"]), epoch)
                self._load_attributes(callback, entry["attributes"])
            elif warn and _state_of(callback) is not None:
                warn_user(f"The snapshot has no state of the callback {name}; it begins anew.")
            else:  # no state was saved, since no attribute had changed
                self._load_attributes(callback, [])
        for entry in left if warn else ():
            if entry["state"] is None and not entry["attributes"]:
                continue
            marks = ", ".join(f"{name}={mark!r}" for name, mark in entry.get("marks", {}).items())
            called = f"{entry['callback']} with {marks}" if marks else entry["callback"]
            warn_user(
                f"The snapshot has a state of the callback {called}, which is not among the "
                "callbacks any more."
            )

    def note_resume(
        self, callbacks: Sequence[keras.callbacks.Callback], epochs_done: float
    ) -> None:
        """Records in each History that training resumes here, in its list `resumed_at`.

        Args:
            callbacks: The callbacks, whose states have been restored.
            epochs_done: How many epochs are done, with the done part of the current one.
        """
        for callback in callbacks:
            if isinstance(callback, keras.callbacks.History):
                callback.resumed_at = [*getattr(callback, _RESUMED_AT, []), epochs_done]

    def end(self) -> None:
        """Restores the settings of each CSVLogger that `prepare` changed.

        Called when `fit` ends, since the program may use the callbacks again. If it has failed, the
        writer of a TensorBoard is still the default one of `tf.summary`, and is given up.
        """
        for board in self._boards:
            leave_writers(board)
        while self._appending:
            callback, *settings = self._appending.pop()
            callback.append, callback.append_header = settings

    def _with_held(
        self, callbacks: Sequence[keras.callbacks.Callback]
    ) -> list[keras.callbacks.Callback]:
        """Returns the callbacks, followed by the writers of files that some of them hold."""
        return [*callbacks, *self._held]

    def _load_attributes(self, callback: Any, state: list[State]) -> None:
        if id(callback) in self._attributes:
            self._attributes[id(callback)].load_state_dict(state)

    def _load(self, callback: Any, state: State, epoch: int | None) -> None:
        if _says(type(callback).__name__, callback):
            callback.load_state_dict(state)
        elif _writes_rows(callback):
            rewind_rows(callback, state, epoch)
        elif _writes_events(callback):
            set_counted_batches(callback, state["train_batch"], state["test_batch"])
            rewind_events(callback, self._event_files.pop(id(callback), None), state)
            record_by_count(callback)
        else:
            for attribute in _remembered(callback):
                if attribute in state:
                    put(vars(callback), attribute, state[attribute])  # in place, if others hold it
            if state.get("best") is not None:
                choose_comparison(callback)
        if isinstance(callback, keras.callbacks.History):
            callback.resumed_at = state.get(_RESUMED_AT, [])
            callback.model.history = callback


def _writes_rows(callback: Any) -> bool:
    """Returns whether a callback is a CSVLogger that writes, as on the chief."""
    return isinstance(callback, keras.callbacks.CSVLogger) and not writes_elsewhere(callback)


def _writes_events(callback: Any) -> bool:
    """Returns whether a callback is a TensorBoard of Keras that writes, as on the chief."""
    return isinstance(callback, keras.callbacks.TensorBoard) and not writes_elsewhere(callback)


def _held_writers(callbacks: Sequence[keras.callbacks.Callback]) -> list[Any]:
    """Returns the CSVLoggers and TensorBoards that callbacks hold, such as in a `CallbackList`."""
    seen, waiting = set(map(id, callbacks)), list(callbacks)
    found: list[Any] = []
    while waiting:
        for value in vars(waiting.pop(0)).values():
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, keras.callbacks.Callback) and id(one) not in seen:
                    seen.add(id(one))
                    waiting.append(one)
                    if _writes_rows(one) or _writes_events(one):
                        found.append(one)
    return found


def _state_of(callback: Any) -> Any:
    if _says(type(callback).__name__, callback):
        return callback.state_dict()
    if _writes_rows(callback):
        return rows_of(callback)
    if _writes_events(callback):
        return events_of(callback)
    names = [*_remembered(callback)]
    if isinstance(callback, keras.callbacks.History):
        names.append(_RESUMED_AT)
    return {name: getattr(callback, name) for name in names if hasattr(callback, name)} or None


def _lacks(kept: Any, old: Any) -> bool:
    """Returns whether `without_others` has left out a value of a History, or a part of it."""
    if not isinstance(old, list):
        return kept is None is not old
    return any(new is None is not before for new, before in zip(kept, old, strict=True))


def _remembered(callback: keras.callbacks.Callback) -> dict[str, Check]:
    """Returns the attributes that are the state of one of Keras' own callbacks, with their checks.

    The result is {} for any other callback, and for a callback of Keras without such attributes.
    """
    return next((names for kind, names in _REMEMBERS if isinstance(callback, kind)), {})


def _says(name: str, callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback defines its state with `state_dict` and `load_state_dict`.

    Args:
        name: The name of the callback, for the error message.
        callback: The callback.

    Raises:
        ValueError: If the callback has only one of these methods.
    """
    methods = ("state_dict", "load_state_dict")
    has = [callable(getattr(callback, method, None)) for method in methods]
    if any(has) and not all(has):
        there, missing = methods if has[0] else reversed(methods)
        raise ValueError(
            f"The callback {name} has `{there}` and not `{missing}`: it needs both to resume after "
            "a restart, or neither."
        )
    return all(has)


def _remedy(callback: keras.callbacks.Callback) -> str:
    """Returns what the user can do if a value that a callback changes cannot be saved."""
    if type(callback).__module__.partition(".")[0] in ("keras", "kfit"):
        return (
            "Count in attributes of an object of yours instead, or in a callback of yours that "
            "defines `state_dict` and `load_state_dict`."
        )
    return (
        "Define `state_dict` and `load_state_dict` in the callback; they may save whatever it "
        "needs after a restart, or nothing."
    )


def _checks_its_state(kind: type) -> bool:
    """Returns whether the `check_state_dict` of a class knows the state of its `state_dict`.

    It does not if only a base class defines it, and the class has a `state_dict` of its own.
    """
    for cls in kind.__mro__:
        if "check_state_dict" in vars(cls):
            return True
        if "state_dict" in vars(cls):
            return False
    return False
