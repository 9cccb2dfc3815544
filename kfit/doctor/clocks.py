"""Whether the clocks of the tasks agree."""

from __future__ import annotations

from collections.abc import Iterable

from kfit.doctor.exchange import Peer
from kfit.doctor.findings import Finding

_TOLERATED = 2.0
"""Seconds. No step depends on clocks, but logs, file times and certificates do."""


def compare_clocks(peers: Iterable[Peer]) -> list[Finding]:
    """Looks how far the clock of each peer that answered is from this host's."""
    answered = [peer for peer in peers if peer.report is not None]
    found = []
    for peer in answered:
        ahead, uncertain = peer.clock
        if abs(ahead) - uncertain > _TOLERATED:
            side = "ahead of" if ahead > 0 else "behind"
            found.append(
                Finding(
                    "clocks",
                    False,
                    f"the clock of {peer.task} is {abs(ahead):.0f} s {side} this host's: times in "
                    "logs and of files will not agree",
                    "set both hosts' clocks by NTP (`timedatectl set-ntp true`)",
                    about=peer.task,
                )
            )
    if found or not answered:
        return found
    return [Finding("clocks", True, f"all within {_TOLERATED:g} s")]
