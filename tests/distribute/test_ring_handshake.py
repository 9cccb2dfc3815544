"""What each side of a connection of the ring proves to the other."""

import socket
import threading

import pytest

from kfit.distribute.ring_handshake import (
    CALL,
    MAGIC,
    NUMBER,
    answer_to,
    introduce,
    is_of_own_user,
    proof,
    random_number,
)

TOKEN = 12345


def call(greeting: bytes, *, token: int = TOKEN, worker: int = 1) -> bytes:
    number = random_number()
    return MAGIC + number + proof(b"caller", token, worker, greeting, number)


def test_the_expected_worker_is_answered() -> None:
    listener, caller = socket.socketpair()
    with listener, caller:
        assert is_of_own_user(caller)
        thread = threading.Thread(target=introduce, args=(caller, TOKEN, 1))
        thread.start()
        greeting = random_number()
        listener.sendall(greeting)
        answer = answer_to(listener.recv(CALL, socket.MSG_WAITALL), TOKEN, 1, greeting)
        assert answer is not None
        listener.sendall(answer)
        thread.join(5)
        assert not thread.is_alive()


def test_another_worker_token_or_greeting_is_not_answered() -> None:
    greeting = random_number()
    assert answer_to(call(greeting), TOKEN, 1, greeting) is not None
    assert answer_to(call(greeting, worker=2), TOKEN, 1, greeting) is None
    assert answer_to(call(greeting, token=TOKEN + 1), TOKEN, 1, greeting) is None
    assert answer_to(call(random_number()), TOKEN, 1, greeting) is None
    assert answer_to(b"x" * CALL, TOKEN, 1, greeting) is None


def test_the_proof_of_a_caller_is_not_that_of_a_listener() -> None:
    greeting, number = random_number(), random_number()
    sides = {proof(side, TOKEN, 1, greeting, number) for side in (b"caller", b"listener")}
    assert len(sides) == 2
    assert len(greeting) == NUMBER


def test_a_listener_that_does_not_belong_to_the_run_is_refused() -> None:
    listener, caller = socket.socketpair()
    with listener, caller:
        listener.sendall(random_number() + b"p" * 32)
        with pytest.raises(ConnectionError, match="does not know the secret"):
            introduce(caller, TOKEN, 1)
