"""What the doctor found: one line each, for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        check: What kind of thing: "cluster", "peer", "versions", ...; programs may rely on it.
        ok: Whether it is well.
        text: What was found.
        fix: What to do about it, where it is not well.
        about: Which task, variable or directory, where a check looks at several.
    """

    check: str
    ok: bool
    text: str
    fix: str = ""
    about: str = ""


@dataclass(frozen=True)
class Examination:
    """All findings of one task.

    Args:
        task: The task that this process is, such as "worker 0"; None outside of a cluster.
        source: What describes the cluster: "TF_CONFIG", "Slurm", ...; None outside of one.
        findings: What was found, in the order in which it was looked at.
        reports: By task, what this one and each peer that answered told of themselves.
        seconds: How long it took.
    """

    task: str | None
    source: str | None
    findings: Sequence[Finding]
    reports: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.ok for finding in self.findings)

    def as_text(self) -> str:
        """One line a finding, and below each problem what to do about it."""
        width = max(len(finding.check) for finding in self.findings)
        lines = []
        for finding in self.findings:
            status = "ok" if finding.ok else "problem"
            text = finding.text if finding.ok or not finding.about else _led(finding)
            lines.append(f"{status:7}  {finding.check:{width}}  {_indented(text, width)}")
            if finding.fix:
                lines.append(f"{'':7}  {'':{width}}  fix: {_indented(finding.fix, width)}")
        problems = sum(not finding.ok for finding in self.findings)
        counted = f"{problems} problem{'s' if problems > 1 else ''}" if problems else "all is well"
        who = self.task or "this process"
        lines.append(f"kfit doctor: {who}: {counted} ({self.seconds:.1f} s)")
        return "\n".join(lines)

    def as_json(self) -> str:
        """The same as a JSON object."""
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=2)


def _led(finding: Finding) -> str:
    return finding.text if finding.about in finding.text else f"{finding.about}: {finding.text}"


def _indented(text: str, width: int) -> str:
    return text.strip().replace("\n", "\n" + " " * (11 + width))
