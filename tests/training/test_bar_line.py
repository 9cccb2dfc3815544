import re

import pytest

from kfit.heartbeat.terminal import width_of
from kfit.training.bar_line import bar_line

BAR = f"\x1b[32m{'━' * 10}\x1b[0m\x1b[37m{'━' * 10}\x1b[0m"
LINE = f"\x1b[1m137/469\x1b[0m {BAR} \x1b[1m1s\x1b[0m 3ms/step - accuracy: 0.9123 - loss: 0.1234"
EXTRAS = ["21.2k examples/s", "saved step 49"]


def shown(columns: int, **options: bool) -> str:
    return bar_line(LINE, EXTRAS, columns, colors=False, **options)


def test_everything_fits_into_a_wide_terminal() -> None:
    whole = f"137/469 {'━' * 10}{'─' * 10} 1s 3ms/step - accuracy: 0.9123 - loss: 0.1234"
    assert shown(200) == f"{whole} - 21.2k examples/s - saved step 49"
    assert shown(0) == shown(200)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            102,
            "137/469 ━━━━─── 1s 3ms/step - accuracy: 0.9123 - loss: 0.1234"
            " - 21.2k examples/s - saved step 49",
        ),
        (
            90,
            "137/469 ━━━━──── 1s - accuracy: 0.9123 - loss: 0.1234"
            " - 21.2k examples/s - saved step 49",
        ),
        (70, "137/469 ━━─ 1s - accuracy: 0.9123 - loss: 0.1234 - saved step 49"),
        (60, "137/469 ━━━─── 1s 3ms/step - accuracy: 0.9123 - loss: 0.1234"),
        (30, "137/469 1s - accuracy: 0.9123"),
        (28, "137/469 1s"),
    ],
)
def test_what_is_left_out_of_a_narrow_terminal(columns: int, expected: str) -> None:
    text = shown(columns)
    assert width_of(text) <= columns
    assert ("━" in text) == ("━" in expected)
    without_bar = expected.translate({ord("━"): None, ord("─"): None})
    assert text.translate({ord("━"): None, ord("─"): None}) == without_bar


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (45, "137/469 1s - accuracy: 0.9123 - loss: 0.1234"),
        (30, "137/469 1s - accuracy: 0.9123\n  loss: 0.1234"),
        (20, "137/469 1s\n  accuracy: 0.9123\n  loss: 0.1234"),
    ],
)
def test_the_last_state_has_all_metrics(columns: int, expected: str) -> None:
    for colors in (False, True):
        text = bar_line(LINE, EXTRAS, columns, colors=colors, is_last=True)
        assert re.sub(r"\x1b\[\d*m", "", text) == expected


def test_the_last_state_has_the_bar_if_it_fits() -> None:
    assert shown(70, is_last=True) == shown(70)


def test_colors_stay() -> None:
    text = bar_line(LINE, EXTRAS, 90)
    assert "\x1b[32m━" in text
    assert "\x1b[37m━" in text
    assert width_of(text) <= 90


def test_a_line_without_a_bar_is_cut() -> None:
    assert bar_line("     12/Unknown 3s", [], 10) == "     12/Un"


def test_a_line_without_a_bar_loses_the_time_of_a_step_with_its_dash() -> None:
    line = "24/24 - 1s - 33ms/step - accuracy: 0.6299 - loss: 1.4240"
    assert bar_line(line, [], 60) == line
    assert bar_line(line, [], 50) == "24/24 - 1s - accuracy: 0.6299 - loss: 1.4240"


def test_a_time_that_is_not_known_is_left_out() -> None:
    assert "ms/step" not in bar_line(LINE, EXTRAS, 0, is_timed=False)
    assert bar_line("24/24 - 0s - 0s/step - loss: 1.4", [], 0, is_timed=False) == (
        "24/24 - 0s - loss: 1.4"
    )
