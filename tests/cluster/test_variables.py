"""Variables of the environment that are almost those of kfit."""

import re
from pathlib import Path

import pytest

from kfit.cluster.variables import FOR_USERS, OF_TASKS, misspelled_variables

ROOT = Path(__file__).parents[2]


def test_every_variable_of_the_sources_is_known() -> None:
    sources = [
        path for room in ("kfit", "callbacks", "datasets") for path in (ROOT / room).rglob("*.py")
    ]
    named = {name for path in sources for name in re.findall("KFIT_[A-Z_]+", path.read_text())}
    example = {"KFIT_SERVICE_HOST"}  # what Kubernetes sets
    assert named - example == FOR_USERS | OF_TASKS


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KFIT_WORKER", "KFIT_WORKERS"),
        ("KFIT_IDX", "KFIT_INDEX"),
        ("KFIT_TIMEOUT", "KFIT_START_TIMEOUT"),
        ("kfit_seed", "KFIT_SEED"),
        ("KFIT_SEED", None),
        ("KFIT_CPUS", None),
        ("KFIT_SERVICE_HOST", None),
        ("KFIT_SERVICE_PORT", None),
        ("KFIT_PORT_80_TCP_ADDR", None),
        ("KFIT_DATA_FOLDER", None),
        ("WORKERS", None),
    ],
)
def test_which_are_misspelled(name: str, meant: str | None) -> None:
    assert dict(misspelled_variables({name: "1"})) == ({} if meant is None else {name: meant})
