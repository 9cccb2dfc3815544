"""Texts of strangers, as they are printed."""

from kfit.cluster.printable import printable


def test_letters_stay_and_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("worker 1: Grüße, 日本") == "worker 1: Grüße, 日本"
    assert printable("\x1b[31mred\nkfit: error\r\0") == r"\x1b[31mred\nkfit: error\r\x00"
    assert printable("\u202eevil") == r"\u202eevil"


def test_half_a_character_can_be_printed() -> None:
    """JSON may hold what no encoding has."""
    assert printable("a\ud800") == r"a\ud800"
    assert printable("a\ud800").encode()


def test_it_is_cut() -> None:
    assert len(printable("a" * 5000)) == 1000
