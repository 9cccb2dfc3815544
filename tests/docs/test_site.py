"""The site, as Sphinx builds it: what is broken is an error, and no page asks another host."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds the pages as .ci/run does."""
    command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(docs), str(site)]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_asks_another_host(site: Path) -> None:
    asked = re.compile(
        r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["'](?:https?:)?//[^"']*"""
        r"""|<link\b(?![^>]*rel=["'](?:canonical|next|prev|author))[^>]*href=["'](?:https?:)?//[^"']*"""
    )
    in_styles = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']*")
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    styles = {path: path.read_text("utf-8") for path in site.rglob("*.css")}
    assert len(pages) > 25
    found = [hit for text in pages.values() for hit in asked.findall(text)]
    found += [
        hit for text in [*pages.values(), *styles.values()] for hit in in_styles.findall(text)
    ]
    assert found == []


def test_the_drawings_are_svg(site: Path) -> None:
    assert "<svg" in (site / "architecture.html").read_text("utf-8")
    assert (site / "concepts.html").read_text("utf-8").count('<figure class="drawing">') == 2


def test_the_reference_has_arguments_and_errors(site: Path) -> None:
    text = (site / "reference" / "trainer.html").read_text("utf-8")
    for part in (
        "kfit.Trainer.fit",
        "validation_freq",
        "Raises",
        "PeerFailedError",
        "kfit.install",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a file](../file.md) and [a section](../file.md#beside-the-pages)", None),
        ("[a page](nowhere.md)", "nowhere.md"),
        ("[a section](#no-such-section)", "no-such-section"),
        ("[a section](other.md#no-such-section)", "no-such-section"),
        ("[a file](../nowhere.py)", "../nowhere.py"),
        ("[a section](../file.md#no-such-section)", "no-such-section"),
        ("```mermaid\nflowchart LR\n  a --> b\n```", "expected `flowchart TD`"),
        ("```{command-help} nonsense\n```", "nonsense"),
        ("```{eval-rst}\n.. autofunction:: kfit.nonsense\n```", "nonsense"),
    ],
)
def test_only_what_is_broken_is_an_error(tmp_path: Path, text: str, said: str | None) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", docs)
    for folder in ("extensions", "static"):
        shutil.copytree(ROOT / "docs" / folder, docs / folder)
    (tmp_path / "file.md").write_text("# Beside the pages!\n", encoding="utf-8")
    (docs / "other.md").write_text("# Other\n", encoding="utf-8")
    index = "# Pages\n\n```{toctree}\nother\n```\n\n"
    (docs / "index.md").write_text(f"{index}{text}\n", encoding="utf-8")
    done = build(docs, tmp_path / "site")
    assert (done.returncode == 0) == (said is None), done.stderr
    assert said is None or said in done.stderr
