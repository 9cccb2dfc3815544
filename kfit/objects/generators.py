"""The global random generators of Python, NumPy and, if the program has imported them, others."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kfit.objects.eager_generators import NONE, EagerGenerators, require_table

if TYPE_CHECKING:
    from kfit.distribute.host_collectives import HostCollectives

_WORDS = 625
"""Words of a Mersenne Twister's state in Python's format; the last one is the position."""
_KEYS = _WORDS - 1
_PARTS = (_KEYS, 1, 1, 1, _KEYS, 1, 1, 1)
"""The lengths of the parts of `Generators.row`: of Python's generator the words, the position in
them, whether a normal number is left over, and this number; the same of NumPy's generator."""
ROW = _WORDS + 2 + 624 + 3
"""The length of the array that `Generators.row` returns."""


@dataclass(frozen=True)
class Generators:
    """The states of the global random generators at one moment; reading them takes about 50 µs.

    Attributes:
        python: The state of the module `random`.
        numpy: The state of the functions of `np.random`.
        torch: The state of torch's CPU generator, as bytes; None if torch is not imported.
        eager: The states of TensorFlow's and Keras' generators.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch: bytes | None
    eager: EagerGenerators = NONE

    @classmethod
    def now(cls) -> Generators:
        """Reads the current states of the generators."""
        _, keys, *rest = np.random.get_state()
        torch = sys.modules.get("torch")
        bits = None if torch is None else bytes(torch.get_rng_state().numpy())
        own = np.asarray(keys).tobytes(), *rest
        return cls(random.getstate(), own, bits, EagerGenerators.now())

    def give(self) -> None:
        """Sets the global generators to these states."""
        random.setstate(self.python)
        keys, *rest = self.numpy
        np.random.set_state(("MT19937", np.frombuffer(keys, "uint32"), *rest))
        torch = sys.modules.get("torch")
        if self.torch is not None and torch is not None:
            torch.set_rng_state(torch.from_numpy(np.frombuffer(self.torch, "uint8").copy()))
        self.eager.give()

    def row(self) -> np.ndarray:
        """Returns Python's and NumPy's states as one array, to send to other tasks.

        Returns:
            A float64 array with `ROW` items.
        """
        _, words, gauss = self.python
        keys, *rest = self.numpy
        parts = [words, [gauss is not None, gauss or 0.0], np.frombuffer(keys, "uint32"), rest]
        return np.concatenate(parts, dtype="float64")

    @classmethod
    def of_row(cls, row: np.ndarray, torch: Any = None, eager: Any = None) -> Generators:
        """Creates a `Generators` object from an array that `row` returned, perhaps on another task.

        Args:
            row: The array.
            torch: The state of torch's generator, as bytes or as an array of bytes; or None.
            eager: The array that `EagerGenerators.row` returned; or None.

        Raises:
            ValueError: If the array cannot be the states of generators.
        """
        check_rows(np.asarray(row)[None], "row")
        words, (has_gauss, gauss), keys, rest = np.split(
            np.asarray(row), [_WORDS, _WORDS + 2, ROW - 3]
        )
        position, has_normal, normal = rest
        return cls(
            (3, tuple(int(word) for word in words), float(gauss) if has_gauss else None),
            (keys.astype("uint32").tobytes(), int(position), int(has_normal), float(normal)),
            torch
            if torch is None or isinstance(torch, bytes)
            else bytes(np.asarray(torch, "uint8")),
            NONE if eager is None else EagerGenerators.of_row(eager),
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the states as arrays, which a snapshot can contain."""
        torch = None if self.torch is None else np.frombuffer(self.torch, "uint8")
        return {"row": self.row(), "torch": torch, "eager": self.eager.row()}

    @classmethod
    def of_state_dict(cls, state: dict[str, Any]) -> Generators:
        """Creates a `Generators` object from what `state_dict` returned."""
        return cls.of_row(state["row"], state["torch"], state.get("eager"))

    def share(self, host_collectives: HostCollectives) -> None:
        """Sets the generators of all workers to the states of the chief's, except for torch's.

        The chief is the first worker. The method is a collective: all tasks must call it.
        """
        row, eager = (host_collectives.all_gather(own)[0] for own in (self.row(), self.eager.row()))
        Generators.of_row(row, self.torch, eager).give()


def check_rows(rows: Any, place: str) -> None:
    """Checks that arrays can be states of generators, before these get them.

    Python and NumPy crash on positions that are none. And with no bit set (of those that count),
    NumPy draws a normal number for ever.

    Args:
        rows: An array with a row for each task, each as `Generators.row` returns it.
        place: What to call the array in the error message.

    Raises:
        ValueError: If they cannot.
    """
    require_table(rows, ROW, place)
    words, position, has_gauss, _, keys, numpy_position, has_normal, _ = np.split(
        rows, np.cumsum(_PARTS)[:-1], axis=1
    )
    whole = np.concatenate([words, keys], axis=1)
    if not (
        np.all((whole >= 0) & (whole < 1 << 32) & (whole == np.floor(whole)))
        and np.isin(np.concatenate([position, numpy_position]), range(_KEYS + 1)).all()
        and np.isin(np.concatenate([has_gauss, has_normal]), (0, 1)).all()
    ):
        raise ValueError(f"{place} cannot be the states of random generators")
    for own in (words, keys):
        if not np.all((own[:, 0] >= 1 << 31) | own[:, 1:].any(axis=1)):
            raise ValueError(f"{place} has a random generator that can only draw 0")
