"""What the pages of docs/ say of the code: messages, environment variables, commands, names."""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import keras
import pytest
import yaml

import kfit

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = [*(ROOT / "kfit").rglob("*.py"), *(ROOT / "callbacks").glob("*.py")]
ANYTHING = "\0"


def text_of(node: ast.AST) -> str:
    """A string in code; what is put into it at run time is one character."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ANYTHING


def strings_of(path: Path) -> list[str]:
    """The strings in the code of a file, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    nodes = [n for n in ast.walk(tree) if isinstance(n, kinds) and id(n) not in docs]
    return [text for text in map(text_of, nodes) if len(text) > 5]


def test_the_messages_of_troubleshooting_are_those_of_the_code() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### (.*)$", page, re.M)
    strings = [text for path in SOURCES for text in strings_of(path)]
    with pytest.raises(TypeError) as of_keras:
        keras.Sequential().fit(strategy="mirrored")
    strings.append(str(of_keras.value))

    def is_there(message: str) -> bool:
        parts = [part.strip(" ,") for part in message.split("...")]
        return any(all(part in text for part in parts) for text in strings)

    assert len(messages) > 40
    assert [message for message in messages if not is_there(message)] == []


def test_the_table_has_all_variables_of_kfit() -> None:
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(KFIT_\w+)`", page))
    strings = {text for path in SOURCES for text in strings_of(path)}
    keywords = {
        node.arg
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg
    }
    used = {name for name in strings | keywords if re.fullmatch(r"KFIT_[A-Z_]*[A-Z]", name)}
    assert listed == used


def test_every_command_has_its_help_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    from kfit.commands.main import main

    main(["--help"])
    commands = set(re.findall(r"^    (\w+)  ", capsys.readouterr().out, re.M))
    page = (DOCS / "reference" / "command_line.md").read_text(encoding="utf-8")
    shown = {name.split()[0] for name in re.findall(r"```\{command-help\} (.*)", page)}
    assert shown == commands


def test_every_public_name_is_in_the_reference() -> None:
    import kfit

    pages = "\n".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    packages = {"kfit": kfit, "kfit.callbacks": kfit.callbacks, "kfit.distribute": kfit.distribute}
    packages["kfit.checkpoint"] = kfit.checkpoint
    inside = {"Strategy", "as_strategy"}  # explained with the others
    modules = {"callbacks", "checkpoint", "datasets", "distribute", "saving"}
    names = {f"{at}.{n}" for at, of in packages.items() for n in of.__all__ if n not in inside}
    names -= {f"kfit.{name}" for name in modules}
    assert sorted(n for n in names if not re.search(rf":: {re.escape(n)}$", pages, re.M)) == []


def flowchart() -> Any:
    """docs/extensions/flowchart.py as a module."""
    pytest.importorskip("sphinx")
    path = DOCS / "extensions" / "flowchart.py"
    spec = importlib.util.spec_from_file_location("flowchart", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flowchart"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_a_flowchart_points_down() -> None:
    module = flowchart()
    svg = module.draw("flowchart TD\n a --> b\n b --> c\n a --> c")
    boxes = {name: float(y) for y, name in re.findall(r'y="([\d.]+)" font.*?>(\w+)</text>', svg)}
    assert boxes["a"] < boxes["b"] < boxes["c"]
    assert svg.count('class="line"') == 3


@pytest.mark.parametrize("text", ["flowchart LR\n a --> b", "flowchart TD\n a -- b"])
def test_a_flowchart_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected `flowchart TD`"):
        flowchart().draw(text)


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        flowchart().draw("flowchart TD\n a --> b\n b --> a")


def test_the_citation_names_the_version_of_the_package() -> None:
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    assert cited is not None
    assert cited[1] == kfit.__version__


def test_the_citation_names_the_licences_of_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    packaged = re.search(r'^license = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert packaged is not None
    # Several licences of one entry would be a choice, so that the digits are an entry of their own.
    (digits,) = cited["references"]
    assert f"{cited['license']} AND {digits['license']}" == packaged[1]
    assert digits["doi"] in (ROOT / "datasets" / "digits.md").read_text("utf-8")
