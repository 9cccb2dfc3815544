"""An import may only point down: every module of kfit has a layer, every import is checked.

A new module of ``kfit/`` must be put into ``LAYER_OF``; that is the moment to think about where it
belongs. Imports inside functions and under ``TYPE_CHECKING`` count too: they are dependencies.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"kfit": "kfit", "kfit.callbacks": "callbacks", "kfit.datasets": "datasets"}

# Module -> layer. A package stands for all that is in it, unless a module of it has its own line.
LAYER_OF = {
    "kfit": "package",
    "kfit.__main__": "commands",
    "kfit.cli": "commands",
    "kfit.doctor": "doctor",
    "kfit.doctor.command": "commands",
    "kfit.manifest": "manifest",
    "kfit.manifest.command": "commands",
    "kfit.server": "commands",
    "kfit.usage": "usage",
    "kfit.quantities": "quantities",
    "kfit.launching": "launching",
    "kfit.launching.task": "commands",
    "kfit.foreign": "foreign",
    "kfit.model": "model",
    "kfit.trainer": "trainer",
    "kfit.evaluation": "evaluation",
    "kfit.loops": "loops",
    "kfit.file_template": "saving",
    "kfit.replacement": "saving",
    "kfit.saving": "saving",
    "kfit.beginning": "training",
    "kfit.which_fit": "training",
    "kfit.same_data": "training",
    "kfit.same_training": "training",
    "kfit.noted_failure": "training",
    "kfit.savepoints": "training",
    "kfit.signals": "training",
    "kfit.training": "training",
    "kfit.training_callback": "training",
    "kfit.allocator": "parts",
    "kfit.arguments": "parts",
    "kfit.building": "parts",
    "kfit.executions": "parts",
    "kfit.frozen": "parts",
    "kfit.graphs": "parts",
    "kfit.inputs": "parts",
    "kfit.jit": "parts",
    "kfit.logs": "parts",
    "kfit.predictions": "parts",
    "kfit.progress": "parts",
    "kfit.replica_step": "parts",
    "kfit.returned": "parts",
    "kfit.scheduled": "parts",
    "kfit.static_steps": "parts",
    "kfit.steps": "parts",
    "kfit.tracing": "parts",
    "kfit.writers": "parts",
    "kfit.heartbeat": "heartbeat",
    "kfit.objects": "objects",
    "kfit.checkpoint": "checkpoint",
    "kfit.fingerprints": "fingerprints",
    "kfit.exactness": "exactness",
    "kfit.distribute": "distribute",
    "kfit.cluster": "cluster",
    "kfit.distribute.serving": "cluster",
    "kfit.internals": "internals",
    "kfit.callbacks": "callbacks",
    "kfit.datasets": "datasets",
}

# Layer -> the layers it may import besides its own.
MAY_IMPORT = {
    "package": {
        "evaluation",
        "model",
        "trainer",
        "launching",
        "saving",
        "checkpoint",
        "distribute",
        "cluster",
        "callbacks",
        "datasets",
    },
    "commands": {
        "heartbeat",
        "package",
        "launching",
        "doctor",
        "manifest",
        "usage",
        "parts",
        "checkpoint",
        "distribute",
        "cluster",
    },
    "doctor": {"cluster"},
    "manifest": {"usage", "launching"},
    "usage": set(),
    "launching": {"quantities", "cluster", "heartbeat"},
    "model": {"internals", "trainer", "loops", "parts", "distribute", "cluster"},
    "trainer": {
        "internals",
        "loops",
        "saving",
        "training",
        "fingerprints",
        "parts",
        "checkpoint",
        "objects",
        "distribute",
        "quantities",
        "cluster",
        "heartbeat",
    },
    "evaluation": {
        "trainer",
        "callbacks",
        "training",
        "checkpoint",
        "saving",
        "foreign",
        "distribute",
        "quantities",
        "cluster",
    },
    "loops": {"internals", "training", "parts", "distribute", "cluster", "heartbeat"},
    "training": {
        "internals",
        "parts",
        "checkpoint",
        "fingerprints",
        "objects",
        "distribute",
        "cluster",
        "heartbeat",
    },
    "parts": {
        "internals",
        "exactness",
        "distribute",
        "objects",
        "quantities",
        "cluster",
        "heartbeat",
    },
    "fingerprints": {"internals", "distribute", "objects"},
    "checkpoint": {"distribute", "objects", "cluster", "foreign"},
    "exactness": {"internals", "distribute"},
    "distribute": {"internals", "quantities", "cluster", "heartbeat"},
    "internals": set(),
    "cluster": set(),
    "objects": set(),
    "quantities": set(),
    "heartbeat": set(),
    "foreign": set(),
    "saving": {"cluster", "foreign"},
    "callbacks": {"training", "checkpoint", "fingerprints", "saving", "foreign"},
    "datasets": set(),
}

# Layers that are imported before anybody knows whether TensorFlow is needed.
LIGHT = {
    "package",
    "commands",
    "doctor",
    "manifest",
    "usage",
    "launching",
    "cluster",
    "quantities",
    "heartbeat",
    "foreign",
    "datasets",
}
HEAVY = {"tensorflow", "keras", "tf_keras", "torch", "jax"}
NOT_A_NAME = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclass(frozen=True)
class Import:
    """One import: who imports what, where, and whether it runs when the module is imported."""

    source: str
    target: str
    line: int
    at_import: bool


def find_modules(root: Path) -> dict[str, Path]:
    """Returns every product module of a tree: dotted name as installed -> file."""
    modules = {}
    for package, folder in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            modules[".".join([package, *parts])] = path
    return modules


def imports_of(name: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    """Yields every import of one file, those inside functions and TYPE_CHECKING included."""

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise AssertionError(f"{path}:{node.lineno}: a relative import; write it in full")
            for alias in node.names:
                target = f"{node.module}.{alias.name}"
                known = target in modules or target in LAYER_OF
                target = target if known else str(node.module)
                yield Import(name, target, node.lineno, at_import)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_import = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, False)
            for child in node.orelse:
                yield from visit(child, at_import)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_import)

    yield from visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), True)


def layer_of(name: str) -> str | None:
    """Returns the layer of a module: its own line in the table, or that of a package above it."""
    while name not in LAYER_OF:
        name = name.rpartition(".")[0]
        if name in ("", "kfit"):
            return None
    return LAYER_OF[name]


def parents(name: str) -> list[str]:
    """Returns the packages that Python imports on the way to a module, and the module."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def path_to_heavy(start: str, edges: dict[str, list[Import]]) -> list[str] | None:
    """Returns the chain of imports by which importing ``start`` imports TensorFlow or Keras."""
    queue, seen = [[name] for name in parents(start)], set(parents(start))
    while queue:
        chain = queue.pop(0)
        for edge in edges.get(chain[-1], []):
            if not edge.at_import:
                continue
            if edge.target.split(".")[0] in HEAVY:
                return [*chain, edge.target]
            for name in parents(edge.target):
                if name not in seen:
                    seen.add(name)
                    queue.append([*chain, name])
    return None


