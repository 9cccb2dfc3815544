"""Options of `kfit.launch`: the resources that workers request from Ray, and their environment.

The options are checked here before any process is started.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True, kw_only=True)
class WorkerResources:
    """The resources that each worker of a launch requests from Ray, and how workers are placed.

    Attributes:
        cpus: The number of CPUs; None means 1.
        gpus: The number of GPUs; None means 0.
        resources: The amounts of other resources, by their names in Ray; or None.
        placement: Ray's strategy of placing the workers on nodes, such as "PACK"; None means the
            default.

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
        """Checks that none of the attributes is set; called for a launch without Ray.

        Raises:
            ValueError: If an attribute is set, since only Ray manages resources.
        """
        for field in fields(self):
            if getattr(self, field.name) is not None:
                raise ValueError(
                    f"`{field.name}` is {getattr(self, field.name)!r}, but `on` is 'local': only "
                    "Ray manages resources; leave it out, or launch on='ray'"
                )

    def bundle(self) -> dict[str, float]:
        """Returns the amounts that one worker requests, in the form that Ray needs.

        Ray calls this dict a bundle of a placement group.
        """
        wanted = {"CPU": 1 if self.cpus is None else self.cpus, "GPU": self.gpus or 0}
        wanted.update(self.resources or {})
        return {name: amount for name, amount in wanted.items() if amount}


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0


def environment_checked(env: Any) -> dict[str, str]:
    """Checks the environment variables that the user passes to `kfit.launch` for the workers.

    Args:
        env: A mapping from names to values, or None for no variables.

    Returns:
        The variables as a dict.

    Raises:
        ValueError: If a name or value is not a string, or cannot be that of a variable, or if the
            launch itself sets one of the variables.
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
    for name, value in found.items():
        if "=" in name or "\0" in name + value:
            raise ValueError(
                f"`env` sets {name!r} to {value!r}; expected a name without '=', and no '\\0'"
            )
    own = ("RUN", "GENERATION", "BESIDE", "HEARTBEAT", "CLUSTER", "SECRET")
    for name in ("TF_CONFIG", *(f"KFIT_{each}" for each in own)):
        if name in found:
            raise ValueError(f"`env` sets {name}, which the launch itself sets; leave it out")
    return found
