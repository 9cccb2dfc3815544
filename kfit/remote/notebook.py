"""Shows the numbers of notebook cells in the tracebacks of other processes.

IPython compiles every cell under the name of a file that does not exist. In IPython's own
tracebacks the number of the cell replaces this name. But a traceback from a worker of `kfit.launch`
has the name of the file.
"""

from __future__ import annotations

import re
import sys


def with_cells(traceback: str) -> str:
    """Replaces the names that a traceback has for a notebook's cells by the cells' numbers.

    Args:
        traceback: The text of a traceback, such as that of a worker that calls a function of this
            notebook.

    Returns:
        The traceback, for example with `Cell In[3]` in place of `File "/tmp/ipykernel_1/2.py"`. If
        this process does not run in IPython, the traceback is unchanged.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return traceback

    def named(found: re.Match[str]) -> str:
        cell = shell.compile.format_code_name(found[1])
        return found[0] if cell is None else " ".join(cell)

    return re.sub(r'File "([^"]+)"', named, traceback)
