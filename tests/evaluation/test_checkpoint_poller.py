"""Which checkpoint is evaluated next; the tests turn the clock, and directories stand for files."""

from pathlib import Path
from typing import Any

import pytest

from kfit.checkpoint.store import SnapshotName
from kfit.evaluation import EvalSpec, TrainSpec
from kfit.evaluation.checkpoint_poller import CheckpointPoller, TrainingIdleError, is_repeated
from kfit.evaluation.end_marker import EndMarker, remove_end_marker, write_end_marker
from kfit.evaluation.training_id import write_training_id


class World:
    """A directory of checkpoints in which something happens at given times."""

    def __init__(self, model_dir: Path, events: dict[float, Any], **options: Any) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.spec = TrainSpec(model_dir=model_dir, x=[1], epochs=3)
        self.directory = Path(self.spec.checkpoint_dir)
        self._events = dict(events)
        self._happen()
        self.watch = CheckpointPoller(
            self.spec,
            EvalSpec(x=[1], **options),
            clock=lambda: self.now,
            sleep=self.sleep,
            say=self.lines.append,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "it waits for ever"
        self._happen()

    def _happen(self) -> None:
        for when in sorted(when for when in self._events if when <= self.now):
            self._events.pop(when)(self)

    def evaluated(self, takes: float = 0.0) -> list[tuple[float, int]]:
        """When each checkpoint is evaluated, and its step, to the end."""
        found, last = [], None
        while (name := self.watch.next_after(last)) is not None:
            found.append((self.now, name.step))
            last = name
            self.sleep(takes)
        return found


def saved(*names: SnapshotName) -> Any:
    def happen(world: World) -> None:
        for name in names:
            (world.directory / str(name)).mkdir(parents=True)

    return happen


def said(
    checkpoint: SnapshotName | None, *, epochs: int = 3, interrupted: bool = False, run="a"
) -> Any:
    def happen(world: World) -> None:
        world.directory.mkdir(parents=True, exist_ok=True)
        name = None if checkpoint is None else str(checkpoint)
        target = {"epochs": epochs, "max_steps": None}
        write_end_marker(str(world.directory), EndMarker(target, interrupted, name, run))

    return happen


def both(*events: Any) -> Any:
    return lambda world: [happen(world) for happen in events]


A, B, C = SnapshotName(1, 1, 10), SnapshotName(1, 2, 20), SnapshotName(1, 3, 30)
THEN_IT_ENDS = {5: saved(A), 7: saved(B), 20: both(saved(C), said(C))}


def test_each_once_in_order_as_they_come(tmp_path: Path) -> None:
    assert World(tmp_path, THEN_IT_ENDS).evaluated() == [(5, 10), (7, 20), (20, 30)]


def test_a_slow_evaluator_leaves_none_out(tmp_path: Path) -> None:
    assert World(tmp_path, THEN_IT_ENDS).evaluated(takes=30) == [(5, 10), (35, 20), (65, 30)]


def test_the_newest_only(tmp_path: Path) -> None:
    world = World(tmp_path, THEN_IT_ENDS, newest_only=True)
    assert world.evaluated(takes=30) == [(5, 10), (35, 30)]


def test_start_delay_and_throttle_do_not_hold_up_the_end(tmp_path: Path) -> None:
    world = World(tmp_path, THEN_IT_ENDS, start_delay_secs=6, throttle_secs=10)
    assert world.evaluated() == [(6, 10), (16, 20), (20, 30)]


def test_the_end_waits_for_what_a_file_system_shows_late(tmp_path: Path) -> None:
    world = World(tmp_path, {1: both(saved(A), said(B)), 9: saved(B)})
    assert world.evaluated() == [(1, 10), (9, 20)]


def test_a_training_without_any_checkpoint_may_end(tmp_path: Path) -> None:
    assert World(tmp_path, {3: said(None)}).evaluated() == []


def test_a_crash_is_no_end(tmp_path: Path) -> None:
    later = SnapshotName(2, 3, 30)  # the chief was started again, and took some time
    world = World(tmp_path, {5: saved(A, B), 3000: both(saved(later), said(later))})
    assert world.evaluated() == [(5, 10), (5, 20), (3000, 30)]


def test_the_end_of_a_shorter_training_is_none(tmp_path: Path) -> None:
    events = {
        0: both(saved(A), said(A, epochs=1)),
        4: lambda world: remove_end_marker(str(world.directory)),
        6: both(saved(B), said(B)),
    }
    assert World(tmp_path, events).evaluated() == [(0, 10), (6, 20)]


def test_the_end_of_this_training_is_one_for_an_evaluator_that_comes_late(tmp_path: Path) -> None:
    assert World(tmp_path, {0: both(saved(A), said(A))}).evaluated() == [(0, 10)]


def test_an_interruption_ends_only_who_has_seen_it(tmp_path: Path) -> None:
    assert World(tmp_path, {2: both(saved(A), said(A, interrupted=True))}).evaluated() == [(2, 10)]
    goes_on = {0: said(A, interrupted=True), 4: both(saved(B), said(B, run="b"))}
    assert World(tmp_path, goes_on).evaluated() == [(0, 10), (4, 20)]


@pytest.mark.parametrize(
    "variables",
    [
        {"KFIT_RUN": "outer", "KFIT_GENERATION": "1"},
        # Under a supervisor of its own that has started it again.
        {"KFIT_RUN": "own", "KFIT_GENERATION": "3", "KFIT_BESIDE": "outer:1"},
    ],
)
def test_the_interruption_of_the_very_run_is_one_for_an_evaluator_that_comes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = both(saved(A), said(A, interrupted=True, run="outer:1"))
    assert World(tmp_path / "same", {0: ended}).evaluated() == [(0, 10)]
    # The run was interrupted and then started again as a whole: it goes on.
    goes_on = {
        0: both(saved(A), said(A, interrupted=True, run="outer:0")),
        4: both(saved(B), said(B, run="outer:1")),
    }
    assert World(tmp_path / "earlier", goes_on).evaluated() == [(0, 10), (4, 20)]


def test_a_training_that_stands_still(tmp_path: Path) -> None:
    world = World(tmp_path, {100: saved(A)}, idle_timeout_secs=200)
    with pytest.raises(
        TrainingIdleError, match=r"no new checkpoint .* 200 s .* not reported"
    ) as caught:
        world.evaluated()
    assert world.now == 300
    assert str(world.directory) in str(caught.value)
    # It was not silent until then: at 60 s, and anew from the checkpoint on.
    assert [" 60 s" in line or " 120 s" in line for line in world.lines] == [True, True, True]
    assert "no checkpoint in" in world.lines[0]
    assert "no new checkpoint in" in world.lines[1]


@pytest.mark.parametrize(("limit", "waited"), [(None, 90), (500, 90), (20, 20)])
def test_a_last_checkpoint_that_has_vanished(tmp_path: Path, limit: Any, waited: int) -> None:
    world = World(tmp_path, {5: saved(A), 1000: said(B)}, idle_timeout_secs=limit and 2000)
    if limit is not None:
        world = World(tmp_path, {5: both(saved(A), said(B))}, idle_timeout_secs=limit)
    with pytest.raises(TrainingIdleError, match=f"has ended, but its last checkpoint {B} is not"):
        world.evaluated()
    assert world.now == (1000 if limit is None else 5) + waited
    assert not any("not reported" in line for line in world.lines if limit is not None)


def test_the_name_of_a_checkpoint_of_an_earlier_training_does_not_count(tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")

    def begun(world: World) -> None:
        write_training_id(directory, begins=True)

    world = World(tmp_path, {0: both(saved(C), begun), 8: both(saved(A), begun)})
    assert world.watch.next_after(None) == C
    first = world.watch.training
    (world.directory / str(C)).rmdir()  # the user deletes it, and trains anew
    assert world.watch.next_after(C, first) == A
    assert world.now == 8
    assert world.watch.training != first


def test_a_folder_that_is_passed_over_hides_and_delays_nothing(tmp_path: Path) -> None:
    fake, end = SnapshotName(9999, 1, 1), SnapshotName(9999, 2, 1)
    later = {30: saved(B), 60: saved(end), 75: both(saved(C), said(end))}
    world = World(
        tmp_path, {5: saved(A), 20: saved(fake), **later}, throttle_secs=10, idle_timeout_secs=50
    )
    found, last = [], None
    while (name := world.watch.next_after(last)) is not None:
        if name.lock_count == 9999:
            world.watch.pass_over(name)
        else:
            found.append((world.now, name))
            last = name
    assert found == [(5, A), (30, B), (75, C)]


def test_what_was_passed_over_may_come_again_in_another_training(tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")

    def begun(world: World) -> None:
        write_training_id(directory, begins=True)

    world = World(tmp_path, {0: both(saved(A), begun), 8: begun})
    assert world.watch.next_after(None) == A
    world.watch.pass_over(A)
    assert world.watch.next_after(None) == A
    assert world.now == 8


def test_an_evaluator_that_is_behind_is_not_idle(tmp_path: Path) -> None:
    events = {0: saved(A, B), 300: said(B)}
    world = World(tmp_path, events, idle_timeout_secs=100, throttle_secs=250)
    assert world.evaluated() == [(0, 10), (250, 20)]


@pytest.mark.parametrize(
    ("name", "last", "names", "repeated"),
    [
        (B, None, [A, B], False),
        (B, A, [A, B], False),
        (SnapshotName(1, 2, 10), A, [A, SnapshotName(1, 2, 10)], True),
        (SnapshotName(1, 2, 10), A, [SnapshotName(1, 2, 10)], True),  # pruned since
        (SnapshotName(2, 2, 10), A, [A, SnapshotName(2, 2, 10)], True),  # gone on from the last
        (
            SnapshotName(2, 2, 10),
            A,
            [SnapshotName(2, 2, 10)],
            False,
        ),  # the last was taken away: gone back
    ],
)
def test_two_checkpoints_of_a_step(
    name: SnapshotName, last: SnapshotName, names: list[SnapshotName], repeated: bool
):
    assert is_repeated(name, last, names) is repeated
