import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kfit.argument_checks import CommandError
from kfit.supervisor.task_logs import OLD_FILES, TaskLogs
from tests.mounts import why_not, with_disk


def test_lines_are_appended_after_a_restart_with_the_attempt(tmp_path: Path) -> None:
    for attempt in range(2):
        log = TaskLogs(str(tmp_path)).open("worker 0", attempt, print)
        log.write("stdout", f"\x1b[32mgreen {attempt}\x1b[0m")
        log.close()
        log.write("stdout", "too late")
    lines = (tmp_path / "worker-0.log").read_text().splitlines()
    assert lines[0] == "kfit: kfit log of worker 0"
    assert lines[1].startswith("kfit: attempt 0 begins, 20")
    assert lines[2] == "green 0"
    assert lines[3].startswith("kfit: attempt 1 begins, 20")
    assert lines[4:] == ["green 1"]


def test_json(tmp_path: Path) -> None:
    log = TaskLogs(str(tmp_path / "new" / "folder"), "json").open("worker 1", 3, print)
    log.write("stderr", 'a "quoted" line: grün')
    log.close()
    lines = (tmp_path / "new" / "folder" / "worker-1.jsonl").read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["stream"] for entry in entries] == ["kfit", "kfit", "stderr"]
    assert set(entries[2]) == {"time", "task", "stream", "attempt", "text"}
    assert entries[2]["text"] == 'a "quoted" line: grün'
    assert entries[2]["attempt"] == 3
    assert entries[2]["time"].endswith("+00:00")


def test_a_large_file_is_renamed_and_few_are_kept(tmp_path: Path) -> None:
    logs = TaskLogs(str(tmp_path), largest=1000)
    log = logs.open("worker 0", 0, print)
    for index in range(200):
        log.write("stdout", f"line {index:>90}")
    log.close()
    names = {f"worker-0.log.{number}" for number in range(1, OLD_FILES + 1)} | {"worker-0.log"}
    assert set(os.listdir(tmp_path)) == names
    assert all((tmp_path / name).stat().st_size < 1100 for name in names)
    assert all("kfit log of worker 0" in (tmp_path / name).read_text() for name in names)
    assert (tmp_path / "worker-0.log").read_text().splitlines()[-1].endswith(" 199")
    logs.open("worker 0", 1, print).close()  # all of them are known as kfit's


@pytest.mark.parametrize("name", ["worker-0.log", "worker-0.log.4"])
def test_a_file_of_another_program_is_never_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("my own results\n")
    with pytest.raises(CommandError, match=rf"`--log-dir` .*'{name}' kfit did not write"):
        TaskLogs(str(tmp_path)).open("worker 0", 0, print)
    assert (tmp_path / name).read_text() == "my own results\n"
    TaskLogs(str(tmp_path)).open("worker 1", 0, print).close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    aside.write_text("kfit: kfit log of worker 0\n")
    (tmp_path / "worker-0.log").symlink_to(aside)
    with pytest.raises(CommandError, match="kfit did not write"):
        TaskLogs(str(tmp_path)).open("worker 0", 0, print)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"`--log-dir` is .*cannot be made"):
        TaskLogs(str(tmp_path / "file" / "logs"))


AS_NOBODY = """
import os, sys
from kfit.commands.main import main
main(["run", sys.argv[-1]])  # imports what that user may not be able to read
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("made", [True, False], ids=["made", "to_be_made"])
@pytest.mark.parametrize("why", ["a read-only disk", "another user"])
def test_a_folder_that_cannot_be_written_ends_kfit_run_before_anything_starts(
    tmp_path: Path, why: str, made: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own are closed to others
        os.chmod(name, 0o755)
        disk, script = Path(name) / "disk", Path(name) / "script.py"
        disk.mkdir(0o755)
        script.write_text("print('it has started')")
        logs = disk if made else disk / "logs"
        command = ["run", "--log-dir", str(logs), str(script)]
        if why == "another user":
            if os.geteuid() != 0:
                pytest.skip("only root can become another user")
            command = [sys.executable, "-c", AS_NOBODY, *command]
        elif reason := why_not():
            pytest.skip(reason)
        else:
            command = with_disk(disk, "ro", [sys.executable, "-m", "kfit", *command])
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2, done.stderr
        assert done.stdout.count("it has started") == (why == "another user")
        cause = "be written to" if made else "be made"
        assert f"`--log-dir` is {str(logs)!r}, which cannot {cause}" in done.stderr.splitlines()[-1]
        assert list(disk.iterdir()) == []


def test_a_full_disk_stops_no_training_and_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    log = TaskLogs(str(tmp_path)).open("worker 0", 0, said.append)
    full = open("/dev/full", "w")  # noqa: SIM115
    assert log._handler is not None
    log._handler.stream.close()
    log._handler.stream = full
    for _ in range(3):
        log.write("stdout", "line")
    assert len(said) == 1
    assert "No space left" in said[0]
