"""Where kfit deletes, replaces or cuts off files: in few places, which know whose they are.

A new place needs a line in ``MAY_DELETE`` that says how it knows that kfit wrote what it deletes.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
DELETES = {
    *("unlink", "rmdir", "rmtree", "removedirs", "rename", "renames", "truncate", "ftruncate"),
    *("os.remove", "os.replace", "shutil.move"),
}
MAY_DELETE = {
    "callbacks/backup_and_restore.py": "its directory, when it is empty",
    "datasets/download.py": "moves a damaged file of Keras' cache aside",
    "kfit/checkpoint/at_exit.py": "snapshots, as the store names them",
    "kfit/checkpoint/event_files.py": "event files by the mark in their names",
    "kfit/checkpoint/files.py": "does what the store says, which looks at names and manifests",
    "kfit/checkpoint/lock.py": "the lock, which it has read",
    "kfit/checkpoint/store.py": "snapshots by name, and their three files, through files.py",
    "kfit/checkpoint/written_files.py": "rows by what is in them",
    "kfit/doctor/storage.py": "the file and the folders that it has just made",
    "kfit/evaluation/end_marker.py": "a file that it has read",
    "kfit/user_files/file_template.py": "model files that a template names",
    "kfit/user_files/ownership.py": "a file that it has just made",
    "kfit/heartbeat/errors.py": "a file in a folder of the supervisor's own",
    "kfit/heartbeat/unconfirmed_ends.py": "empty files of one name, which a task has recorded",
    "kfit/remote/call_files.py": "a result in a folder that it has made",
    "kfit/supervisor/heartbeat_files.py": "files in a folder of the supervisor's own",
    "kfit/supervisor/reaper.py": "the folders of its supervisor",
    "kfit/user_files/replacement.py": "what may be replaced",
    "kfit/saving.py": "what was written aside in a folder or by a name of its own",
}


def deletions_in(path: Path) -> list[int]:
    """The lines of a module that call, or hand on, what deletes or replaces files."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if {node.attr, f"{owner}.{node.attr}"} & DELETES:
                found.append(node.lineno)
    return found


def test_only_places_that_know_whose_files_they_are_delete_any() -> None:
    others = {}
    for folder in ("kfit", "callbacks", "datasets", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name not in MAY_DELETE and (lines := deletions_in(path)):
                others[name] = lines
    assert others == {}


def test_a_deletion_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import os, shutil\n"
        "os.remove('a')\n"
        "Path('a').unlink()\n"
        "atexit.register(shutil.rmtree, 'a')\n"
        "['a'].remove('a')\n"
        "'a'.replace('a', 'b')\n"
    )
    assert deletions_in(tmp_path / "a.py") == [2, 3, 4]
