"""Reports on the wire: read back as they were, and nothing else is read."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kfit.doctor.report import Message, Report

MAGIC = Message.magic
SECRET = b"of this run"
GREETING = Message.greeting()


def is_message(content: bytes) -> bool:
    """Whether a JSON text is read as a message, if it is signed as it must be."""
    return Message.decode(Message.signed(content, SECRET, GREETING), SECRET, GREETING) is not None


def test_a_message_comes_back(report_of: Callable[..., Report]) -> None:
    message = Message("worker 1", report_of(host="ä", gpus=-1, visible_gpus=["0"]))
    line = message.encode(SECRET, GREETING)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Message.decode(line, SECRET, GREETING) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", 1),
        ("tasks", True),
        ("tasks", 2.0),
        ("seconds", "now"),
        ("cpus", [1.5]),
        ("cpus", "0123"),
        ("visible_gpus", [0]),
        ("versions", {"python": 3}),
        ("versions", [["python", "3"]]),
    ],
)
def test_a_field_of_another_type_is_refused(
    report_of: Callable[..., Report], name: str, value: Any
) -> None:
    line = Message("worker 1", report_of()).encode(SECRET, GREETING)
    content = json.loads(line[line.index(b"{") :])
    assert is_message(json.dumps(content).encode())
    content["report"][name] = value
    assert not is_message(json.dumps(content).encode())
    del content["report"][name]
    assert not is_message(json.dumps(content).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"receiver": 1, "report": {}}',
        b'{"receiver": "worker 0", "report": []}',
        b"[" * 60_000,
        b"\xff",
    ],
)
def test_a_signed_line_that_is_no_message(content: bytes) -> None:
    assert not is_message(content)


def test_a_message_in_another_connection_is_none(report_of: Callable[..., Report]) -> None:
    line = Message("worker 1", report_of()).encode(SECRET, GREETING)
    assert Message.decode(line, SECRET, GREETING) is not None
    assert Message.decode(line, SECRET, Message.greeting()) is None


def test_a_message_of_another_secret_is_none(report_of: Callable[..., Report]) -> None:
    line = Message("worker 1", report_of()).encode(SECRET, GREETING)
    for secret in (b"", b"of another run"):
        assert Message.decode(line, secret, GREETING) is None
    without = Message("worker 1", report_of()).encode(b"", GREETING)
    assert Message.decode(without, b"", GREETING) is not None
    assert Message.decode(without, SECRET, GREETING) is None


@pytest.mark.parametrize("end", [b"", b"{}\n", b"0 {}\n", b"\xff\n", b"GET / HTTP/1.1\n"])
def test_a_line_without_a_signature_is_none(end: bytes) -> None:
    for line in (end, MAGIC + end):
        assert Message.decode(line, SECRET, GREETING) is None
