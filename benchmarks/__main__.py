"""Compares the speed and memory of kfit with other libraries on the same work.

python -m benchmarks                   all contests; some 50 minutes on an otherwise idle host
python -m benchmarks --only mlp cnn    some of the contests
python -m benchmarks --quick           little work, to test the benchmark; its figures mean nothing
python -m benchmarks --write FILE...   also writes the tables between the markers of Markdown files

`pip install -e ".[bench]"` installs the other libraries. Each measurement runs in a new process. In
a round every contestant runs once, so that other load on the host affects all of them alike. The
tables show medians over the rounds, the minimum and the maximum.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.contests import CONTESTS, TARGETS
from benchmarks.machine import description
from benchmarks.tables import contest_table, short_table, target_table
from benchmarks.turns import Measured, measure

_ALL, _SHORT, _END = (
    "<!-- benchmarks -->",
    "<!-- benchmarks in short -->",
    "<!-- end of benchmarks -->",
)


def main() -> None:
    """Runs the contests and prints their tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--only", nargs="+", choices=list(CONTESTS), default=list(CONTESTS))
    parser.add_argument("--quick", action="store_true", help="a tiny form")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="files with the markers")
    options = parser.parse_args()
    for path in options.write:
        if not any(marker in path.read_text() for marker in (_ALL, _SHORT)):
            parser.error(f"--write: {path} has neither a line {_ALL!r} nor {_SHORT!r}")
    measured: Measured = {}
    for name in options.only:
        measured[name] = measure(CONTESTS[name], options.rounds, options.quick)
        print(contest_table(CONTESTS[name], measured[name]), flush=True)
    about = description(options.rounds)
    tables = [contest_table(CONTESTS[name], measured[name]) for name in measured]
    text = {
        _ALL: "\n".join([about, "", *tables, target_table(TARGETS, measured)]),
        _SHORT: "\n".join([short_table(measured), about]),
    }
    print("\n".join(text.values()))
    for path in options.write:
        _write(path, text)


def _write(path: Path, text: dict[str, str]) -> None:
    """Replaces the text between each pair of markers that a file has.

    Args:
        path: The file.
        text: The new text by the marker that begins its place.
    """
    page = path.read_text()
    for begin, between in text.items():
        if begin in page:
            before, rest = page.split(begin)
            page = f"{before}{begin}\n{between}\n{_END}{rest.partition(_END)[2]}"
    path.write_text(page)


if __name__ == "__main__":
    main()
