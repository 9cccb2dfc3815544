"""`kfit.launch` on a real Ray of this host, reached over the loopback interface only."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import kfit
from kfit.supervisor.heartbeat_files import heartbeat_root

ray = pytest.importorskip("ray")

long = pytest.mark.long

SOON = 60.0


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.init(
        address="local",  # whatever Ray the host may run besides
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


def launch(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kfit.launch(function, args, workers=2, on="ray", **{"join": False, **options})


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


def everything_is_given_back() -> bool:
    groups = ray.util.placement_group_table().values()
    return all(group["state"] == "REMOVED" for group in groups) and (
        ray.available_resources().get("CPU") == 2.0
    )


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_function_runs_on_two_workers(capsys: pytest.CaptureFixture[str]) -> None:
    offset = 10

    def work(by: int) -> dict[str, Any]:
        config = json.loads(os.environ["TF_CONFIG"])
        print("here is", config["task"]["index"])
        print("and a word", file=sys.stderr)
        names = ("KFIT_CLUSTER", "KFIT_GENERATION", "KFIT_RUN", "KFIT_SEED", "MINE")
        return {
            "cluster": config["cluster"],
            "result": offset * by,
            "environment": {name: os.environ[name] for name in names},
            "interruptible": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        }

    found = launch(work, 3, env={"MINE": "yes"})
    assert found["result"] == 30
    assert found["interruptible"]
    environment = found["environment"]
    assert environment["MINE"] == "yes"
    assert environment["KFIT_CLUSTER"] == "tf_config"
    assert environment["KFIT_GENERATION"] == "0"
    assert environment["KFIT_RUN"]
    assert int(environment["KFIT_SEED"]) >= 0
    [(kind, addresses)] = found["cluster"].items()
    assert kind == "worker"
    # All on one node: nothing of it has to be seen from outside.
    assert {address.partition(":")[0] for address in addresses} == {"localhost"}
    assert len(set(addresses)) == 2
    printed = capsys.readouterr()
    assert sorted(printed.out.splitlines()) == [f"[worker {i}] here is {i}" for i in (0, 1)]
    first, *said = printed.err.splitlines()
    assert first == "kfit: starting 2 workers on Ray"
    assert sorted(said) == [f"[worker {i}] and a word" for i in (0, 1)]
    wait_until(everything_is_given_back, "the placement group is removed")


@long
def test_what_raises_is_named_with_its_traceback() -> None:
    def fails() -> None:
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise KeyError("no such column")
        time.sleep(600)

    with pytest.raises(kfit.LaunchError) as caught:
        launch(fails)
    message = str(caught.value)
    assert message.startswith("worker 1 raised KeyError: 'no such column'")
    assert 'raise KeyError("no such column")' in message
    assert caught.value.task == "worker 1"


@long
def test_an_end_counts_when_all_have_succeeded(tmp_path: Path) -> None:
    def ends(marker: str, is_last: bool) -> None:
        from kfit.heartbeat import Heartbeat

        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
            assert Heartbeat.of_environment().note_end(marker)
        elif is_last:
            raise KeyError("no such column")

    marker = tmp_path / ".kfit-ending"
    marker.touch()
    with pytest.raises(kfit.LaunchError):
        launch(ends, str(marker), True)
    assert marker.exists()
    launch(ends, str(marker), False)
    assert not marker.exists()


@long
@pytest.mark.parametrize("victim", ["its worker", "its agent"])
def test_all_start_again_when_one_is_killed(
    victim: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def dies_once(is_agent: bool) -> Any:
        is_first = os.environ["KFIT_GENERATION"] == "0"
        if is_first and json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            os.kill(os.getppid() if is_agent else os.getpid(), signal.SIGKILL)
        if is_first:
            time.sleep(600)
        return os.environ["KFIT_GENERATION"], os.environ["KFIT_RUN"]

    generation, run = launch(dies_once, victim == "its agent", max_restarts=1)
    assert generation == "1"
    assert run
    report = capsys.readouterr().err
    how = "was lost: The actor is dead" if victim == "its agent" else "was killed by SIGKILL"
    assert f"kfit: worker 1 {how}" in report
    assert "kfit: all tasks ended well in attempt 2" in report
    wait_until(everything_is_given_back, "the placement group is removed")


@long
def test_a_worker_that_hangs_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    def stalls_once() -> str:
        from kfit.heartbeat import Heartbeat, Phase

        heartbeat = Heartbeat.of_environment()
        is_first = os.environ["KFIT_GENERATION"] == "0"
        stalls = is_first and json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
        with heartbeat.call(Phase.STEP):
            for step in range(1200 if is_first else 30):
                if not (stalls and step > 20):
                    heartbeat.beat(step)
                time.sleep(0.05)
        return os.environ["KFIT_GENERATION"]

    assert launch(stalls_once, hang_timeout=3.0, max_restarts=1) == "1"
    report = capsys.readouterr().err
    assert "kfit: worker 1 hung: no progress for" in report
    assert " after step 20" in report
    assert "in stalls_once" in report


@long
def test_interrupting_leaves_nothing_behind(tmp_path: Path) -> None:
    def waits(folder: str) -> None:
        Path(folder, str(os.getpid())).touch()
        time.sleep(600)

    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both workers wait")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        launch(waits, str(tmp_path))
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    pids = [int(path.name) for path in tmp_path.iterdir()]
    wait_until(lambda: not any(map(runs, pids)), "the workers have ended")
    wait_until(everything_is_given_back, "the placement group is removed")


KILLED = """
import os, sys, time
import kfit
from pathlib import Path

