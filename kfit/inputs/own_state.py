"""Saves and restores the state of a source of batches: a PyDataset, a generator or a loader.

The source's own methods, such as `state_dict`, or those of its iterator are used. If there are
none, the source's attributes are saved and restored (`kfit.objects.Attributes`).
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from kfit.distribute.host_collectives import HostCollectives
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs.reader import Mark
from kfit.objects import Attributes
from kfit.objects.attributes import listed
from kfit.objects.values import decode, encode, from_bytes, is_plain, to_bytes

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
"""Names of methods that save and restore a state: Keras', torch's and kfit's; then grain's."""


class OwnState:
    """The state of a source of batches, which is saved in snapshots of the training.

    Args:
        source: The user's PyDataset, generator or loader.
        with_attributes: Whether to save the source's attributes if the source has no methods to
            save and restore its state.

    Raises:
        ValueError: If the source has only one of `state_dict` and `load_state_dict`.
    """

    def __init__(self, source: Any, *, with_attributes: bool) -> None:
        self._source = source
        self._has_attributes = with_attributes and hasattr(source, "__dict__")
        self._says: Any = source if _methods(source) else None
        self._attributes: Attributes | None = None
        self._foreign: Collection[int] = ()
        self._settled: tuple[Any, Any] | None = None
        self._has_warned = False

    @property
    def is_said(self) -> bool:
        """Whether the user's data says its state itself, by `state_dict` and `load_state_dict`.

        These may be methods of the source (the user's PyDataset, generator or loader) or of its
        iterator. The methods `get_state` and `set_state` count, too. If there are no such methods,
        the state is not said; the values of the source's attributes may then be saved instead.
        """
        return self._says is not None

    @property
    def is_said_by_source(self) -> bool:
        """Whether the source, and not only its iterator, says its state (see `is_said`).

        The source is the user's PyDataset, generator or loader.
        """
        return self._says is not None and self._says is self._source

    def begin(self, foreign: Collection[int]) -> None:
        """Begins to record the source's state, for snapshots.

        The method is called before any data is read, if a callback may save or restore snapshots.
        If the source has no methods for its state, the values of its attributes are read now. A
        snapshot later contains the attributes whose values have changed since.

        Args:
            foreign: Ids (as of `id`) of objects to which the source may refer, but which are not
                part of its state, such as the model.

        Raises:
            ValueError: If the source's own `state_dict` returns values that cannot be saved.
        """
        self._foreign = foreign
        if self._says is None and self._has_attributes:
            self._attributes = Attributes(self._source, foreign=foreign)
        self.small()  # called now so that errors are raised early

    def follow(self, iterator: Any) -> None:
        """Records a new iterator of the source, which may have methods for its state.

        These methods, such as `state_dict`, are used if the source itself has none.
        """
        if iterator is not self._source and (self._says is None or self._says is not self._source):
            self._says = iterator if _methods(iterator) else None

    def settle(self) -> None:
        """Reads all attributes of the source, also those too large to be read after each batch.

        The method is called when the reading of the data begins, while no batch is being drawn.
        Later only small attributes are read after each batch (`small`). `state_dict` computes the
        full state after a batch from the values of both readings. If attributes are not saved, the
        method does nothing.
        """
        if self._attributes is not None and self._says is None:
            self._settled = self._looked_at(self._attributes), self._attributes.small()

    def small(self) -> Any:
        """Returns the part of the source's state that is fast enough to read after each batch.

        The method is called whenever a batch was drawn. If the source or its iterator has a method
        such as `state_dict`, the result is everything that `state_dict` returns, in the form in
        which a snapshot saves it, whatever its size. Otherwise the result is a dict with the values
        of the source's small attributes. It is None if no attributes are recorded.

        Raises:
            ValueError: If the source's method returns values that cannot be saved.
        """
        if self._says is not None:
            state = getattr(self._says, _methods(self._says)[0])()
            if not is_plain(state):
                raise ValueError(
                    f"`x`: the state of {type(self._says).__name__} must be made of numbers, "
                    f"strings, None, arrays, lists and dicts, to be saved. Received: {state!r}"
                )
            return encode(copy.copy(state))
        return None if self._attributes is None else self._attributes.small()

    def state_dict(self, mark: Mark | None) -> dict[str, Any]:
        """Returns the state of the source after the last batch that was trained on.

        Args:
            mark: The states recorded after that batch, if further batches were drawn ahead.
                Otherwise None: the present state is the right one.
        """
        if self._says is not None:
            return {"said": self.small() if mark is None else mark.own}
        if self._attributes is None:
            return {}
        if mark is None or self._settled is None:
            return {"own": self._looked_at(self._attributes)}
        return {"own": self._attributes.with_small(*self._settled, mark.own)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of the source, or of its iterator.

        Raises:
            ValueError: If the state has an unknown form.
        """
        if "said" in state and self._says is not None:
            getattr(self._says, _methods(self._says)[1])(decode(state["said"]))
        elif "own" in state:
            attributes = self._attributes or Attributes(self._source, foreign=self._foreign)
            attributes.load_state_dict(state["own"])

    def _looked_at(self, attributes: Attributes) -> list[dict[str, Any]]:
        """Returns the state of the source's attributes, and warns of those that can't be saved.

        The state contains small and large attributes. The warning is given at most once, and names
        the attributes that have changed but can't be saved.

        Args:
            attributes: The attributes of the source.
        """
        with attributes.one_look():
            # What the source makes when it is first read is there before a state is restored.
            unsaved = [] if self._has_warned else attributes.unsaved(made_late=False)
            state = attributes.state_dict()
        if unsaved:
            self._has_warned = True
            self._warn_of(unsaved)
        return state

    def _warn_of(self, unsaved: list[str]) -> None:
        warn_user(
            f"`x`, a {type(self._source).__name__}, changes {listed(unsaved)} in training, "
            "which is no number, string, array (of up to 64 MB) or plain list or dict of these, "
            "and not saved: after a restart it begins as the program makes it. Give `x` the "
            "methods `state_dict` and `load_state_dict`, which save what of it matters."
        )

    def share(self, host_collectives: HostCollectives) -> None:
        """Copies state of the chief's source to all workers, so that all make the same batches.

        The chief is the first worker. The random generators and the orders in the source's
        attributes are copied. An order is an array or list that is a permutation of 0 to n - 1. If
        the source has methods for its state, such as `state_dict`, nothing is copied.

        The method is a collective: all tasks must call it.
        """
        if self._says is not None or not self._has_attributes:
            return
        attributes = Attributes(self._source, foreign=self._foreign)
        state = from_bytes(host_collectives.content(to_bytes(attributes.state_dict())))
        attributes.load_state_dict(state, is_shared=True)


def _methods(value: Any) -> tuple[str, ...]:
    """Returns the names of the methods by which an object saves and restores its state.

    Returns:
        A pair of names, such as `state_dict` and `load_state_dict`, or an empty tuple if the object
        has no such methods.

    Raises:
        ValueError: If the object has only one of `state_dict` and `load_state_dict`.
    """
    for names in _METHODS:
        has = [callable(getattr(value, name, None)) for name in names]
        if all(has):
            return names
        if any(has) and names == _METHODS[0]:
            there, missing = names if has[0] else reversed(names)
            raise ValueError(
                f"`x`, a {type(value).__name__}, has `{there}` and not `{missing}`: it needs both "
                "to go on after a restart, or neither."
            )
    return ()
