"""kfit beside its peers, on the same work, in turns.

python -m benchmarks                   all of it; some 20 minutes on an otherwise idle host
python -m benchmarks --only mlp cnn    some of the contests
python -m benchmarks --quick           a tiny form, to see that it works; its figures mean nothing
python -m benchmarks --write FILE      puts the tables between the markers of a Markdown file, too

`pip install -e ".[bench]"` installs the peers. Each measurement is a process of its own; in a round
every contestant has one turn, so that whatever else the host does meets all of them. The tables
show medians over the rounds, the least and the most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.contests import CONTESTS, TARGETS
from benchmarks.machine import description
from benchmarks.tables import contest_table, target_table
from benchmarks.turns import Measured, measure

_BEGIN, _END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--only", nargs="+", choices=list(CONTESTS), default=list(CONTESTS))
    parser.add_argument("--quick", action="store_true", help="a tiny form")
    parser.add_argument("--write", type=Path, help="a Markdown file with the markers")
    options = parser.parse_args()
    if options.write and _BEGIN not in options.write.read_text():
        parser.error(f"--write: {options.write} has no line {_BEGIN!r}")
    measured: Measured = {}
    for name in options.only:
        measured[name] = measure(CONTESTS[name], options.rounds, options.quick)
        print(contest_table(CONTESTS[name], measured[name]), flush=True)
    text = "\n".join(
        [description(options.rounds), ""]
        + [contest_table(CONTESTS[name], measured[name]) for name in measured]
        + [target_table(TARGETS, measured)]
    )
    print(text)
    if options.write:
        before, rest = options.write.read_text().split(_BEGIN)
        options.write.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    sys.exit(main())
