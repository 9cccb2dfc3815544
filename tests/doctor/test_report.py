"""Reports on the wire: read back as they were, and nothing else is read."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from kfit.doctor.report import Message, Report

MAGIC = Message.magic


def test_a_message_comes_back(report_of: Callable[..., Report]) -> None:
    message = Message("worker 1", report_of(host="ä", gpus=-1, visible_gpus=["0"]))
    line = message.encode()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Message.decode(line) == message


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
    content = json.loads(Message("worker 1", report_of()).encode()[len(MAGIC) :])
    content["report"][name] = value
    assert Message.decode(MAGIC + json.dumps(content).encode() + b"\n") is None
    del content["report"][name]
    assert Message.decode(MAGIC + json.dumps(content).encode() + b"\n") is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\n",
        MAGIC + b"{}",
        MAGIC + b"{}\n",
        MAGIC + b"[1]\n",
        MAGIC + b'{"receiver": 1, "report": {}}\n',
        MAGIC + b'{"receiver": "worker 0", "report": []}\n',
        MAGIC + b"[" * 60_000 + b"\n",
        MAGIC + b"\xff\n",
    ],
)
def test_what_is_no_message(line: bytes) -> None:
    assert Message.decode(line) is None
