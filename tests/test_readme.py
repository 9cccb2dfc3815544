"""The program and the commands of the README do what the README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def program() -> str:
    """The README's ten lines."""
    [found] = re.findall(r"```python\n(import kfit, keras\n\n.*?)```", README, re.DOTALL)
    return str(found)


def test_the_ten_lines_are_about_ten() -> None:
    lines = [line for line in program().splitlines() if line]
    assert len(lines) == 10
    assert max(map(len, lines)) <= 100


def test_the_ten_lines_train_a_good_model(tmp_path: Path) -> None:
    seeded = "import keras\nkeras.utils.set_random_seed(3)\n" + program()
    seeded += "\nprint('ACCURACY', trainer.evaluate(*test, verbose=0)[1])\n"
    done = subprocess.run(
        [sys.executable, "-c", seeded],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(re.findall(r"ACCURACY ([\d.]+)", done.stdout)[0]) > 0.95
    assert [path.name for path in tmp_path.iterdir()] == ["digits.keras"]


def test_there_is_one_command_that_runs_the_tests() -> None:
    pages = [README, *(path.read_text() for path in ROOT.glob("docs/**/*.md"))]
    pages.append((ROOT / "CONTRIBUTING.md").read_text())
    commands = {command for page in pages for command in re.findall(r"pytest -n *\w+", page)}
    assert commands == {"pytest -n 3"}
    assert 'pip install -e ".[test]" && pytest -n 3' in README
