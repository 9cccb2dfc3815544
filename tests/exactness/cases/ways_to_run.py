"""Ways to run the steps of a model."""

from typing import Any

from tests.exactness.cases.data import regression
from tests.exactness.cases.models import regressor
from tests.exactness.cases.registry import case


@case
def compiled_by_xla(n: int) -> Any:
    return regressor(jit_compile=True), regression(n)


@case
def run_eagerly(n: int) -> Any:
    return regressor(run_eagerly=True), regression(n)
