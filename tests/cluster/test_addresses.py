"""Addresses of tasks, and which cannot be meant; `test_tf_config.py` has the texts of TF_CONFIG."""

from types import SimpleNamespace
from typing import Any

import pytest

from kfit.cluster.addresses import (
    ClusterError,
    Task,
    check_task,
    copied_addresses,
    split_address,
)


def test_split_address() -> None:
    assert split_address("host:2222") == ("host", 2222)
    assert split_address("[::1]:2222") == ("::1", 2222)


@pytest.mark.parametrize("host", ["a..b", "h" * 64, "xn--\u00fc.example", ".a", "\ud800", "h\0x"])
def test_what_no_host_can_be_called_is_refused(host: str) -> None:
    """A look-up would raise an error that is none of the system, in the thread that calls."""
    with pytest.raises(ClusterError, match=r"whose host cannot be looked up|names no host"):
        split_address(f"{host}:2222")
    assert split_address(f"{'h' * 63}.\u00fc.example.:2222")[1] == 2222
    assert split_address("under_score-1.svc:2222")[1] == 2222


def test_addresses_are_copied_in_the_order_of_their_indices() -> None:
    listed = ["a:1", "b:1"]
    copied = copied_addresses({"worker": listed, "ps": {1: "q:1", 0: "p:1"}})
    listed.append("c:1")
    assert copied == {"worker": ("a:1", "b:1"), "ps": ("p:1", "q:1")}


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["a:1"], r"`addresses` is \['a:1'\]; expected address lists by task type"),
        ({"worker": "a:1"}, r"`cluster\.worker` is 'a:1'; expected a list of addresses"),
        ({"worker": {0: "a:1", 2: "b:1"}}, r"indices \['0', '2'\]; expected every index from 0"),
        (SimpleNamespace(as_dict=dict), r"write Cluster\(cluster_spec\.as_dict\(\)"),
    ],
)
def test_what_lists_no_addresses_is_refused(addresses: Any, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        copied_addresses(addresses)


def test_who_need_not_be_listed() -> None:
    check_task({"worker": ("a:1",)}, Task("evaluator", 0))
    check_task({"worker": ("a:1",), "ps": ("p:1",)}, Task("chief", 0))
    with pytest.raises(ClusterError, match="task"):
        check_task({"worker": ("a:1",)}, Task("chief", 0))
