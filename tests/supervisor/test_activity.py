from kfit.heartbeat import Phase, Pulse
from kfit.supervisor.activity import activity

NAMES = ["worker 0", "worker 1"]


def pulse(phase: int = Phase.STEP, time: float = 90.0, **more: object) -> Pulse:
    return Pulse(pid=1, in_call=True, phase=phase, time=time, **more)  # type: ignore[arg-type]


def said(**pulses: Pulse) -> str:
    found = {name.replace("_", " "): each for name, each in pulses.items()}
    return activity(NAMES, found, now=100.0, started=70.0)


def test_a_task_that_starts() -> None:
    assert said(worker_0=Pulse()) == "worker 0 is starting (30 s)"


def test_only_a_long_state_is_said_where_each_is_a_line() -> None:
    for pulses in ({"worker 0": Pulse()}, {"worker 0": pulse(Phase.TRACING)}):
        said = [
            bool(activity(NAMES, pulses, now=now, started=90.0, least=10.0)) for now in (99, 100)
        ]
        assert said == [False, True]


def test_a_long_phase() -> None:
    found = said(worker_0=pulse(Phase.TRACING), worker_1=pulse(Phase.TRACING))
    assert found == "worker 0 is tracing or compiling a step (10 s)"
    assert said(worker_0=pulse(Phase.SAVING)) == "worker 0 is saving the state of training (10 s)"
    found = said(worker_0=pulse(Phase.RESTORING))
    assert found == "worker 0 is restoring the state of training (10 s)"


def test_a_task_that_waits_and_the_one_that_it_waits_for() -> None:
    found = said(worker_0=pulse(Phase.JOINING), worker_1=Pulse())
    assert found == "worker 0 is joining its cluster (10 s); worker 1 is starting"
    found = said(worker_0=pulse(meeting_since=95.0), worker_1=pulse(Phase.INPUT))
    assert found == "worker 0 is waiting for its peers (5 s); worker 1 is reading data"
    found = said(worker_0=pulse(Phase.PEERS), worker_1=pulse(Phase.PEERS))
    assert found == "worker 0 is waiting for its peers (10 s)"


def test_nothing_is_said_of_progress_and_of_the_users_own_code() -> None:
    assert said(worker_0=pulse(time=99.5)) == ""
    assert said(worker_0=Pulse(pid=1, time=90.0)) == ""
    assert said() == ""
