"""`python -m tests.programs`: see `tests/programs/generated/command.py`."""

import sys

from tests.programs.generated.command import main

sys.exit(main())
