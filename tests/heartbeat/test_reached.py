import itertools

import pytest

from kfit.heartbeat.reached import Reached, nth


def test_a_later_fit_is_beyond_any_step_of_an_earlier_one() -> None:
    places = [(0, 0), (0, 3), (0, 100), (1, 0), (1, 3), (2, 1)]
    for before, after in itertools.pairwise(places):
        assert Reached(*before) < Reached(*after)
    assert Reached(1, 3) == Reached(1, 3)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Reached(), ""),
        (Reached(0, 6), "after step 6"),
        (Reached(1, 0), "at the beginning of the second `fit`"),
        (Reached(2, 6), "after step 6 of the third `fit`"),
        (Reached(3, 6), "after step 6 of the 4th `fit`"),
    ],
)
def test_only_the_first_fit_is_not_named(place: Reached, words: str) -> None:
    assert place.in_words == words


def test_what_a_fit_is_called() -> None:
    names = {0: "first", 1: "second", 2: "third", 3: "4th", 9: "10th", 10: "11th", 11: "12th"}
    names |= {12: "13th", 19: "20th", 20: "21st", 21: "22nd", 22: "23rd", 110: "111th"}
    assert {number: nth(number) for number in names} == names
