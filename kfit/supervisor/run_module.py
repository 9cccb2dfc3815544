"""Runs a module of kfit as a process of its own: `python .../run_module.py MODULE args...`.

`python -m` puts the current folder first on the path, so a file `json.py` there would run in place
of Python's own module. Processes that run no code of the user are therefore started by this file.
"""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        # Remove this file's folder, for the same reason.
        del sys.path[0]
    import runpy

    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