def cycle_in(edges: dict[str, list[Import]]) -> list[str] | None:
    """Returns a chain of modules that import one another, if there is one."""
    done: set[str] = set()

    def walk(name: str, chain: list[str]) -> list[str] | None:
        if name in chain:
            return [*chain[chain.index(name) :], name]
        if name in done:
            return None
        for edge in edges.get(name, []):
            if edge.target in edges and (found := walk(edge.target, [*chain, name])):
                return found
        done.add(name)
        return None

    return next((found for name in sorted(edges) if (found := walk(name, []))), None)


def problems_of(root: Path) -> list[str]:
    """Returns what is wrong with the imports of a tree, one line each."""
    modules = find_modules(root)
    edges = {name: list(imports_of(name, path, modules)) for name, path in modules.items()}
    problems = []
    for name, path in modules.items():
        layer = layer_of(name)
        if name.rpartition(".")[2].strip("_") in NOT_A_NAME:
            problems.append(f"{path}: call it by what it does, not {path.stem!r}")
        if path.name != "__init__.py" and not (path.parent / "__init__.py").exists():
            problems.append(f"{path}: its folder has no __init__.py and would not be installed")
        if layer is None:
            problems.append(
                f"{path}: {name} has no layer; add it to LAYER_OF in tests/test_layers.py"
            )
            continue
        for edge in edges[name]:
            if edge.target.split(".")[0] != "kfit":
                continue
            below = layer_of(edge.target)
            if below != layer and below not in MAY_IMPORT[layer]:
                where = f"{path}:{edge.line}"
                problems.append(f"{where}: {layer} may not import {edge.target} ({below})")
        if layer in LIGHT and (chain := path_to_heavy(name, edges)):
            problems.append(f"{path}: importing it imports {chain[-1]}: {' -> '.join(chain)}")
    if chain := cycle_in({name: found for name, found in edges.items() if name != "kfit"}):
        problems.append(f"modules import one another: {' -> '.join(chain)}")
    return problems


