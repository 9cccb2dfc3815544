"""What takes the time of an epoch, from phases that the test makes up."""

from kfit.callbacks.epoch_times import PARTS, EpochTimes
from kfit.report.figures import PHASES


def test_the_parts_add_up_to_the_time_since_the_last_epoch() -> None:
    times = EpochTimes()
    phases = {name: float(index) for index, name in enumerate(PHASES)}
    first = times.end(phases)
    assert set(first) == {*PARTS, "rest"}
    assert sum(first.values()) == sum(phases.values())
    assert first["rest"] == phases["building"] + phases["resuming"] + phases["rest"]
    later = {name: seconds + (name == "saving") for name, seconds in phases.items()}
    assert times.end(later) == {**dict.fromkeys([*PARTS, "rest"], 0.0), "saving": 1.0}
