"""How two lists of a cluster's addresses differ, in words."""

import pytest

from kfit.cluster.address_lists import AddressList, addresses_by_name, source_or_none
from kfit.cluster.cluster import Cluster, Task


def cluster_of(*workers: str, index: int = 0) -> Cluster:
    return Cluster({"ps": ("p:1",), "worker": workers}, Task("worker", index))


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        (("a:1", "c:1"), "its X lists c:1 for worker 1, that of this task, worker 0, b:1 for"),
        (("a:1",), "its X lists no address for worker 1, that of this task, worker 0, b:1 for"),
        (("b:1", "a:1"), "its X lists b:1 for worker 0 and a:1 for worker 1, that of this task, "),
        (
            ("a:1", "b:1", *(f"c:{i}" for i in range(1, 5))),
            "its X lists c:1 for worker 2 and c:2 for worker 3 and c:3 for worker 4, that of this "
            "task, worker 0, no address for worker 2 and no address for worker 3 and no address "
            "for worker 4; 1 more differ",
        ),
    ],
)
def test_the_addresses_that_differ_are_named(workers: tuple[str, ...], told: str) -> None:
    own, its = cluster_of("a:1", "b:1"), addresses_by_name(cluster_of(*workers))
    assert AddressList(own).difference(its, "X", "X").startswith(told)


def test_what_a_stranger_sends_is_printed_as_one_safe_line() -> None:
    its = {"ps 0": "p:1", "worker 0": "a:1\n\x1b[31m"}
    told = AddressList(cluster_of("a:1")).difference(its, "X\n", "X")
    assert told.startswith("its X\\n lists a:1\\n\\x1b[31m for worker 0, the X of this task")


@pytest.mark.parametrize(
    ("its_source", "own_source", "there", "here"),
    [
        ("X", "Y", "X", "the Y"),
        ("X", "", "X", "that"),
        ("", "Y", "TF_CONFIG (or KFIT_WORKERS)", "that"),
    ],
)
def test_what_lists_them_is_named(its_source: str, own_source: str, there: str, here: str) -> None:
    its = addresses_by_name(cluster_of("a:1"))
    assert AddressList(cluster_of("b:1")).difference(its, its_source, own_source) == (
        f"its {there} lists a:1 for worker 0, {here} of this task, worker 0, b:1 for worker 0"
    )


def test_of_a_long_list_some_are_sent_and_nothing_is_claimed_of_the_others() -> None:
    workers = [f"a{index}:1" for index in range(100)]
    own = AddressList(cluster_of(*workers, index=70))
    sent = own.sent_to("worker 80")
    assert len(sent) == 34
    assert (sent["worker 31"], sent["worker 70"], sent["worker 80"]) == ("a31:1", "a70:1", "a80:1")
    told = own.difference(sent, "X", "X")
    assert told == (
        "its X lists other addresses than that of this task, worker 70, which lists "
        "a0:1, a1:1, a2:1, a3:1, a4:1, a5:1, a6:1, a7:1 and 92 more"
    )


def test_the_source_is_what_describes_the_cluster() -> None:
    environ = {"KFIT_WORKERS": "a:1,b:1", "KFIT_INDEX": "0"}
    assert source_or_none(environ) == "KFIT_WORKERS"
    assert source_or_none({**environ, "KFIT_INDEX": "x"}) is None
    assert source_or_none({}) is None
