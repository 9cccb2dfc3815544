import pytest

from kfit.supervisor import status_lines
from kfit.supervisor.status_lines import StatusLines


def test_a_line_is_written_when_it_says_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    status = StatusLines(lines.append)
    for second in range(1, 4):
        status.say(f"worker 0 is starting ({second} s)")
    status.say("")
    status.say("worker 0 is tracing (2 s)")
    assert lines == ["worker 0 is starting (1 s)", "worker 0 is tracing (2 s)"]
    monkeypatch.setattr(status_lines, "_INTERVAL", 0.0)
    status.say("worker 0 is tracing (9 s)")
    assert lines[2:] == ["worker 0 is tracing (9 s)"]
