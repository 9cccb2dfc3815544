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


def test_what_a_stranger_has_sent_can_be_printed() -> None:
    """Also half a character, which JSON may hold and no encoding has."""
    found = [Finding("peer", False, "\ud800\x1b[2J", "do \ud800")]
    told = Examination("worker 0", "TF_CONFIG", found, seconds=1.25)
    assert r"\ud800\x1b[2J" in told.as_text()
    assert "\x1b" not in told.as_text()
    assert told.as_text().encode()
    assert told.as_json().encode()
