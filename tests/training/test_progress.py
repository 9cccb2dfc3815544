"""The position in training is counted, kept and taken up again."""

import re

import pytest

from kfit.training.progress import Progress


def test_it_is_counted_and_goes_on() -> None:
    progress = Progress()
    progress.advance(3)
    progress.end_epoch()
    progress.advance(2)
    assert (progress.epoch, progress.step, progress.step_in_epoch) == (1, 5, 2)
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress


def test_another_state_is_refused_and_changes_nothing() -> None:
    progress = Progress(1, 2, 3)
    message = "must have the keys ['epoch', 'step', 'step_in_epoch']. Received: ['epoch']"
    with pytest.raises(ValueError, match=re.escape(message)):
        progress.load_state_dict({"epoch": 7})
    assert progress == Progress(1, 2, 3)
