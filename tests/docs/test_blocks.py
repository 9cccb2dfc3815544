"""Every Python block of the README and of docs/ runs as it is printed; of a diff, the new lines.

Each block is a program of its own, in an empty folder; a long one runs in a process of its own.
What a page takes as given (`model`, `x`, ...) comes from `GIVEN`, as lines before the block. A
block that cannot run here, or not in this process, has a comment above its first line on the page:

    <!-- not run: needs a GPU -->
    <!-- long: starts two processes -->
"""

import ast
import re
import runpy
import subprocess
import symtable
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import kfit

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (not run|long): ([^\n]+?) -->\n)?^```(python|diff)\n(.*?)^```$", re.M | re.S
)

GIVEN = {
    "keras": "import keras",
    "kfit": "import kfit",
    "np": "import numpy as np",
    "os": "import os",
    "tf": "import tensorflow as tf",
    "x": "import numpy as np; x = np.random.default_rng(1).random((2560, 4), 'float32')",
    "y": "import numpy as np; y = np.random.default_rng(2).random((2560, 1), 'float32')",
    "x_test": "import numpy as np; x_test = np.ones((40, 4), 'float32')",
    "y_test": "import numpy as np; y_test = np.ones((40, 1), 'float32')",
    "build": """
def build():
    import keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model
""",
    "build_model": "{build}\nbuild_model = build",
    "make_model": "{build}\nmake_model = build",
    "model": "{build}\nmodel = build()",
    "base": "{model}\nbase = model",
    "trainer": "import kfit\n{model}\ntrainer = kfit.Trainer(model, 'one_device')\n"
    "trainer.compile('adam', 'mse', metrics=['mae'])",
    "history": "import matplotlib; matplotlib.use('agg')\n"
    "import kfit, keras\n{x}\n{y}\n{model}\n"
    "history = kfit.fit(model, x, y, batch_size=64, epochs=2, verbose=0, strategy='one_device',"
    " callbacks=[kfit.callbacks.TensorBoard('logs/run1')])\n"
    "history.history['accuracy'] = [0.5, 0.75]",
    "backup": "import kfit\nbackup = kfit.callbacks.BackupAndRestore('backup')",
    "dataset": "import tensorflow as tf\n{x}\n{y}\n"
    "dataset = tf.data.Dataset.from_tensor_slices((x, y))",
    "input_fn": "{dataset}\ninput_fn = lambda: dataset.batch(256)",
    "eval_input_fn": "{dataset}\neval_input_fn = lambda: dataset.batch(256).take(1)",
    "checkpoint": "import tensorflow as tf\ncheckpoint = tf.train.Checkpoint()",
    "train": """
def train():
    import kfit, keras
    (x, y), _ = kfit.datasets.digits.load_data()
    model = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return kfit.fit(model, x, y, batch_size=512, verbose=0)
""",
}
"""What a page takes as given: the code that makes it. `{name}` stands for the code of that name."""


class Block(NamedTuple):
    """A block of Python on a page."""

    page: Path
    line: int
    mark: str
    reason: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, from the first to the last."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(4)) + 1
        code = new_lines_of(found[4]) if found[3] == "diff" else found[4]
        yield Block(page, line, found[1] or "", found[2] or "", code)


def new_lines_of(diff: str) -> str:
    """The program that a diff leads to: what it adds, and what it leaves as it is."""
    lines = [line[1:] for line in diff.splitlines(keepends=True) if not line.startswith("-")]
    return textwrap.dedent("".join(lines))


def missing_names(code: str) -> list[str]:
    """The names of `GIVEN` that code reads before it makes them."""
    scopes = [symtable.symtable(code, "block", "exec")]
    for scope in scopes:  # which grows by the scopes inside
        scopes.extend(scope.get_children())
    top, *inner = scopes
    read = {each.get_name() for each in top.get_symbols() if each.is_referenced()}
    read |= {each.get_name() for scope in inner for each in scope.get_symbols() if each.is_global()}
    made = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    first = {node.id: node for node in sorted(names, key=_order, reverse=True)}
    made -= {name for name, node in first.items() if isinstance(node.ctx, ast.Load)}
    made |= {s.get_name() for s in top.get_symbols() if s.is_imported() or s.is_namespace()}
    return [name for name in GIVEN if name in read - made]


def _order(node: ast.Name) -> tuple[int, bool]:
    """When a name is used: in a line, what it assigns comes last."""
    return node.lineno, isinstance(node.ctx, ast.Store)


def given(name: str) -> str:
    """The code that makes a name."""
    return re.sub(r"\{(\w+)\}", lambda found: given(found[1]), GIVEN[name])


def program_of(block: Block) -> str:
    """The program that a block is, with what its page takes as given."""
    names = missing_names(block.code)
    kept = [name for name in names if name != "model" or not {"trainer", "base"} & set(names)]
    return "\n".join([*map(given, kept), block.code])


ALL = [block for page in PAGES for block in blocks_of(page)]


def blocks_with(mark: str) -> pytest.MarkDecorator:
    """Has a test run with each block that has a mark; each day with the first one of most pages."""
    blocks = [
        pytest.param(b, id=str(b), marks=() if is_daily(b) else pytest.mark.long)
        for b in ALL
        if b.mark == mark
    ]
    return pytest.mark.parametrize("block", blocks)


SELDOM = {"custom_steps", "start", "tensorboard", "trackers", "train_and_evaluate"}
"""Pages whose programs are like those of other daily tests."""


def is_daily(block: Block) -> bool:
    """Whether it is the first block without a mark on a page.

    Of the README these are the two lines of a diff: `tests/test_readme.py` runs its program daily.
    """
    first = next((each for each in ALL if each.page == block.page and not each.mark), None)
    return block == first and block.page.stem not in SELDOM


@blocks_with("")
def test_a_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(program_of(block), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        kfit.uninstall()


def test_the_custom_step_logs_its_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = blocks_of(ROOT / "docs/guides/custom_steps.md")
    Path("program.py").write_text(program_of(block), encoding="utf-8")
    ran = runpy.run_path("program.py")
    assert ran["trainer"].fit(ran["x"], ran["y"], verbose=0).history["loss"][0] > 0


@pytest.mark.long
@blocks_with("long")
def test_a_long_block_runs(block: Block, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(program_of(block), encoding="utf-8")
    subprocess.run([sys.executable, str(program)], check=True, cwd=tmp_path, timeout=600)


def test_every_block_is_python() -> None:
    for block in ALL:
        compile(block.code, str(block), "exec")


def test_no_fence_of_python_is_left_out() -> None:
    fences = sum(
        len(re.findall(r"^\s*(?:```|:::|~~~) ?\{?(?:python|py|diff)\b", page.read_text(), re.M))
        for page in PAGES
    )
    assert fences == len(ALL) > 25


def test_only_what_needs_more_than_this_host_is_not_run() -> None:
    reasons = {str(block): block.reason for block in ALL if block.mark == "not run"}
    assert len(reasons) < len(ALL) / 3
    assert [block for block, reason in reasons.items() if not reason.startswith("needs ")] == []
