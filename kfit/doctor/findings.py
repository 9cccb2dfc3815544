"""The results of `kfit doctor`, as text for users and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kfit.cluster.printable import printable


@dataclass(frozen=True)
class Finding:
    """The result of one check of `kfit doctor`: that all is well, or a problem.

    Args:
        check: The kind of check, such as "cluster", "peer" or "versions". Programs can rely on
            these names.
        ok: Whether there is no problem.
        text: What was found.
        fix: How to fix the problem; "" if there is no problem.
        about: The task, variable or directory that was checked; "" if this kind of check has only
            one subject.
    """

    check: str
    ok: bool
    text: str
    fix: str = ""
    about: str = ""


@dataclass(frozen=True)
class Examination:
    """All that `kfit doctor` has found out on one task.

    Args:
        task: The name of the task, such as "worker 0"; None outside of a cluster.
        source: What describes the cluster, such as "TF_CONFIG" or "Slurm"; None outside of a
            cluster.
        findings: The results of the checks, in their order.
        reports: What this task, and each other task that answered, says about its software and
            hardware, by the tasks' names.
        seconds: How long the checks took.
    """

    task: str | None
    source: str | None
    findings: Sequence[Finding]
    reports: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return all(finding.ok for finding in self.findings)

    def as_text(self) -> str:
        """Returns the findings as the text that `kfit doctor` prints.

        There is a line for each finding, and below each problem a line that says how to fix it.
        """
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
        """Returns all attributes, and `ok`, as the text of a JSON object."""
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=2)


def _led(finding: Finding) -> str:
    return finding.text if finding.about in finding.text else f"{finding.about}: {finding.text}"


def _indented(text: str, width: int) -> str:
    # Other tasks have sent a part of the text.
    lines = [printable(line) for line in text.strip().split("\n")]
    return ("\n" + " " * (11 + width)).join(lines)
