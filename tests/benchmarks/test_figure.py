"""The figure of the README shows the numbers of the README's tables."""

import re
from pathlib import Path

import pytest

from benchmarks import figure
from tests.sweeps import only

README = figure.README.read_text(encoding="utf-8")


def words_of(path: Path) -> list[str]:
    """The texts in an SVG file."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", only(["light"], figure.COLOURS))
def test_the_committed_figure_is_that_of_the_tables(name: str, tmp_path: Path) -> None:
    drawn = tmp_path / "figure.svg"
    figure.draw(README, figure.COLOURS[name], drawn)
    words = words_of(drawn)
    assert words == words_of(figure.FIGURES / f"{name}.svg"), "run `python -m benchmarks.figure`"
    assert {*figure.differences(README), *figure.ratios(README)} <= set(words)
    assert f"Keras 3: {figure.differences(README)['sample weights'][1]:.0e}" in words
    assert re.search(rf'src(set)?="docs/figures/{name}\.svg"', README)


def test_a_number_that_changes_is_seen(tmp_path: Path) -> None:
    changed = README.replace("| partial last batch | 1e-07 |", "| partial last batch | 3e-04 |")
    assert changed != README
    assert figure.differences(changed)["partial last batch"][0] == 3e-4
    figure.draw(changed, figure.COLOURS["light"], tmp_path / "figure.svg")
    assert "kfit: 3e-04" in words_of(tmp_path / "figure.svg")


def test_thousands_are_read() -> None:
    table = figure.table_under("Speed", README)
    title = next(row for row in table if row.startswith("Small MLP, batch 32: `fit`"))
    row = table[title]
    expected = float(row["Keras 3"].replace(",", "")) / float(row["kfit"].replace(",", ""))
    assert figure.ratios(README)["small MLP: fit"] == expected > 1


def test_a_missing_table_is_named() -> None:
    with pytest.raises(ValueError, match="needs a section 'Speed' with a table"):
        figure.ratios("# kfit\n\n## Speed\n\nNo table.\n")


def test_a_new_row_needs_a_name() -> None:
    row = "| Small MLP, batch 32: `fit`"
    with pytest.raises(KeyError, match="WORK needs one name for the row 'Big MLP, batch 32"):
        figure.ratios(README.replace(row, "| Big MLP, batch 32: `fit`"))
