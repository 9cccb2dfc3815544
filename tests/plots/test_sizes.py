"""What fits into a figure."""

import pytest

from kfit.plots.sizes import lines_that_fit, sizes_in, text_width


@pytest.mark.parametrize(
    ("size", "panels", "columns"),
    [((4, 3), 3, 2), ((4, 7), 3, 1), ((12, 3), 3, 3), ((6.4, 4.8), 2, 2), ((2, 2), 1, 1)],
)
def test_the_columns_follow_from_the_size(
    size: tuple[float, float], panels: int, columns: int
) -> None:
    assert sizes_in(*size, panels, is_new=False).columns == columns


def test_text_is_smaller_in_small_panels_only() -> None:
    assert sizes_in(4.4, 3.6, 1, is_new=True).scale == 1
    assert 0.6 <= sizes_in(2.5, 3.6, 1, is_new=False).scale < 1
    assert sizes_in(0.5, 0.5, 1, is_new=False).scale == 0.6


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("loss", ["loss"]),
        ("", [""]),
        ("top_k_accuracy", ["top_k_", "accuracy"]),
        ("abcdefghijklm", ["abcdefgh", "ijklm"]),
        ("a_bcdefghijkl_m", ["a_", "bcdefghi", "jkl_m"]),
    ],
)
def test_lines_end_after_underscores(text: str, lines: list[str]) -> None:
    assert lines_that_fit(text, lambda line: len(line) <= 8) == lines


def test_a_line_has_a_character_if_nothing_fits() -> None:
    assert lines_that_fit("abc", lambda line: False) == ["a", "b", "c"]


def test_the_width_of_text_is_measured() -> None:
    assert text_width("", 10) == 0
    assert 0 < text_width("mae", 10) < text_width("mae", 10, bold=True) < text_width("mae", 20)
