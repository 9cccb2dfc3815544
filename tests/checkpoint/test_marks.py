"""Which `fit` the weights tell, for programs of every kind."""

import json
from typing import Any

import pytest

from kfit.checkpoint.fits import Label, Program, ends_to_keep
from kfit.checkpoint.lock import DirectoryLock
from kfit.checkpoint.marks import MOST, Mark, begun, ended, is_cut_off_after, recognized
from kfit.checkpoint.store import SnapshotName
from kfit.user_files.ownership import ForeignFileError

TWO_OF_THREE = (Mark(0, 10, 20), Mark(1, 20, 30), Mark(2, 30, None))
FOLDS = (Mark(0, 10, 20), Mark(1, 10, 21), Mark(2, 10, None))


@pytest.mark.parametrize(
    ("number", "weights", "marks", "expected"),
    [
        (0, 10, TWO_OF_THREE, None),  # the same program, seeded
        (0, 11, TWO_OF_THREE, None),  # unseeded: nobody has seen these
        (0, 20, TWO_OF_THREE, 1),  # leaves out the first phase
        (0, 30, TWO_OF_THREE, 2),  # and the second
        (1, 30, TWO_OF_THREE, 2),  # the second alone
        (1, 20, TWO_OF_THREE, None),
        (0, 20, TWO_OF_THREE[:1], 1),  # killed between two phases
        (1, 20, TWO_OF_THREE[:1], None),
        (0, 20, (Mark(0, 10, 20), Mark(1, 25, None)), 1),  # the best weights were taken then
        (0, 10, FOLDS, None),
        (0, 12, FOLDS, None),
        (2, 10, FOLDS, None),
        (0, 10, FOLDS[1:], None),  # the mark of the first is gone
        (0, 20, TWO_OF_THREE[1:], 1),
        (3, 99, TWO_OF_THREE, None),
        (0, 10, (), None),
    ],
)
def test_the_weights_tell(number: int, weights: int, marks: Any, expected: int | None) -> None:
    assert recognized(number, weights, marks, lambda fit: None) == expected


def test_a_mark_of_a_fit_of_any_number_takes_no_time() -> None:
    assert recognized(0, 20, (Mark(10**15, 1, 2),), lambda fit: None) is None
    assert recognized(0, 2, (Mark(10**15, 1, 2),), lambda fit: None) == 10**15 + 1


def test_settings_that_differ_rule_a_fit_out() -> None:
    assert recognized(0, 20, TWO_OF_THREE, lambda fit: fit == 0) is None
    assert recognized(0, 20, TWO_OF_THREE, lambda fit: fit == 1) == 1


def test_what_is_done_anew_makes_later_marks_void() -> None:
    assert begun(TWO_OF_THREE, 1, 21) == (TWO_OF_THREE[0], Mark(1, 21, None))
    assert ended(TWO_OF_THREE, 0, 99, 20) == TWO_OF_THREE
    assert ended(TWO_OF_THREE, 1, 99, 31) == (TWO_OF_THREE[0], Mark(1, 20, 31))
    assert ended((), 0, 10, 20) == (Mark(0, 10, 20),)
    assert is_cut_off_after(1, TWO_OF_THREE)
    assert not is_cut_off_after(2, TWO_OF_THREE)
    assert not is_cut_off_after(0, TWO_OF_THREE[:2])


def test_the_lock_keeps_the_last_marks(tmp_path: Any) -> None:
    lock = DirectoryLock(str(tmp_path), {"KFIT_RUN": "r" * 600})
    marks: tuple[Mark, ...] = ()
    for number in range(100):
        marks = ended(begun(marks, number, 2**32 - 1), number, 0, 2**32 - 2)
        lock.note_fits(marks)
    lock.release()
    assert len(marks) == MOST
    found = DirectoryLock(str(tmp_path), {}).fits
    assert 0 < len(found) < MOST
    assert found == marks[-len(found) :]


@pytest.mark.parametrize("fits", [[1], [[0, 1]], [[0, "a", None]], [[0, True, 2]], [[0, None, 2]]])
def test_a_lock_with_other_marks_is_not_kfits(tmp_path: Any, fits: Any) -> None:
    DirectoryLock(str(tmp_path), {}).release()
    path = tmp_path / ".kfit-lock"
    content = json.dumps({**json.loads(path.read_bytes()), "fits": fits}).encode().ljust(1024)
    path.write_bytes(content)
    with pytest.raises(ForeignFileError):
        DirectoryLock(str(tmp_path), {})
    assert path.read_bytes() == content


def test_ends_are_kept_while_they_take_little_room() -> None:
    labels = [(SnapshotName(1, n, n), Label(n, True)) for n in range(200)]
    small = ends_to_keep(150, labels, None, lambda name: 1 << 20)
    assert {name.serial for name in small} == set(range(50, 150))
    large = ends_to_keep(150, labels, None, lambda name: 1 << 28)
    assert {name.serial for name in large} == {146, 147, 148, 149}
    huge = ends_to_keep(150, labels, None, lambda name: 1 << 40)
    assert {name.serial for name in huge} == {147, 148, 149}
    assert len(ends_to_keep(150, labels, 7, lambda name: 1 << 40)) == 7


def test_the_number_of_a_fit_among_all_of_the_program() -> None:
    one, other = Program(), Program()
    # The process has called them in turns, and one with no directory between them.
    calls = [(one, 0, 0), (other, 0, 1), (one, 1, 3), (other, 1, 4)]
    for program, fit, counted in calls:
        assert program.number_of_all(fit, counted) == counted
    assert one.number_of_all(0, 5) == 0  # an interrupted one is called again


def test_what_the_program_has_skipped_is_counted() -> None:
    program = Program()
    assert program.number_of_all(2, 0) == 2
    assert program.number_of_all(3, 3) == 3
    assert program.number_of_all(5, 6) == 7  # with one without the directory in between
