import threading

import pytest

from kfit.heartbeat.counted_fits import CountedFits


def call(fits: CountedFits) -> int:
    with fits.counted() as has_number:
        assert has_number
        return fits.number


def test_fits_are_counted_and_the_last_one_is_remembered() -> None:
    fits = CountedFits()
    assert fits.number == 0
    assert [call(fits) for _ in range(3)] == [0, 1, 2]
    assert (fits.number, fits.depth) == (2, 0)


def test_a_fit_that_a_hook_calls_is_a_part_of_the_other_one() -> None:
    fits = CountedFits()
    call(fits)
    with fits.counted():
        with fits.counted() as has_number:
            assert not has_number
            fits.set_number(9)
        assert fits.number == 1
    assert call(fits) == 2


def test_a_fit_that_fails_is_counted() -> None:
    fits = CountedFits()
    with pytest.raises(ValueError, match="wrong"), fits.counted():
        raise ValueError("wrong")
    assert call(fits) == 1


def test_later_ones_count_from_a_number_that_is_known() -> None:
    fits = CountedFits()
    with fits.counted():
        fits.set_number(5)
        assert fits.number == 5
    assert call(fits) == 6
    with fits.counted():
        fits.set_number(5)  # it is called again
    assert call(fits) == 6


def test_threads_count_together_and_each_knows_its_own() -> None:
    fits = CountedFits()
    seen: list[int] = []
    with fits.counted():
        thread = threading.Thread(target=lambda: seen.append(call(fits)))
        thread.start()
        thread.join()
        assert fits.number == 0
    assert seen == [1]
    assert call(fits) == 2
