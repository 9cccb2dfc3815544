"""Listening at an address, calling one, and what went wrong in words."""

import errno
import socket

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.cluster.sockets import PortTakenError, call, digest, explain, is_loopback, listen


def cluster_at(port: int, host: str = "localhost") -> Cluster:
    return Cluster({"worker": (f"{host}:{port}",)}, Task("worker", 0))


def test_a_loopback_address_is_listened_at_there_alone_and_by_one() -> None:
    with listen(cluster_at(1), port=0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(
            PortTakenError, match=f"localhost:{port}: port {port} is taken"
        ) as taken:
            listen(cluster_at(port))
        assert "or two tasks have the same index" in str(taken.value)
        with call(f"localhost:{port}", 5) as caller:
            assert caller.getpeername() == ("127.0.0.1", port)


def test_another_address_is_listened_at_on_all_interfaces() -> None:
    with listen(cluster_at(1, "host-a"), port=0) as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")


def test_where_nobody_listens_a_call_fails_and_leaves_the_port_free() -> None:
    with listen(cluster_at(1), port=0) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OSError) as raised:  # noqa: PT011  its class is what is explained
        call(f"localhost:{port}", 5)
    assert explain(raised.value, "localhost") == (
        "nothing listens there (connection refused)",
        True,
    )
    listen(cluster_at(port)).close()


@pytest.mark.parametrize(
    ("error", "words", "is_nobody"),
    [
        (socket.gaierror(-2, "Name unknown"), "'h' cannot be resolved (Name unknown)", False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "the connection broke (reset)", True),
        (OSError(errno.ENOTCONN, "not connected"), "the connection broke", True),
        (TimeoutError("timed out"), "no answer", False),
        (OSError(errno.EHOSTUNREACH, "no route"), "it cannot be reached (no route)", False),
    ],
)
def test_what_went_wrong(error: OSError, words: str, is_nobody: bool) -> None:
    said, nobody = explain(error, "h")
    assert words in said
    assert nobody == is_nobody


def test_tasks_of_one_cluster_share_a_digest_whoever_lists_the_evaluator() -> None:
    addresses = {"chief": ("c:1",), "worker": ("a:1", "b:1")}
    own = digest(Cluster(addresses, Task("worker", 0)))
    assert own == digest(Cluster({**addresses, "evaluator": ("e:1",)}, Task("worker", 1)))
    swapped = {**addresses, "worker": ("b:1", "a:1")}
    assert own != digest(Cluster(swapped, Task("worker", 0)))


def test_hosts_that_mean_themselves() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST", "127.0.1.1", "::1")))
    assert not any(map(is_loopback, ("host-a", "10.0.0.1", "local")))
