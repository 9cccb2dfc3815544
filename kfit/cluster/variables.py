"""The environment variables of kfit, and those that are meant to be one but are misspelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kfit.lazy import closest_name

_PREFIX = "KFIT_"
VERIFY = "KFIT_VERIFY"
"""The variable that tells the process of a script what `kfit verify` is to verify, as JSON."""
FOR_USERS = frozenset(
    {
        "KFIT_ALLOCATOR",
        "KFIT_BACKUP_KEY",
        "KFIT_CLUSTER",
        "KFIT_INDEX",
        "KFIT_PORT",
        "KFIT_SECRET",
        "KFIT_SEED",
        "KFIT_START_TIMEOUT",
        "KFIT_WORKERS",
    }
)
"""The variables that users and platforms set."""
OF_TASKS = frozenset(
    {
        "KFIT_ASIDE",
        "KFIT_BESIDE",
        "KFIT_CPUS",
        "KFIT_FAULT",
        "KFIT_FAULT_TESTS",
        "KFIT_GENERATION",
        "KFIT_HEARTBEAT",
        "KFIT_REACHED",
        "KFIT_RESTARTS",
        "KFIT_RUN",
        "KFIT_STARTED_BY",
        "KFIT_TERMINAL_WIDTH",
        VERIFY,
    }
)
"""The variables that kfit itself sets, for its tasks and its tests."""
# Kubernetes adds variables such as KFIT_SERVICE_HOST for a service that is named "kfit", and a
# program may have its own. So only a name that is much like one of kfit's is taken for a mistake.
_LIKENESS = 0.7


def misspelled_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Finds the variables whose names are almost those of kfit's, which ignores them.

    Args:
        environ: The environment variables.

    Yields:
        The name of such a variable, and the name that was probably meant.
    """
    meant = {name.removeprefix(_PREFIX): name for name in FOR_USERS}
    for name in sorted(environ):
        if name.upper().startswith(_PREFIX) and name not in FOR_USERS | OF_TASKS:
            alike = closest_name(name.upper().removeprefix(_PREFIX), meant, likeness=_LIKENESS)
            if alike is not None:
                yield name, meant[alike]
