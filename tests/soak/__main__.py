"""`python -m tests.soak`: see `tests/soak/command.py`."""

import sys

from tests.soak.command import main

if __name__ == "__main__":
    sys.exit(main())
