"""Saves and restores the state of a source of batches: a PyDataset, a generator or a loader.

It uses the source's own methods, such as `state_dict`, or those of its iterator; without these, it
uses the source's attributes (`kfit.objects.Attributes`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection
from typing import Any

from kfit.distribute.host_collectives import HostCollectives
from kfit.inputs.reader import Mark
from kfit.objects import Attributes
from kfit.objects.attributes import listed
from kfit.objects.values import decode, encode, from_bytes, is_plain, to_bytes

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
"""Names of methods that save and restore a state: Keras', torch's and kfit's; then grain's."""


class OwnState:
    """The state of one source of batches, which can be saved and restored.

    Args:
        source: A PyDataset, a generator or a loader.
        with_attributes: Whether to save the source's attributes if it has no methods to save and
            restore its state.

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
        """Whether the source, or its iterator, has methods to save and restore its state."""
        return self._says is not None

    @property
    def is_said_by_source(self) -> bool:
        """Whether the source, and not only its iterator, has methods for its state (`is_said`)."""
        return self._says is not None and self._says is self._source

    def begin(self, foreign: Collection[int]) -> None:
        """Notes the present attributes: those that change from now on are saved as state.

        Args:
            foreign: Ids (as of `id`) of objects that are not state of the source.
        """
        self._foreign = foreign
        if self._says is None and self._has_attributes:
            self._attributes = Attributes(self._source, foreign=foreign)
        self.small()  # called now so that errors are raised early

    def follow(self, iterator: Any) -> None:
        """Notes the source's new iterator, whose methods are used if the source itself has none."""
        if iterator is not self._source and (self._says is None or self._says is not self._source):
            self._says = iterator if _methods(iterator) else None

    def settle(self) -> None:
        """Reads the state of all attributes, even large ones, for `state_dict` to use later.

        Call it while no batch is being drawn.
        """
        if self._attributes is not None and self._says is None:
            self._settled = self._looked_at(self._attributes), self._attributes.small()

    def small(self) -> Any:
        """Returns the state that may change with each batch.

        It is what the source's own method (`state_dict`, ...) returns or, without such a method,
        the values of its small attributes.

        Raises:
            ValueError: If the method returns values that cannot be saved.
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
        """Returns the state of the source.

        Args:
            mark: What was recorded after the last batch that was trained on; None if no batch was
                drawn ahead, so that the present state is the right one.
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
        """Returns the state in attributes; warns once of what can't be saved."""
        with attributes.one_look():
            unsaved = [] if self._has_warned else attributes.unsaved()
            state = attributes.state_dict()
        if unsaved:
            self._has_warned = True
            self._warn_of(unsaved)
        return state

    def _warn_of(self, unsaved: list[str]) -> None:
        warnings.warn(
            f"`x`, a {type(self._source).__name__}, changes {listed(unsaved)} in training, "
            "which is no number, string, array (of up to 64 MB) or plain list or dict of these, "
            "and not saved: after a restart it begins as the program makes it. Give `x` the "
            "methods `state_dict` and `load_state_dict`, which save what of it matters.",
            stacklevel=2,
        )

    def share(self, host_collectives: HostCollectives) -> None:
        """Copies random generators and orders in attributes of the chief's source to all workers.

        An order is an array or list that is a permutation of 0 to n - 1. If the source has methods
        to save and restore its state, nothing is copied.

        It is a collective: all tasks must call it.
        """
        if self._says is not None or not self._has_attributes:
            return
        attributes = Attributes(self._source, foreign=self._foreign)
        attributes.load_state_dict(
            from_bytes(host_collectives.content(to_bytes(attributes.state_dict())))
        )


def _methods(value: Any) -> tuple[str, ...]:
    """Returns the names of the methods by which a value saves and restores its state.

    Returns:
        One of `_METHODS`, or an empty tuple if the value has no such methods.

    Raises:
        ValueError: If the value has only one of `state_dict` and `load_state_dict`.
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
