"""The program of a task becomes the user's, as if Python had run that.

Outside of a cluster there is nobody to join, so most of these take no longer than Python does.
"""

import json
import os
import py_compile
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from kfit.commands import main

RUN_SCRIPT = Path(main.__file__).with_name("run_script.py")
SOON = 60.0

LOOKS_AROUND = '''
"""A program that tells what it finds."""
from __future__ import annotations
import json, sys
import beside

def told(name, value):
    if name == "__spec__" and value:
        return value.name, value.origin, value.cached
    return type(value).__name__ if name in ("__builtins__", "__loader__") else repr(value)

if __name__ == "__main__":
    here = sys.modules["__main__"]
    found = {name: told(name, value) for name, value in vars(here).items() if name[:2] == "__"}
    print(json.dumps([sys.argv, sys.path, found, vars(here) is globals(), told.__module__]))
    print(here.__loader__.get_source(here.__spec__.name if here.__spec__ else "__main__"))
'''
HAS_CHILDREN = """
    import multiprocessing, os, sys
    import kfit

    print("imported as", __name__, flush=True)
    kfit.join_cluster()

    class Mine:
        pass

    def work(mine):
        return type(mine) is Mine, sys.argv, "tensorflow" in sys.modules

    if __name__ == "__main__":
        for method in ("spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(pool.map(work, [Mine()]))
"""
ENDS = {
    "by itself": "print('done')",
    "exit code": "import sys; sys.exit(7)",
    "a message": "raise SystemExit('that is why')",
    "at once": "import os; os._exit(3)",
    "an error": "def f():\n    raise KeyError('no')\nf()",
    "a chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('no') from e",
    "a group": "raise ExceptionGroup('both', [ValueError(1), KeyError(2)])",
    "syntax": "print('never')\nx = = 2",
    "interrupted": "raise KeyboardInterrupt",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a hook": "import sys\nsys.excepthook = lambda *e: print(e[0], e[2].tb_lineno)\n1 / 0",
    "at exit": "import atexit\nv = 1\natexit.register(lambda: print(__import__('__main__').v))",
    "a thread": "import threading as t, time\nv = 1\n"
    "t.Thread(target=lambda: (time.sleep(0.2), print(__import__('__main__').v))).start()",
}


def ran(*words: object, cwd: Path, **changed: str) -> tuple[int, str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**kept, **changed},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    return done.returncode, done.stdout, done.stderr


def assert_alike(*words: object, cwd: Path, **changed: str) -> tuple[int, str, str]:
    expected = ran(*words, cwd=cwd, **changed)
    assert ran(RUN_SCRIPT, *words, cwd=cwd, **changed) == expected
    return expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program as a script, a link, a module, a package, compiled and zipped."""
    (tmp_path / "beside.py").touch()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "beside.py").touch()
    (inside / "looks.py").write_text(LOOKS_AROUND)
    (inside / "__init__.py").touch()
    (inside / "__main__.py").write_text(LOOKS_AROUND)
    (tmp_path / "link.py").symlink_to(inside / "looks.py")
    py_compile.compile(str(inside / "looks.py"), str(inside / "compiled.pyc"))
    with zipfile.ZipFile(tmp_path / "zipped.pyz", "w") as file:
        file.write(inside / "looks.py", "__main__.py")
        file.write(inside / "beside.py", "beside.py")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["inside/looks.py", "a", "-m", "--b"],
        ["./inside/../inside/looks.py"],
        ["link.py"],
        ["inside/compiled.pyc"],
        ["zipped.pyz", "a"],
        ["-m", "inside.looks", "a", "-m", "b"],
        ["-m", "inside"],
        ["-m", "nowhere"],
        ["-m", "inside.nowhere"],
    ],
)
def test_it_finds_what_python_would_have_it_find(folder: Path, words: list[str]) -> None:
    code, out, _ = assert_alike(*words, cwd=folder)
    assert code == ("nowhere" in words[-1])
    assert code or json.loads(out.splitlines()[0])[3:] == [True, "__main__"]
    if words[0] != "-m":
        assert_alike(folder / words[0], cwd=folder.parent)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH came with Python 3.11")
def test_no_folder_comes_first_where_paths_are_to_be_safe(folder: Path) -> None:
    (folder / "alone.py").write_text("import sys; print(sys.path); import beside")
    code, _, error = assert_alike("alone.py", cwd=folder, PYTHONSAFEPATH="1")
    assert (code, error.splitlines()[-1]) == (1, "ModuleNotFoundError: No module named 'beside'")


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_python_would_have_it_end(tmp_path: Path, end: str) -> None:
    if end == "a group" and sys.version_info < (3, 11):
        pytest.skip("exception groups came with Python 3.11")
    (tmp_path / "ends.py").write_text(ENDS[end])
    _, _, error = assert_alike("ends.py", cwd=tmp_path)
    assert "run_script" not in error
    if end != "syntax":
        assert_alike("-m", "ends", cwd=tmp_path)


def test_what_cannot_be_read_is_said_before_anybody_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("x = = 2")
    addresses = {"worker": ["localhost:23456", "localhost:23457"]}
    config = json.dumps({"cluster": addresses, "task": {"type": "worker", "index": 0}})
    code, _, error = ran(RUN_SCRIPT, "wrong.py", cwd=tmp_path, TF_CONFIG=config)
    assert code == 1
    assert error.splitlines()[-1] == "SyntaxError: invalid syntax"


@pytest.mark.long
def test_the_peer_that_is_missing_is_all_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('never')")
    kept = {"KFIT_INDEX": "0", "KFIT_START_TIMEOUT": "0.5", "TF_CPP_MIN_LOG_LEVEL": "3"}
    addresses = "localhost:23456,localhost:23457"
    code, out, error = ran(RUN_SCRIPT, "train.py", cwd=tmp_path, KFIT_WORKERS=addresses, **kept)
    assert (code, out) == (1, "")
    assert "kfit: error: worker 0 waited 0.5 s" in error
    assert "Traceback" not in error


@pytest.mark.long
def test_two_workers_have_joined_and_their_children_do_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(HAS_CHILDREN))
    words = ("-m", "kfit", "run", "--workers", "2", script, "a")
    code, out, error = ran(*words, cwd=tmp_path, TF_CPP_MIN_LOG_LEVEL="3")
    assert code == 0, error
    for worker in ("[worker 0] ", "[worker 1] "):
        lines = [line.removeprefix(worker) for line in out.splitlines() if line.startswith(worker)]
        assert lines[0] == "imported as __main__"
        assert lines.count("imported as __mp_main__") == 2
        assert lines.count(f"[(True, ['{script}', 'a'], False)]") == 2


def test_what_was_imported_is_kept_from_the_garbage_collector(tmp_path: Path) -> None:
    """Otherwise a task takes a second to end, for which a restart waits."""
    script = tmp_path / "script.py"
    script.write_text("import gc; print(gc.get_freeze_count() > 10_000)")
    done = subprocess.run(
        [sys.executable, str(RUN_SCRIPT), "--no-join", str(script)],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=True,
    )
    assert done.stdout == "True\n"
