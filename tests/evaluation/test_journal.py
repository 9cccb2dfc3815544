"""What is written down survives a crash at any place, once."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import kfit
from kfit.checkpoint.store import SnapshotName
from kfit.evaluation.journal import Journal
from kfit.user_files.ownership import ForeignFileError


class Noted(kfit.Exporter):
    """Remembers what was exported, on disk as well."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.steps: list[int] = []
        self._crash_at = crash_at

    def export(self, model: Any, directory: str, evaluation: dict[str, Any]) -> None:
        self.steps.append(evaluation["step"])
        if evaluation["step"] == self._crash_at:
            raise KeyboardInterrupt

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = list(state["steps"])


def opened(folder: Path, exporter: Any = None) -> Journal:
    return Journal(str(folder / "eval"), str(folder / "export"), [exporter or Noted()])


def found(step: int, **metrics: Any) -> tuple[SnapshotName, dict[str, Any]]:
    metrics = metrics or {"loss": 1 / step, "accuracy": 0.5}
    return SnapshotName(1, step, step), {"step": step, "metrics": metrics}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "eval/evaluations.jsonl").open()]


def points(folder: Path, name: str) -> list[tuple[int, float]]:
    """A metric in TensorBoard: (step, value) in the order in which they were written."""
    events = EventAccumulator(str(folder / "eval"), size_guidance={"tensors": 0}).Reload()
    return [
        (e.step, float(e.tensor_proto.float_val[0] if e.tensor_proto.float_val else 0.0))
        for e in events.Tensors(name)
    ]


def test_a_line_and_a_point_each(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        assert journal.evaluated is None
        for step in (10, 20):
            journal.write(*found(step), None)
        journal.pass_over(SnapshotName(1, 21, 21))
    assert [(line["step"], line["metrics"]["loss"]) for line in lines(tmp_path)] == [
        (10, 0.1),
        (20, 0.05),
    ]
    assert [step for step, _ in points(tmp_path, "accuracy")] == [10, 20]
    with opened(tmp_path, again := Noted()) as journal:
        assert journal.evaluated == SnapshotName(1, 21, 21)
        assert [e["step"] for e in journal.evaluations] == again.steps == [10, 20]


@pytest.mark.parametrize("place", ["_write_points", "fsync", "export", "_commit"])
def test_a_crash_loses_and_doubles_nothing(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    crashing = opened(tmp_path, Noted(crash_at=20 if place == "export" else None))

    def crash(*args: Any) -> None:
        raise KeyboardInterrupt

    if place == "fsync":  # after the line was written, before it is known
        monkeypatch.setattr(os, "fsync", crash)
    elif place != "export":
        monkeypatch.setattr(crashing, place, crash)
    with pytest.raises(KeyboardInterrupt):
        crashing.write(*found(20), None)
    monkeypatch.undo()
    crashing.close()
    with opened(tmp_path, exporter := Noted()) as journal:
        assert journal.evaluated == SnapshotName(1, 10, 10)
        assert [line["step"] for line in lines(tmp_path)] == [10]
        journal.write(*found(20), None)
        journal.write(*found(30), None)
        assert [e["step"] for e in journal.evaluations] == exporter.steps == [10, 20, 30]
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 30]
    # Event files of one second are in no order.
    assert sorted(step for step, _ in points(tmp_path, "loss")) == [10, 20, 30]


def test_what_is_no_number(tmp_path: Path) -> None:
    metrics = {"loss": float("nan"), "confusion": np.eye(2), "parts": {"a": float("inf"), "b": 1.5}}
    with opened(tmp_path) as journal:
        journal.write(*found(10, **metrics), None)
        assert journal.evaluations == lines(tmp_path)  # as after a restart
    for name in ("confusion/1/1", "parts/b"):
        assert [step for step, _ in points(tmp_path, name)] == [10]
    (line,) = lines(tmp_path)
    assert line["metrics"] == {
        "loss": None,
        "confusion": [[1.0, 0.0], [0.0, 1.0]],
        "parts": {"a": None, "b": 1.5},
    }


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(kfit.checkpoint.DirectoryInUseError, match=r"EvalSpec\(evaluator=True\)"),
    ):
        opened(tmp_path)
    opened(tmp_path).close()


