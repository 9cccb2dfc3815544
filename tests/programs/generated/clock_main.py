"""What a process that a clock kills runs: one program.

Usage: clock_main.py FOLDER, where `plan.json` is.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from tests.programs.generated.clock_kill import killed_after
from tests.programs.generated.command import set_up
from tests.programs.generated.place import Place
from tests.programs.generated.run import run


def main(folder: Path) -> None:
    """Runs the program until the clock of the plan ends the process."""
    plan = json.loads((folder / "plan.json").read_text())
    set_up(plan["devices"])
    import kfit  # noqa: F401  its import is no part of the program

    with killed_after(plan["seconds"]):
        outcome = run(plan["program"], Place(**plan["place"]), folder)
    if outcome.error is not None:
        raise outcome.error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
