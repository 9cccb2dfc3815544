"""How what was found is told."""

from kfit.doctor.findings import Examination, Finding


def test_how_it_is_told() -> None:
    found = [
        Finding("cluster", True, "well"),
        Finding("peer", False, "worker 1 is down", "start it", about="worker 1"),
    ]
    told = Examination("worker 0", "TF_CONFIG", found, seconds=1.25)
    assert told.as_text().splitlines() == [
        "ok       cluster  well",
        "problem  peer     worker 1 is down",
        "                  fix: start it",
        "kfit doctor: worker 0: 1 problem (1.2 s)",
    ]
    assert not told.ok
