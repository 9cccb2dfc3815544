"""Snapshots that a stranger has changed at random places, with checksums that agree.

Usage: python -m tests.checkpoint.forged_snapshots FOLDER --seed S --count N [--only I]

Each forged snapshot must count as damaged, so that the one before it is taken, or be one that can
be restored. The reading process may take 300 MB more than it has, and open, import and start
nothing outside of the directory of snapshots; the files there lead to a canary that nobody may
touch.
"""

import argparse
import codecs
import collections
import copy
import ctypes
import faulthandler
import hashlib
import importlib.util
import io
import json
import os
import random
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import kfit
from kfit.checkpoint import snapshot_manifest
from kfit.checkpoint.fits import Label
from kfit.checkpoint.hdf5_arrays import hdf5_bytes
from kfit.checkpoint.lock import DirectoryLock
from kfit.checkpoint.snapshot import Snapshot, join, split, to_json
from kfit.checkpoint.snapshot_manifest import FileEntry, Manifest
from kfit.checkpoint.store import Store
from kfit.checkpoint.training_schema import check_training
from kfit.commands.inspected_snapshots import as_text, inspect
from kfit.user_files.ownership import ForeignFileError
from tests.checkpoint.golden import contents

ROOM = 300 << 20
"""The bytes that reading a forged snapshot may take, besides those of the process."""
SECONDS = 120
"""After so many the process ends with its stacks, whatever it does."""
OLD, NEW = 2, 3
"""The steps of the good snapshot, and of the forged one after it."""
DEEP = 100_000

LEAVES: list[Any] = [
    *(None, True, False, 0, -1, 1, 624, 2**31 - 1, 2**32, 2**63, -(2**63) - 1, 10**400, 10**4000),
    *(0.5, 1e308, float("nan"), float("inf"), -float("inf"), -0.0, "", "x", "1", "model", "$array"),
    *("\ud800", "\x1b[2J\r\n", "../../canary", "/etc/passwd", "\0", "名" * 1000, "a" * 10**6),
    *([], {}, [[]], [None], {"": None}, {"\ud800": 1}, list(range(10_000)), [{}] * 1000),
    *({"$array": "000000"}, {"$array": "999999"}, {"$array": []}, {"$array": None}),
    *({"$array": "000000", "x": 1}, {"$array": "\ud800"}, f"@{DEEP}@", "@150@", "@400@", "@990@"),
]