def test_a_damaged_memory_is_no_new_beginning(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    (tmp_path / "eval/memory.json").write_text("{")
    for _ in range(2):  # the first has let go of the directory
        with pytest.raises(ValueError, match="not a file that kfit wrote"):
            opened(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"mark": "/../../mine/*"},
        {"mark": "*"},
        {"mark": 5},
        {"lines": -1},
        {"lines": "1"},
        {"events": []},
        {"events": {"mine.v2": -5}},
        {"evaluated": 5},
        {"exporters": None},
        {"exporters": [5]},
        {"path": "/tmp"},
        {"format": 1},
        {"evaluated": "\x1b[2J"},
        {"evaluated": "nonsense"},
        {"evaluated": f"g{'1' * 5000}-00000001-step-1"},
    ],
)
def test_a_memory_of_a_stranger_is_refused_and_no_file_is_touched(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    mine = tmp_path / "mine" / "important.v2"
    mine.parent.mkdir()
    mine.write_text("mine")
    (tmp_path / "eval" / "events.out.tfevents.1.kfit-").mkdir()
    path = tmp_path / "eval" / "memory.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    kept = [each for each in (tmp_path / "eval").iterdir() if each.suffix in (".v2", ".jsonl")]
    before = {each: each.read_bytes() for each in kept}
    with pytest.raises(ValueError, match="not a file that kfit wrote"):
        opened(tmp_path)
    assert mine.read_text() == "mine"
    assert before
    assert all(each.read_bytes() == content for each, content in before.items())


def test_more_lines_than_there_are(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    path = tmp_path / "eval" / "memory.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "lines": 2**62}))
    with opened(tmp_path) as journal:
        assert [line["step"] for line in journal.evaluations] == [10]


@pytest.mark.parametrize("name", ["memory.json", "evaluations.jsonl"])
def test_a_pipe_in_place_of_a_file_holds_nobody_up(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    path = tmp_path / "eval" / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{name} (is not a file|holds data) "):
        opened(tmp_path)


@pytest.mark.parametrize("line", ["no JSON", "[" * 5000, "5", '{"step": "1", "metrics": {}}'])
def test_lines_that_are_none_are_named(tmp_path: Path, line: str) -> None:
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    path, memory = tmp_path / "eval/evaluations.jsonl", tmp_path / "eval/memory.json"
    path.write_text(path.read_text() + line + "\n")
    state = json.loads(memory.read_text())
    memory.write_text(json.dumps({**state, "lines": path.stat().st_size}))
    with pytest.raises(ValueError, match=r"Line 2 of .*evaluations.jsonl is not one that kfit"):
        opened(tmp_path)


def test_a_state_that_cannot_be_an_exporters_is_named(tmp_path: Path) -> None:
    best = kfit.BestExporter(monitor="accuracy", mode="max")
    with Journal(str(tmp_path / "eval"), str(tmp_path), [best]) as journal:
        journal.pass_over(found(10)[0])
    memory = tmp_path / "eval/memory.json"
    state = json.loads(memory.read_text())
    memory.write_text(json.dumps({**state, "exporters": {"BestExporter best": {"best": "x"}}}))
    with pytest.raises(
        ValueError, match=r"'BestExporter best' does not take the state .*memory\.json"
    ):
        Journal(str(tmp_path / "eval"), str(tmp_path), [best])


def test_exporters_forget_another_job(tmp_path: Path, tiny: Any) -> None:
    best = kfit.BestExporter()
    for name, steps in (("first", (10, 20)), ("second", (5,))):
        with opened(tmp_path / name, best) as journal:
            assert (best.best, best.best_step) == (None, None)
            for step in steps:
                journal.write(*found(step), tiny.model())
        assert best.best_step == steps[-1]
    new = Noted()
    with pytest.warns(UserWarning, match="'Noted' is new, and begins without a state"):
        Journal(str(tmp_path / "first/eval"), "", [new, best]).close()
    assert (best.best_step, new.steps) == (20, [])
    gone = "'BestExporter other' is new.*; 'BestExporter best' is gone, and so is its state"
    with pytest.warns(UserWarning, match=gone):
        Journal(str(tmp_path / "first/eval"), "", [kfit.BestExporter("other")]).close()


class Plain(kfit.Exporter):
    """Has the state that it is given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def export(self, model: Any, directory: str, evaluation: dict[str, Any]) -> None:
        pass

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_states_of_exporters_by_their_names(tmp_path: Path) -> None:
    given = {"a": np.float32(3), "b": [np.arange(2), (np.int64(1), None)]}
    one, two = Plain(given), Plain({"c": "two"})
    with Journal(str(tmp_path / "eval"), "", [one, Noted(), two]) as journal:
        journal.write(*found(10), None)
    one, two = Plain(None), Plain(None)
    Journal(str(tmp_path / "eval"), "", [Noted(), one, two]).close()  # in another order
    assert one.state == {"a": 3.0, "b": [[0, 1], [1, None]]}
    assert two.state == {"c": "two"}


@pytest.mark.parametrize("state", [{"a": object()}, {"a": {1, 2}}, 5])
def test_a_state_that_cannot_be_written_is_named_before_training(
    tmp_path: Path, state: Any
) -> None:
    with pytest.raises(ValueError, match="`state_dict` of the exporter 'Plain' must return a dict"):
        opened(tmp_path, Plain(state))


def test_a_training_that_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = "1" * 32, "2" * 32
    with opened(tmp_path, exporter := Plain({"best": 1})) as journal:
        journal.belong_to(None)  # an earlier version of kfit has begun it
        journal.write(*found(10), None)
        journal.belong_to(first)
        journal.write(*found(20), None)
        journal.belong_to(first)
        journal.belong_to(None)
        assert journal.evaluated == SnapshotName(1, 20, 20)
    with opened(tmp_path, exporter) as journal:
        assert journal.training == first
        assert capsys.readouterr().out == ""
        journal.belong_to(second)
        assert "kfit: training has begun anew" in capsys.readouterr().out
        assert (journal.evaluated, journal.evaluations) == (None, [])
        journal.write(*found(10), None)
    with opened(tmp_path, exporter) as journal:
        journal.belong_to(second)
        assert [e["step"] for e in journal.evaluations] == [10]
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 10]
    assert capsys.readouterr().out == ""


def test_a_memory_of_the_format_before(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    memory = tmp_path / "eval/memory.json"
    state = json.loads(memory.read_text())
    del state["training"], state["earlier"]
    memory.write_text(json.dumps({**state, "format": 2, "exporters": [{"steps": [10]}]}))
    with pytest.warns(UserWarning, match="'Noted' is new"):
        journal = opened(tmp_path)
    journal.close()
    assert journal.evaluated == SnapshotName(1, 10, 10)
    assert [e["step"] for e in journal.evaluations] == [10]


def test_other_files_stay(tmp_path: Path) -> None:
    """Event files of others: of no journal, or of another one in the same folder."""
    with opened(tmp_path) as journal:
        journal.write(*found(10), None)
    (own,) = (tmp_path / "eval").glob("events.out.tfevents.*")
    kept = [
        tmp_path / "eval" / name
        for name in (
            "events.out.tfevents.1.host.2.v2",
            "events.out.tfevents.1.host.2.kfit.v2",
            f"events.out.tfevents.1.host.2.kfit-{'0' * 32}.v2",
            "lock",
            "notes.txt",
        )
    ]
    for path in kept:
        path.write_text("a user's own")
    linked = {}
    for path in (own, tmp_path / "eval/evaluations.jsonl"):
        os.link(path, tmp_path / f"{path.name} by another name")
        linked[tmp_path / f"{path.name} by another name"] = path.read_bytes()
    for _ in range(2):
        with opened(tmp_path) as journal:
            journal._write_points(found(20)[1])  # not committed
    with opened(tmp_path) as journal:
        journal.write(*found(30), None)
    assert [step for step, _ in points(tmp_path, "loss")] == [10, 30]
    assert all(path.read_text() == "a user's own" for path in kept)
    assert all(path.read_bytes() == content for path, content in linked.items())


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    "content", ["my notes\n", '{"step": 1}\n', '{"step": 1, "metrics": {}}\n' * 2, "{not"]
)
def test_lines_of_others_are_refused_and_stay(tmp_path: Path, content: str, is_new: bool) -> None:
    if not is_new:
        with opened(tmp_path) as journal:
            journal.write(*found(10), None)
    (tmp_path / "eval").mkdir(exist_ok=True)
    path = tmp_path / "eval/evaluations.jsonl"
    with path.open("a") as file:
        file.write(content)
    before = path.read_text()
    with pytest.raises(ForeignFileError, match=r"evaluations.jsonl holds data that kfit did not"):
        opened(tmp_path)
    assert path.read_text() == before
