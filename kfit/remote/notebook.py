"""Shows the numbers of notebook cells in the tracebacks of workers.

IPython compiles every cell under the name of a file that does not exist. In its own tracebacks it
shows the cell's number instead; a traceback from another process has the name of the file.
"""

from __future__ import annotations

import re
import sys


def with_cells(traceback: str) -> str:
    """Replaces the file names of a notebook's cells by the cells' numbers.

    Args:
        traceback: The text of a traceback of functions that may be this notebook's.

    Returns:
        The traceback with `Cell In[3]` for `File "/tmp/ipykernel_1/2.py"`; unchanged outside of
        IPython.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return traceback

    def named(found: re.Match[str]) -> str:
        cell = shell.compile.format_code_name(found[1])
        return found[0] if cell is None else " ".join(cell)

    return re.sub(r'File "([^"]+)"', named, traceback)
