"""Where `KFIT_NO_SKIPS` says that tests must run, one that is skipped is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeps import only

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.fixture
def browser():
    pytest.skip("needs a browser")

def test_skipped(browser): ...

@pytest.mark.xfail(strict=True)
def test_known_to_fail():
    raise ValueError

def test_passes(): ...
"""


@pytest.mark.parametrize(
    ("variable", "code"),
    only([({"KFIT_NO_SKIPS": "1"}, 1)], [({}, 0), ({"KFIT_NO_SKIPS": "1"}, 1)]),
)
def test_a_skipped_test_is_a_failure_if_it_must_run(
    variable: dict[str, str], code: int, tmp_path: Path
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_bytes((ROOT / "tests" / "conftest.py").read_bytes())
    environ = {name: value for name, value in os.environ.items() if name != "KFIT_NO_SKIPS"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=tmp_path,
        env={**environ, **variable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert ("1 error" in done.stdout, "1 skipped" in done.stdout) == (bool(code), not code)
    assert "1 passed" in done.stdout
    assert "1 xfailed" in done.stdout
