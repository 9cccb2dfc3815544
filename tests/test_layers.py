"""An import may only point down: the rooms of kfit in one ordered list, every import checked.

A room is a folder of ``kfit/``, or a module beside them. A new one must be put into ``ROOMS``; that
is the moment to think about where it belongs. Imports inside functions and under ``TYPE_CHECKING``
count too: they are dependencies.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"kfit": "kfit", "kfit.callbacks": "callbacks", "kfit.datasets": "datasets"}

# From top to bottom: a room may import those below it.
ROOMS: list[set[str]] = [
    {"__main__"},
    {"commands"},
    {"kfit"},  # the package itself: its public names
    {"remote", "evaluation", "model", "plots"},
    {"trainer"},
    {"callbacks"},
    {"verification"},
    {"training"},
    {"report"},
    {"steps"},
    {"saving"},
    {"inputs"},
    {"checkpoint"},
    {"fingerprints"},
    {"exactness"},
    {"graphs"},
    {"objects"},
    {"distribute"},
    {"internals"},
    {"user_files"},
    {"supervisor"},
    {"doctor", "manifest", "fault_sites"},
    {"cluster", "heartbeat", "datasets", "argument_checks"},
    {"lazy"},
]

# Rooms that are imported before anybody knows whether TensorFlow is needed.
LIGHT = {
    "kfit",
    "commands",
    "doctor",
    "manifest",
    "remote",
    "supervisor",
    "cluster",
    "argument_checks",
    "fault_sites",
    "heartbeat",
    "user_files",
    "datasets",
    "lazy",
}
LIGHT_MODULES = {"kfit.distribute.joining", "kfit.distribute.servers"}
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
                is_room = node.module == "kfit" and place_of(alias.name) is not None
                target = target if target in modules or is_room else str(node.module)
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


def room_of(name: str) -> str:
    """The room of a module: the folder or the file of ``kfit/`` that it is in."""
    return [*name.split("."), name][1]


def place_of(room: str) -> int | None:
    """Where a room stands, 0 being the top."""
    return next((place for place, rooms in enumerate(ROOMS) if room in rooms), None)


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
        room = room_of(name)
        place = place_of(room)
        if name.rpartition(".")[2].strip("_") in NOT_A_NAME:
            problems.append(f"{path}: call it by what it does, not {path.stem!r}")
        if path.name != "__init__.py" and not (path.parent / "__init__.py").exists():
            problems.append(f"{path}: its folder has no __init__.py and would not be installed")
        if place is None:
            problems.append(f"{path}: put the room {room!r} into ROOMS in tests/test_layers.py")
            continue
        for edge in edges[name]:
            if edge.target.split(".")[0] != "kfit":
                continue
            below = room_of(edge.target)
            if (place_of(below) or 0) < place:
                problems.append(f"{path}:{edge.line}: {room} may not import {edge.target}")
        is_light = room in LIGHT or name in LIGHT_MODULES
        if is_light and (chain := path_to_heavy(name, edges)):
            problems.append(f"{path}: importing it imports {chain[-1]}: {' -> '.join(chain)}")
    if chain := cycle_in({name: found for name, found in edges.items() if name != "kfit"}):
        problems.append(f"modules import one another: {' -> '.join(chain)}")
    return problems


def test_every_import_points_down():
    assert problems_of(ROOT) == []


def test_each_room_is_there_once():
    rooms = [room for rooms in ROOMS for room in rooms]
    assert sorted(rooms) == sorted({room_of(name) for name in find_modules(ROOT)})
    assert set(rooms) >= LIGHT


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            {"kfit/inputs/a.py": "from kfit.trainer import Trainer"},
            "inputs may not import kfit.trainer",
        ),
        (
            {"kfit/inputs/a.py": "def f():\n    import kfit.training.fit_state.loops"},
            ":2: inputs may not import kfit.training.fit_state.loops",
        ),
        (
            {"kfit/training/a.py": "if TYPE_CHECKING:\n    from kfit import trainer"},
            ":2: training may not import kfit.trainer",
        ),
        ({"kfit/trainer.py": "import kfit"}, "trainer may not import kfit"),
        ({"datasets/a.py": "from kfit import callbacks"}, "datasets may not import kfit.callbacks"),
        ({"kfit/remote/a.py": "import tensorflow as tf"}, "importing it imports tensorflow"),
        (
            {
                "kfit/remote/a.py": "from kfit.cluster import cluster",
                "kfit/cluster/__init__.py": "import tensorflow.nn",
                "kfit/cluster/cluster.py": "",
            },
            "kfit.remote.a -> kfit.cluster -> tensorflow.nn",
        ),
        ({"kfit/new.py": ""}, "put the room 'new' into ROOMS"),
        ({"kfit/inputs/_utils.py": ""}, "not '_utils'"),
        ({"kfit/inputs/a.py": "", "kfit/inputs/__init__.py": None}, "has no __init__.py"),
        (
            {
                "kfit/inputs/a.py": "import kfit.inputs.b",
                "kfit/inputs/b.py": "import kfit.inputs.a",
            },
            "import one another: kfit.inputs.a -> kfit.inputs.b -> kfit.inputs.a",
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
        "kfit/trainer.py": "import tensorflow, kfit.training.fit_state.loops, kfit.cluster.cluster",
        "kfit/training/__init__.py": "",
        "kfit/training/loops.py": "import keras",
        "kfit/commands/__init__.py": "",
        "kfit/commands/main.py": "import kfit.remote.a\ndef f():\n    import keras, kfit.trainer",
        "kfit/remote/__init__.py": "",
        "kfit/remote/a.py": "from kfit.cluster.cluster import x",
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
