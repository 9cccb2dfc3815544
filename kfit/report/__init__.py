"""The report of a training: what took the time, and how much of the work counts.

account.py     collects the figures while `fit` runs, and carries them over restarts
lost_steps.py  how many steps the earlier attempts of a run have lost
figures.py     what the figures are
report.py      the figures as text, dict, JSON, HTML, TensorBoard's summaries
text.py        the table, and the line at the end of `fit`
advice.py      what to change, as far as the figures support it
step_parts.py  how long the parts of a step take (`fit(..., profile=True)`)
one_batch.py   the batch on which they are measured
"""

from __future__ import annotations

from kfit.report.account import Account
from kfit.report.report import Report

__all__ = ["Account", "Report"]
