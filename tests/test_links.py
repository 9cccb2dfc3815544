"""Each link of the documentation to a file, or to a heading in a file, leads somewhere."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "examples").rglob("*.ipynb"),
        *(ROOT / "datasets").rglob("*.md"),
    ]
)


def text_of(path: Path) -> str:
    """A page without its code; of a notebook, the text between the cells of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"^ *(```|~~~).*?^ *\1", "", text, flags=re.DOTALL | re.MULTILINE)


def links_of(text: str) -> list[str]:
    """The targets of Markdown links and of pictures in HTML."""
    without_code = re.sub(r"`[^`\n]*`", "`code`", text)
    links = re.findall(r"\]\(<?([^)\s>]+)>?\)", without_code)
    links += re.findall(r"^\[[^\]]+\]: *(\S+)", without_code, re.MULTILINE)
    return links + re.findall(r"\b(?:src|srcset|href)=\"([^\"]+)\"", without_code)


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", a) is not None for a in anchors)
        anchors.add(f"{anchor}-{number}" if number else anchor)
    return anchors


def problems_of(page: Path, root: Path = ROOT) -> list[str]:
    """The links of a page that lead nowhere, or out of the folder `root`."""
    problems = []
    for link in links_of(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            problems.append(f"{link}: there is no {target}")
        elif not target.resolve().is_relative_to(root):
            problems.append(f"{link}: is outside of the repository")
        elif anchor and anchor not in anchors_of(text_of(target)):
            problems.append(f"{link}: {name or page.name} has no heading of that name")
    return problems


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert problems_of(page) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One `two`: three\n## Again\n## Again\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[good](b.md#one-two-three) [good](b.md#again-1) [good](https://example.org/x#y)\n"
        "```\n[code](nowhere.md)\n```\n`[code](nowhere.md)` [bad](c.md) [bad](b.md#two)\n"
        '<img src="no.svg"> [bad](#here)\n'
    )
    assert [problem.partition(":")[0] for problem in problems_of(page, tmp_path)] == [
        "c.md",
        "b.md#two",
        "#here",
        "no.svg",
    ]
