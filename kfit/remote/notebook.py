"""What a traceback calls the cells of a notebook.

IPython compiles every cell under the name of a file that does not exist. In its own tracebacks it
shows the cell's number instead; a traceback that comes from another process has the file's name.
"""

from __future__ import annotations

import re
import sys


def with_cells(traceback: str) -> str:
    """Puts the numbers of a notebook's cells in the place of their files' names.

    Args:
        traceback: The text of a traceback of functions that may be this notebook's.

    Returns:
        The same with `Cell In[3]` for `File "/tmp/ipykernel_1/2.py"`; unchanged outside of IPython.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return traceback

    def named(found: re.Match[str]) -> str:
        cell = shell.compile.format_code_name(found[1])
        return found[0] if cell is None else " ".join(cell)

    return re.sub(r'File "([^"]+)"', named, traceback)
