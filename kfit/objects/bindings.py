"""Remembers which objects were where at the baseline, to tell when they are elsewhere or gone.

Random generators, variables and objects of the user's classes cannot be made from a file: a new
process has made its own, in the same places. So each is known by its home, which is the first of
the places where it was at the baseline. If a program has put one of them into another place, as by
`self.phase = self.main`, the state says which home the object in this place has; and if a place is
empty, the state says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kfit.objects.holders import has

Path = tuple[Any, ...]
IS = "is"
"""The key in an entry of a saved state that tells the home of the object at the entry's path."""
GONE = "gone"
"""The key in an entry of a saved state that tells that nothing is at the entry's path any more."""


class Bindings:
    """The places of an object at the baseline, and the objects in them that no file can hold.

    Args:
        objects: The paths of those objects that no file can hold, and the objects. An object may be
            at several paths.
        others: The paths of all other values.
    """

    def __init__(
        self, objects: Iterable[tuple[Path, Any]] = (), others: Iterable[Path] = ()
    ) -> None:
        self._held = dict(objects)  # keeps them alive, so that no other object gets their ids
        self._homes: dict[int, Path] = {}
        self._keys: dict[Path, dict[Any, None]] = {}
        for path, value in self._held.items():
            self._homes.setdefault(id(value), path)
        for path in (*self._held, *others):
            for end in range(1, len(path) + 1):
                self._keys.setdefault(path[: end - 1], {})[path[end - 1]] = None

    def knows(self, value: Any) -> bool:
        """Returns whether an object was already there at the baseline."""
        return id(value) in self._homes

    def home_of(self, value: Any, path: Path) -> Path:
        """Returns the home of an object; for one that has none, the path where it is now."""
        return self._homes.get(id(value), path)

    def homes(self) -> Iterator[tuple[Path, Any]]:
        """Yields the home of each object, and the object."""
        yield from ((path, self._held[path]) for path in self._homes.values())

    def at(self, path: Path) -> Any:
        """Returns the object that was at a path; None if there was none that no file can hold."""
        return self._held.get(path)

    def has_moved(self, path: Path, value: Any) -> bool:
        """Returns whether an object with a home was not at this path at the baseline."""
        return id(value) in self._homes and self._held.get(path) is not value

    def missing(self, path: Path, holder: Any) -> Iterator[Path]:
        """Yields the places in a holder that are empty now, and were not.

        Args:
            path: The path of the holder.
            holder: The `__dict__`, list, tuple or dict that is there now.
        """
        yield from ((*path, key) for key in self._keys.get(path, ()) if not has(holder, key))
