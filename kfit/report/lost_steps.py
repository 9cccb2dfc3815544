"""How many steps the earlier attempts of a run have lost.

`kfit run` restarts tasks that have died. It tells each attempt which step of which `fit` every
earlier attempt has reached, since a task that was killed cannot tell it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfit.heartbeat.reached import Reached
from kfit.supervisor.restarts import REACHED, heard


@dataclass(frozen=True)
class Attempt:
    """An attempt of a run, which the supervisor (`kfit run`) has started.

    Attributes:
        run: The ID of the run; None without a supervisor.
        generation: The number of the attempt, from 0.
        reached: The last step that each earlier attempt has reached, and of which `fit`.
    """

    run: str | None
    generation: int
    reached: tuple[Reached, ...]

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Attempt:
        """Returns the attempt to which this process belongs.

        Args:
            environ: The environment variables.
        """
        generation = int(environ.get("KFIT_GENERATION", "0"))
        return cls(environ.get("KFIT_RUN"), generation, heard(environ.get(REACHED, "")))

    def state_dict(self, fit: int = 0) -> dict[str, Any]:
        """Returns what a snapshot records of the attempt that writes it.

        Args:
            fit: The number in the program of the `fit` that is saved.
        """
        return {"run": self.run, "generation": self.generation, "fit": fit}

    def fit_of(self, kept: Mapping[str, Any]) -> int | None:
        """Returns the number in the program of the `fit` that a snapshot was taken of.

        Args:
            kept: What `state_dict` has returned for the snapshot.

        Returns:
            The number; None if it is not known, since another run has written the snapshot.
        """
        return kept.get("fit") if self._is_of(kept) else None

    def starts_since(self, kept: Mapping[str, Any]) -> int:
        """Returns how often the training was started after a snapshot, this start included.

        Args:
            kept: What `state_dict` has returned for the snapshot.
        """
        return max(1, self.generation - kept.get("generation", 0)) if self._is_of(kept) else 1

    def lost_since(self, kept: Mapping[str, Any], step: int) -> int | None:
        """Returns the number of steps that earlier attempts have taken after a snapshot.

        Args:
            kept: What `state_dict` has returned for the snapshot.
            step: The step of the snapshot.

        Returns:
            The number; None if it is not known, since another run has written the snapshot, no
            supervisor has started this process, or an attempt had come to a later `fit`.
        """
        first, fit = kept.get("generation", 0), kept.get("fit", 0)
        since = self.reached[first : self.generation]
        is_known = len(self.reached) >= self.generation and all(each.fit <= fit for each in since)
        if not self._is_of(kept) or not is_known:
            return None
        return sum(max(0, each.step - step) for each in since if each.fit == fit)

    def _is_of(self, kept: Mapping[str, Any]) -> bool:
        return self.run is not None and kept.get("run") == self.run
