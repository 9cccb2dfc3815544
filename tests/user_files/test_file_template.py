"""A template names files in its folder, and deletes these alone."""

import os
from pathlib import Path

import pytest

from kfit.user_files.file_template import FileTemplate

MODEL = b"PK\x03\x04..."


@pytest.mark.parametrize(
    ("template", "folder", "yes", "no"),
    [
        ("r/{epoch:02d}.keras", "r", ["01.keras", "100.keras"], ["x.keras", "1.h5", "a/1.keras"]),
        ("{epoch}-{val_loss:.2f}.keras", "", ["1-0.25.keras", "2-nan.keras"], ["1.keras"]),
        ("r/{epoch}/m.keras", "r", ["3/m.keras"], ["../m.keras", "3/../m.keras", "/3/m.keras"]),
        ("r//{epoch}.keras", "r", ["3.keras"], ["/3.keras"]),
        ("r/.//a//{epoch}/.//m.keras", "r/.//a", ["3/m.keras"], ["3//m.keras"]),
        ("//{epoch}.keras", "//", ["3.keras"], ["/3.keras"]),
        ("r/m.keras", "r", ["m.keras"], ["n.keras", "./m.keras", ""]),
        ("r/{{{step}}}.keras", "r", ["{7}.keras"], ["7.keras"]),
        ("/r/run-{step}.weights.h5", "/r", ["run-7.weights.h5"], ["run-7xweights.h5", "/r/x"]),
    ],
)
def test_what_a_template_names(template: str, folder: str, yes: list[str], no: list[str]) -> None:
    made = FileTemplate(template)
    assert made.folder == folder
    assert [name for name in [*yes, *no] if made.names(name)] == yes
    assert made.has_fields == ("{" in template)


def test_a_path_has_a_name_and_back(tmp_path: Path) -> None:
    template = FileTemplate(f"{tmp_path}/deep/{{epoch}}/{{step}}.keras")
    name = template.name_of(f"{tmp_path}/deep/2/30.keras")
    assert name == "2/30.keras"
    assert template.names(name)


def test_only_models_files_are_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1.keras").write_bytes(MODEL)
    run = tmp_path / "run"
    (run / "5").mkdir(parents=True)
    (run / "5" / "1.keras").write_bytes(MODEL)
    (run / "6").symlink_to(outside)
    (run / "7").mkdir()
    (run / "7" / "1.keras").symlink_to(outside / "1.keras")
    (run / "8" / "1.keras").mkdir(parents=True)
    (run / "9").mkdir()
    (run / "9" / "1.keras").write_text("no model")
    (run / "10").mkdir()
    (run / "10" / "1.keras").write_bytes(MODEL)
    (run / "10" / "1.keras").chmod(0o400)
    template = FileTemplate(str(run / "{epoch}" / "{step}.keras"))
    removed = [n for n in map(str, range(5, 12)) if template.remove(f"{n}/1.keras")]
    assert removed == ["5"]
    assert not template.remove("../outside/1.keras")
    assert not template.remove(str(outside / "1.keras"))
    assert os.listdir(outside) == ["1.keras"]
    assert sorted(os.listdir(run)) == ["10", "5", "6", "7", "8", "9"]
    assert all(os.listdir(run / n) == ["1.keras"] for n in ("6", "7", "8", "9", "10"))
