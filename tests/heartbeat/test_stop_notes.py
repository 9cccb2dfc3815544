from pathlib import Path

from kfit.heartbeat import Heartbeat, HeartbeatReader
from kfit.heartbeat.stop_notes import read_stop_note


def test_a_task_tells_its_supervisor_what_it_has_saved(tmp_path: Path) -> None:
    path = str(tmp_path / "task")
    reader = HeartbeatReader(path)
    assert read_stop_note(path) == ""
    assert Heartbeat(path).note_stop("after step 9; saved in bäckup")
    assert read_stop_note(path) == "after step 9; saved in bäckup"
    reader.close()


def test_without_a_supervisor_nobody_reads_it() -> None:
    assert not Heartbeat().note_stop("after step 9")
