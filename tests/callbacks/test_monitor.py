"""Which of two values is the better one."""

from typing import Any

import pytest

from kfit.callbacks.monitor import Monitor


def test_a_monitor_is_pure() -> None:
    monitor = Monitor("val_x", "max", min_delta=0.1)
    assert monitor.is_better(-5.0)
    assert not monitor.is_better(float("nan"))
    assert not monitor.is_better(float("inf"))
    monitor.best = 1.0
    assert not monitor.is_better(1.1)
    assert monitor.is_better(1.2)
    other = Monitor("val_x", "min")
    other.load_state_dict(monitor.state_dict())
    assert other.best == 1.0
    assert other.is_better(0.9)
    with pytest.raises(ValueError, match="`min_delta` must be"):
        Monitor("loss", min_delta=-1)


def test_a_monitor_asks_the_metrics_for_the_direction(tiny: Any) -> None:
    model = tiny.model()
    model.evaluate(*tiny.data(), verbose=0)  # the metrics are made for the first batch
    for name, mode in (("val_accuracy", "max"), ("loss", "min"), ("val_head_loss", "min")):
        monitor = Monitor(name)
        monitor.resolve(model)
        assert monitor.mode == mode
    with pytest.raises(ValueError, match="`mode` must be 'min' or 'max' for monitor='val_f'"):
        Monitor("val_f").resolve(model)
