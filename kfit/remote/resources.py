"""The options of a launch's workers: the resources that they request from Ray, their environment.

Both are validated here before any process is started.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True, kw_only=True)
class WorkerResources:
    """The resources that each worker requests from Ray, and the strategy of placing the workers.

    The attributes are the arguments of `kfit.launch` with the same names.

    Raises:
        ValueError: If a value is not valid.
    """

    cpus: float | None = None
    gpus: float | None = None
    resources: Mapping[str, float] | None = None
    placement: str | None = None

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus"):
            value = getattr(self, name)
            if value is not None and not _is_amount(value):
                raise ValueError(
                    f"`{name}` is {value!r}; expected a number from 0 up, for a worker"
                )
        if self.resources is not None and not (
            isinstance(self.resources, Mapping)
            and all(isinstance(name, str) for name in self.resources)
            and all(_is_amount(value) for value in self.resources.values())
        ):
            raise ValueError(
                f"`resources` is {self.resources!r}; expected a dict of Ray's names to amounts, as "
                "in {'fast_disk': 1}"
            )
        for name, argument in (("CPU", "cpus"), ("GPU", "gpus")):
            if name in (self.resources or {}):
                raise ValueError(f"`resources` holds {name!r}; give `{argument}` instead")
        if self.placement not in (None, *_PLACEMENTS):
            raise ValueError(f"`placement` is {self.placement!r}; expected one of {_PLACEMENTS}")

    def refuse_any(self) -> None:
        """Checks that no resource is given, for a launch that does not use Ray.

        Raises:
            ValueError: If one is given.
        """
        for field in fields(self):
            if getattr(self, field.name) is not None:
                raise ValueError(
                    f"`{field.name}` is {getattr(self, field.name)!r}, but `on` is 'local': only "
                    "Ray manages resources; leave it out, or launch on='ray'"
                )

    def bundle(self) -> dict[str, float]:
        """Returns the resources of one worker as a bundle of a Ray placement group."""
        wanted = {"CPU": 1 if self.cpus is None else self.cpus, "GPU": self.gpus or 0}
        wanted.update(self.resources or {})
        return {name: amount for name, amount in wanted.items() if amount}


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0


def environment_checked(env: Any) -> dict[str, str]:
    """Returns `env` as a dict; an empty one for None.

    Raises:
        ValueError: If its names or values are not strings, or it has a variable that the launch
            sets itself.
    """
    env = {} if env is None else env
    try:
        found = dict(env)
    except (TypeError, ValueError):
        found = {"": None}
    if not all(isinstance(text, str) and text for text in found) or not all(
        isinstance(text, str) for text in found.values()
    ):
        raise ValueError(
            f"`env` is {env!r}; expected a dict of environment variables (strings to strings), as "
            "in {'KERAS_HOME': '/data'}"
        )
    own = ("RUN", "GENERATION", "BESIDE", "HEARTBEAT", "CLUSTER")
    for name in ("TF_CONFIG", *(f"KFIT_{each}" for each in own)):
        if name in found:
            raise ValueError(f"`env` sets {name}, which the launch itself sets; leave it out")
    return found