def test_every_import_points_down():
    assert problems_of(ROOT) == []


def test_the_table_is_whole():
    assert set(LAYER_OF.values()) == set(MAY_IMPORT)
    assert set().union(*MAY_IMPORT.values()) | LIGHT <= set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            {"kfit/steps.py": "from kfit.trainer import Trainer"},
            "parts may not import kfit.trainer",
        ),
        (
            {"kfit/steps.py": "def f():\n    import kfit.loops"},
            ":2: parts may not import kfit.loops",
        ),
        (
            {"kfit/loops.py": "if TYPE_CHECKING:\n    from kfit import trainer"},
            ":2: loops may not import kfit.trainer",
        ),
        ({"kfit/trainer.py": "import kfit"}, "trainer may not import kfit (package)"),
        ({"callbacks/a.py": "from kfit.logs import x"}, "callbacks may not import kfit.logs"),
        ({"datasets/a.py": "from kfit import callbacks"}, "datasets may not import kfit.callbacks"),
        (
            {"kfit/launching/a.py": "import kfit.distribute"},
            "launching may not import kfit.distribute",
        ),
        ({"kfit/launching/a.py": "import tensorflow as tf"}, "importing it imports tensorflow"),
        (
            {
                "kfit/launching/a.py": "from kfit.cluster import cluster",
                "kfit/cluster/__init__.py": "import tensorflow.nn",
                "kfit/cluster/cluster.py": "",
            },
            "kfit.launching.a -> kfit.cluster -> tensorflow.nn",
        ),
        ({"kfit/new.py": ""}, "kfit.new has no layer"),
        ({"kfit/inputs/_utils.py": ""}, "not '_utils'"),
        ({"kfit/inputs/a.py": "", "kfit/inputs/__init__.py": None}, "has no __init__.py"),
        (
            {"kfit/steps.py": "import kfit.logs", "kfit/logs.py": "from kfit import steps"},
            "import one another: kfit.logs -> kfit.steps -> kfit.logs",
        ),
    ],
)
def test_a_wrong_import_is_found(tmp_path, files, problem):
    defaults = [f"{folder}/__init__.py" for folder in ("kfit", "callbacks", "datasets")]
    defaults += [f"{Path(path).parent}/__init__.py" for path in files]
    for path, code in {**dict.fromkeys(defaults, ""), **files}.items():
        if code is not None:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(code)
    problems = problems_of(tmp_path)
    assert len(problems) == 1 or "kfit/cluster/__init__.py" in files, problems
    assert any(problem in found for found in problems), problems


def test_a_right_import_is_no_problem(tmp_path):
    files = {
        "kfit/__init__.py": "def __getattr__(name):\n    import kfit.trainer",
        "kfit/trainer.py": "import tensorflow, kfit.loops, kfit.cluster.cluster",
        "kfit/loops.py": "import keras",
        "kfit/cli.py": "import kfit.launching.a\ndef f():\n    import tensorflow, kfit.distribute",
        "kfit/launching/__init__.py": "",
        "kfit/launching/a.py": "from kfit.cluster.cluster import x",
        "kfit/distribute/__init__.py": "",
        "kfit/cluster/__init__.py": "",
        "kfit/cluster/cluster.py": "import os",
        "callbacks/__init__.py": "from kfit.callbacks.a import A",
        "callbacks/a.py": "import keras",
        "datasets/__init__.py": "",
    }
    for path, code in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(code)
    assert problems_of(tmp_path) == []
