"""The drawing of the rooms in docs/architecture.md is that of the imports.

`python tests/test_architecture.py` prints it anew.
"""

import ast
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import kfit

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
LARGEST = 0.12
"""The part of all lines that a room may hold."""


def layers() -> Any:
    """tests/test_layers.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "layers", Path(__file__).parent / "test_layers.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LAYERS = layers()


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports, but those that it reaches by way of another one."""
    modules = LAYERS.find_modules(ROOT)
    imported: dict[str, set[str]] = {}
    for name, path in modules.items():
        room = LAYERS.room_of(name)
        found = imported.setdefault(room, set())
        for edge in LAYERS.imports_of(name, path, modules):
            if edge.target.split(".")[0] == "kfit":
                found.add(LAYERS.room_of(edge.target))
        found.discard(room)

    def reached(room: str) -> set[str]:
        return {room}.union(*map(reached, imported[room]))

    return {
        room: {
            each
            for each in below
            if not any(each in reached(other) for other in below if other != each)
        }
        for room, below in imported.items()
    }


def drawing() -> str:
    lines = [
        f"    {room} --> {below}"
        for room, found in sorted(arrows().items())
        for below in sorted(found)
    ]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def test_the_drawing_is_that_of_the_imports() -> None:
    found = re.search(r"```mermaid\n.*?```", PAGE.read_text(encoding="utf-8"), re.S)
    assert found is not None
    assert found[0] == drawing()


def test_each_room_is_described_once() -> None:
    text = PAGE.read_text(encoding="utf-8")
    described = re.findall(r"^\| `([\w/]+?)/?` \|", text, re.M)
    rooms = {room for rooms in LAYERS.ROOMS for room in rooms} - {"kfit", "__main__"}
    assert sorted(described) == sorted(rooms)


def test_no_room_holds_more_than_its_part() -> None:
    lines: dict[str, int] = {}
    for name, path in LAYERS.find_modules(ROOT).items():
        room = LAYERS.room_of(name)
        lines[room] = lines.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    total = sum(lines.values())
    assert {room: count for room, count in lines.items() if count > LARGEST * total} == {}
    assert len(lines) - len({"kfit", "__main__"}) <= 30


def test_files_that_the_page_names_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:kfit|callbacks|datasets|tests|benchmarks)/[\w/]+\.py)", text))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_functions_that_the_paths_name_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    steps = text[text.index("## The path of a step") : text.index("## Steps, in detail")]
    named = re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", steps)
    assert len(named) > 15
    for file, name in named:
        body: Any = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        for part in name.split("."):
            kinds = (ast.FunctionDef, ast.ClassDef)
            members = [
                each for node in body if isinstance(node, ast.ClassDef) for each in node.body
            ]
            found = [n for n in [*body, *members] if isinstance(n, kinds) and n.name == part]
            assert found, f"{file}: {name}"
            body = found[0].body


@pytest.mark.long
def test_arrays_go_by_the_path_that_the_page_names(tiny: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    path = text[text.index("## The path of `x`") : text.index("## The path of a gradient")]
    named = set(re.findall(r"`(kfit/[\w/]+\.py)`", path))
    others = {
        f"kfit/inputs/{kind}.py" for kind in ("datasets", "py_dataset", "generator", "loader")
    }
    assert others < named
    assert len(named - others) <= 12
    x, y = tiny.data()
    passed = set()

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and any(value is x for value in frame.f_locals.values()):
            passed.add(frame.f_code.co_filename)

    trainer = kfit.Trainer(tiny.model(), tiny.strategy(1))
    sys.setprofile(look)
    try:
        trainer.fit(x, y, verbose=0)
    finally:
        sys.setprofile(None)
    files = {os.path.relpath(file, ROOT) for file in passed}
    found = {file for file in files if file.startswith("kfit/")}
    assert {"kfit/trainer.py", "kfit/inputs/arrays.py"} <= found
    assert found - named == set()


if __name__ == "__main__":
    print(drawing())