def _alone(path: str) -> Any:
    """A module of kfit without its package, which imports TensorFlow."""
    spec = importlib.util.spec_from_file_location("alone", Path(kfit.__file__).parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["alone"] = module  # where `dataclass` looks
    spec.loader.exec_module(module)
    return module


Generators = _alone("objects/generators.py").Generators
Tree = Any
Draw = random.Random
Forged = dict[str, bytes]


def in_json(tree: Tree) -> bytes:
    """A tree as JSON; a text `@N@` in it becomes N lists in each other."""
    text = json.dumps(tree, indent=1)
    for depth in (150, 400, 990, DEEP):
        text = text.replace(f'"@{depth}@"', "[" * depth + "]" * depth)
    return text.encode()


def places(tree: Tree) -> Iterator[tuple[Any, Any]]:
    """Every place in a tree: what holds it, and the key or the index there."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys if isinstance(tree, dict | list) else ():
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from places(tree[key])


def leaf(draw: Draw) -> Any:
    """A value to put somewhere, which no other place has."""
    return copy.deepcopy(draw.choice(LEAVES))


def change(draw: Draw, tree: Tree) -> None:
    """Changes a tree at one place or several."""
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        if not list(places(tree)):
            return  # all was taken out
        holder, key = draw.choice(list(places(tree)))
        other, other_key = draw.choice(list(places(tree)))
        kind = draw.choice(["leaf", "leaf", "leaf", "without", "more", "other", "wrapped"])
        if kind == "leaf":
            holder[key] = leaf(draw)
        elif kind == "without":
            del holder[key]
        elif kind == "more" and isinstance(holder, dict):
            holder[draw.choice(["more", "__class__", "\ud800", "", "$array"])] = leaf(draw)
        elif kind == "more":
            holder.extend([copy.deepcopy(holder[key])] * draw.choice([1, 100]))
        elif kind == "other":
            holder[key] = copy.deepcopy(other[other_key])
        else:
            holder[key] = draw.choice([[holder[key]], {"x": holder[key]}, {"0": holder[key]}])


def twice(draw: Draw, text: bytes) -> bytes:
    """JSON in which a key comes twice."""
    lines = text.split(b"\n")
    keys = [i for i, line in enumerate(lines) if b'": ' in line and line.endswith(b",")]
    at = draw.choice(keys)
    lines.insert(at, lines[at].partition(b'": ')[0] + b'": ' + in_json(leaf(draw)) + b",")
    return b"\n".join(lines)


def change_array(draw: Draw, arrays: dict[str, Any]) -> None:
    """Changes the form or the values of an array, or which arrays there are."""
    name = draw.choice(list(arrays))
    array = np.asarray(arrays[name])
    kind = draw.choice(["dtype", "shape", "empty", "large", "values", "gone", "renamed", "more"])
    if kind == "dtype":
        dtypes = ["?", "i1", "u8", "f2", "f8", "c16", "bfloat16"]
        arrays[name] = np.zeros(array.shape, np.dtype(draw.choice(dtypes)))
    elif kind == "shape":
        shapes = [array.reshape(-1), array[None], array.reshape(-1)[:1], array.reshape(-1)[:0]]
        arrays[name] = draw.choice(shapes)
    elif kind == "empty":
        arrays[name] = np.zeros(draw.choice([(0,), (0, 2**40), (2**40, 0), ()]), array.dtype)
    elif kind == "large":
        arrays[name] = np.zeros(draw.choice([10**6, (10**3, 1254)]), array.dtype)
    elif kind == "values" and array.dtype.kind == "f":
        arrays[name] = np.full_like(array, draw.choice([np.nan, np.inf, -1, 2.0**63]))
    elif kind == "values":
        arrays[name] = np.frombuffer(draw.randbytes(array.nbytes), array.dtype)
        arrays[name] = arrays[name].reshape(array.shape)
    elif kind == "gone":
        del arrays[name]
    elif kind == "renamed":
        arrays[draw.choice(["x", "\x1b[2J", "名"])] = arrays.pop(name)
    else:
        arrays["999999"] = array


def change_generators(draw: Draw, tree: Tree, arrays: dict[str, Any]) -> None:
    """Changes the states of the random generators, where Python and NumPy crash on some."""
    name = tree["random"]["tasks"]["$array"]
    tasks = np.array(arrays[name])
    columns = [0, 623, 624, 625, 626, 627, 1250, 1251, 1252, 1253, draw.randrange(1254)]
    values = [-1, 0.5, 1, 624, 625, 2**31 - 1, 2**31, 2**32, 2**63, np.nan, np.inf, -np.inf]
    tasks[0, draw.choice(columns)] = draw.choice(values)
    if draw.random() < 0.1:
        tasks[0, draw.choice([0, 627]) :][:624] = draw.choice([0, 1, 2**32 - 1])
    arrays[name] = tasks


def _virtual(file: h5py.File, canary: str) -> None:
    layout = h5py.VirtualLayout((4,), "u1")
    layout[:] = h5py.VirtualSource(canary, "a", (4,))
    file.create_virtual_dataset("000000", layout)


def _outside(file: h5py.File, canary: str) -> None:
    file.create_dataset("000000", (4,), "u1", external=[(canary, 0, 4)])


def _in_itself(file: h5py.File, canary: str) -> None:
    file.create_group("000000")["itself"] = file


def _with_type(dtype: Any) -> Callable[[h5py.File, str], None]:
    return lambda file, canary: file.create_dataset("000000", (3,), dtype)


def _with_attribute(value: Any) -> Callable[[h5py.File, str], None]:
    def add(file: h5py.File, canary: str) -> None:
        file["000000"] = np.arange(4, dtype="u2")
        file["000000"].attrs["dtype"] = value

    return add


IN_HDF5: list[Callable[[h5py.File, str], None]] = [
    lambda file, canary: file.__setitem__("000000", h5py.ExternalLink(canary, "a")),
    lambda file, canary: file.__setitem__("000000", h5py.SoftLink("/000001")),
    lambda file, canary: file.__setitem__("000000", h5py.SoftLink("/000000")),
    lambda file, canary: file.__setitem__("000000", np.dtype("f4")),
    lambda file, canary: file.__setitem__("000000", file["000001"]),
    _virtual,
    _outside,
    _in_itself,
    *map(_with_type, [h5py.string_dtype(), h5py.vlen_dtype("i4"), h5py.ref_dtype, "S5", "V7"]),
    *map(_with_type, [h5py.regionref_dtype, "i4, f4", "(2,3)i4", h5py.enum_dtype({"A": 7})]),
    *map(_with_attribute, ["finfo", "bfloat16", "\x1b", "__name__", 5, [1, 2], np.zeros(9)]),
    lambda file, canary: file.create_dataset("000000", (2**40,), "f4"),
    lambda file, canary: file.create_dataset("000000", (2**40,), "f4", chunks=(2**20,)),
    lambda file, canary: file.create_dataset("000000", data=np.zeros(10**5), compression="gzip"),
    lambda file, canary: file.create_dataset("000000", data=np.zeros(99), shuffle=True),
    lambda file, canary: file.create_dataset("000000", data=np.arange(3, dtype=">f4")),
    lambda file, canary: file.create_dataset("000000", data=h5py.Empty("f4")),
]


def change_file(draw: Draw, content: bytes, canary: str) -> bytes:
    """Changes an HDF5 file: by what HDF5 can do besides, or bytes of it at random."""
    if draw.random() < 0.6:
        file = io.BytesIO(content)
        with h5py.File(file, "r+") as opened:
            del opened["000000"]
            draw.choice(IN_HDF5)(opened, canary)
        return file.getvalue()
    changed = bytearray(content)
    kind = draw.choice(["flip", "flip", "number", "number", "cut", "random", "nothing", "more"])
    for _ in range(draw.choice([1, 3, 30])):
        at = draw.randrange(min(len(changed), 40_000) - 8)
        if kind == "flip":
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == "number":
            number = draw.choice([0, 1, 96, len(content), 2**31, 2**40, 2**63, 2**64 - 1])
            changed[at : at + 8] = struct.pack("<Q", number)
    if kind == "cut":
        return content[: draw.randrange(len(content))]
    return {
        "random": draw.randbytes(5000),
        "nothing": b"",
        "more": content + b"\0" * 10**6,
    }.get(kind, bytes(changed))


def forge(draw: Draw, canary: str) -> tuple[str, Forged]:
    """Draws what is changed; returns its kind and the files."""
    about, tree = contents.about(), split(contents.state())[0]
    about = {**about, "lock_count": 1, "created": 1.5, "step_in_epoch": 0, "versions": {}}
    arrays = dict(split(contents.state())[1])
    kind = draw.choice(
        ["about", "manifest", "state", "state", "state", "arrays", "generators", "hdf5", "twice"]
    )
    if kind == "about":
        change(draw, about)
        about["step"] = NEW if draw.random() < 0.9 else about.get("step")
    elif kind == "state":
        change(draw, tree)
    elif kind == "arrays":
        change_array(draw, arrays)
    elif kind == "generators":
        change_generators(draw, tree, arrays)
    files = {"state.json": in_json(tree), "arrays.h5": b"".join(hdf5_bytes(arrays))}
    if kind == "hdf5":
        files["arrays.h5"] = change_file(draw, files["arrays.h5"], canary)
    elif kind == "twice":
        files["state.json"] = twice(draw, files["state.json"])
    entries = {
        name: FileEntry(len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    }
    content = json.loads(snapshot_manifest.dump(Manifest({}, entries)))
    del content["sha256"]
    content["about"] = about
    if kind == "manifest":
        change(draw, content)
    if draw.random() < 0.05:
        files[draw.choice(["more.bin", "state.json.bak"])] = b"x"
    return kind, {**files, "manifest.json": signed(content)}


def signed(content: Tree) -> bytes:
    """A manifest with the checksum that kfit computes of what it has parsed."""
    try:
        parsed = json.loads(in_json(content))
        digest = hashlib.sha256(to_json(parsed)).hexdigest()
    except (RecursionError, ValueError):  # kfit cannot parse it either
        digest = ""
    return in_json({**content, "sha256": digest} if isinstance(content, dict) else content)


def change_lock(draw: Draw, text: bytes) -> bytes:
    """A lock file with other contents of the same size."""
    tree = json.loads(text)
    change(draw, tree)
    forged = in_json(tree)
    return draw.choice([forged[:1024].ljust(1024), b"[" * 1024, b'{"fits":' * 128, forged])


def guard(directory: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """The hook that lets nothing happen but the reading of files of the directory."""
    inside = {*("manifest.json", "state.json", "arrays.h5"), ".kfit-lock"}
    refused = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork")
    refused += ("pickle.", "import", "exec", "ctypes.", "os.putenv", "shutil.", "urllib.")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not guard.armed:  # type: ignore[attr-defined]
            return
        if event == "open":
            path = os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else ""
            beneath = Path(path).is_relative_to(directory)
            if path in inside or beneath or not path:
                return
            raise AssertionError(f"opened {path}")
        if event.startswith(refused) and event != "socket.gethostname":
            raise AssertionError(f"{event} {arguments!r:.200}")

    return hook


def watch(folder: Path) -> int:
    """Returns a descriptor from which one can read once a file of the folder was opened."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    in_open, in_modify, in_delete = 0x20, 0x2, 0x200
    mask = in_open | in_modify | in_delete
    assert library.inotify_add_watch(descriptor, os.fsencode(folder), mask) > 0
    return int(descriptor)


def was_touched(descriptor: int) -> bool:
    try:
        return bool(os.read(descriptor, 4096))
    except BlockingIOError:
        return False


def use(snapshot: Snapshot) -> None:
    """What a training does with a snapshot before TensorFlow gets its values."""
    Label.of(snapshot.about)
    values, arrays = split(snapshot.state)
    _, sent = json.loads(to_json([snapshot.about, values]))
    join(sent, arrays)
    for row in np.asarray(snapshot.state["random"]["tasks"]):
        Generators.of_row(row).give()
        random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()


def read(directory: Path) -> bool:
    """Reads the newest good snapshot; returns whether the forged one is it."""
    store = Store(str(directory), key=b"", check=check_training)
    for name in store.names():
        about = store.about(name)
        if about is not None:
            Label.of(about)
    snapshot, damages = store.newest()
    assert snapshot is not None
    assert snapshot.about["step"] == (OLD if damages else NEW)
    use(snapshot)
    found = inspect(str(directory), None)
    json.dumps(found)
    assert as_text(found).isprintable() or "\n" in as_text(found)
    return not damages


def main() -> None:
    """Forges snapshots and reads them, and prints how many of each kind were damaged."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, required=True)
    options.add_argument("--only", type=int)
    given = options.parse_args()
    directory, outside = given.folder.resolve() / "backup", given.folder.resolve() / "outside"
    directory.mkdir()
    outside.mkdir()
    canary = outside / "canary"
    with h5py.File(canary, "w") as file:
        file["a"] = np.zeros(4, "u1")
    os.environ["KFIT_CANARY"] = "untouched"
    store = Store(str(directory), key=b"")
    about = {**contents.about(), "created": 1.5, "step_in_epoch": 0, "versions": {}}
    old = contents.state()
    old["progress"]["step"] = OLD
    store.save(Snapshot({**about, "step": OLD}, old))
    folder = directory / str(store.save(Snapshot({**about, "step": NEW}, contents.state())))
    DirectoryLock(str(directory), {}).release()
    lock = (directory / ".kfit-lock").read_bytes()
    assert "tensorflow" not in sys.modules  # it would hide what reading takes
    assert read(directory)  # and whatever is imported late, is now
    codecs.lookup("ascii")  # h5py does, for texts
    descriptors, untouched = len(os.listdir("/proc/self/fd")), watch(outside)
    sys.addaudithook(guard(directory))
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    damaged: collections.Counter[str] = collections.Counter()
    restored: collections.Counter[str] = collections.Counter()
    for number in range(given.count) if given.only is None else [given.only]:
        draw = random.Random(f"{given.seed} {number}")
        kind, files = forge(draw, str(canary))
        print(f"{number} {kind}", file=sys.stderr, flush=True)
        for path in folder.iterdir():
            path.unlink()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (directory / ".kfit-lock").write_bytes(change_lock(draw, lock))
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        assert not was_touched(untouched)
        guard.armed = True  # type: ignore[attr-defined]
        (restored if read(directory) else damaged)[kind] += 1
        try:
            held = DirectoryLock(str(directory), {})
            assert held.lock_count < 1 << 62
            held.release()
        except ForeignFileError:
            damaged["lock"] += 1
        else:
            restored["lock"] += 1
        guard.armed = False  # type: ignore[attr-defined]
        faulthandler.cancel_dump_traceback_later()
        assert not was_touched(untouched), "the canary was opened"
        assert os.environ["KFIT_CANARY"] == "untouched"
        assert len(os.listdir("/proc/self/fd")) == descriptors + 1, "a file is left open"
    print(json.dumps({"damaged": damaged, "restored": restored}))


guard.armed = False  # type: ignore[attr-defined]
if __name__ == "__main__":
    faulthandler.enable()
    main()
