from typing import Any

import kfit
from kfit.heartbeat import Heartbeat
from kfit.steps.told_tracing import telling, tracing


def test_the_innermost_listener_is_told_before_a_step_is_traced() -> None:
    told: list[str] = []
    heartbeat = Heartbeat.of_environment()
    with telling(lambda: told.append("outer")):
        with telling(lambda: told.append("inner")), tracing(heartbeat):
            told.append("traced")
        with tracing(heartbeat):
            pass
    with tracing(heartbeat):
        pass
    assert told == ["inner", "traced", "outer"]


def test_only_calls_that_trace_a_step_tell(tiny: Any) -> None:
    x, y = tiny.data(16)
    trainer = kfit.Trainer(tiny.model(), "one_device")
    for times in (1, 0):
        for call in (
            lambda: trainer.fit(x, y, 8, verbose=0),
            lambda: trainer.evaluate(x, y, 8, verbose=0),
            lambda: trainer.predict(x, 8, verbose=0),
        ):
            told: list[bool] = []
            with telling(lambda told=told: told.append(True)):
                call()
            assert bool(told) == bool(times)