def waits(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)

kfit.launch(waits, sys.argv[1:], workers=2, on="ray", cpus=1)
"""


@long
def test_a_killed_launcher_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither its workers nor their folders, though Ray kills what watches them as well."""
    program, folder = tmp_path / "program.py", tmp_path / "pids"
    program.write_text(KILLED)
    folder.mkdir()

    def made() -> set[str]:
        roots = (heartbeat_root() or tempfile.gettempdir(), tempfile.gettempdir())
        return {str(path) for root in roots for path in Path(root).glob("kfit-*")}

    before = made()
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    launcher = subprocess.Popen([sys.executable, str(program), str(folder)], env=environ)
    try:
        wait_until(lambda: len(list(folder.iterdir())) == 2, "both workers wait")
        assert made() - before
    finally:
        launcher.kill()
        launcher.wait()
    pids = [int(path.name) for path in folder.iterdir()]
    wait_until(lambda: not any(map(runs, pids)), "the workers have ended")
    wait_until(lambda: made() <= before, "their folders are removed")


def test_no_room() -> None:
    with pytest.raises(kfit.LaunchError) as caught:
        launch(print, gpus=1, resources={"fast_disk": 2}, start_timeout=1.0)
    message = str(caught.value)
    asked = "2 worker(s) of {'CPU': 1, 'GPU': 1, 'fast_disk': 2} each (PACK) within 1 s"
    assert message.startswith(f"Ray found no room for {asked}; its cluster has {{'CPU': 2.0}}")


def train(folder: str, victim: int | None) -> str:
    """Trains and returns a digest of the weights; the victim kills itself at one step."""
    import keras

    class Die(kfit.callbacks.TrainingCallback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if os.environ["KFIT_GENERATION"] == "0" and self.training.progress.step == 30:
                os.kill(os.getpid(), signal.SIGKILL)

    keras.utils.set_random_seed(1)
    (x, y), _ = kfit.datasets.digits.load_data()
    layers = [keras.layers.Flatten(), keras.layers.Dropout(0.3), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    callbacks: list[Any] = [kfit.callbacks.BackupAndRestore(folder, save_freq=10)]
    if kfit.distribute.as_strategy("auto").worker_index == victim:
        callbacks.append(Die())
    kfit.fit(model, x, y, batch_size=64, epochs=2, verbose=2, callbacks=callbacks)
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


@long
def test_a_killed_worker_changes_no_weight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(folder: str) -> str:
        return train(folder, 1)

    def spared(folder: str) -> str:
        return train(folder, None)

    import cloudpickle

    # Pytest imports this file in a way that no worker could repeat.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    found = launch(killed, str(tmp_path / "killed"), join=True, env=None, max_restarts=2)
    printed = capsys.readouterr()
    assert "worker 1 was killed by SIGKILL after step" in printed.err
    assert "[worker 0] kfit: going on from" in printed.out
    assert found == launch(spared, str(tmp_path / "spared"), join=True, env=None)
