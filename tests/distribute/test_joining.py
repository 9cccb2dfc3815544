"""A process joins a cluster when it says so, and importing kfit says nothing of the kind."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import tensorflow as tf

import kfit
from kfit.distribute import ClusterError, Task

WORKERS = {"worker": ["localhost:23456", "localhost:23457"]}
WITH_PS = {"chief": ["localhost:23458"], **WORKERS, "ps": ["localhost:23459"]}
UNWANTED = ("TF_CONFIG", "KFIT_WORKERS", "KFIT_CLUSTER")


def tf_config(addresses: dict[str, list[str]], task: Task) -> dict[str, str]:
    described = {"cluster": addresses, "task": {"type": task.type, "index": task.id}}
    return {"TF_CONFIG": json.dumps(described)}


DESCRIBED = {
    "a worker": tf_config(WORKERS, Task("worker", 1)),
    "a coordinator": tf_config(WITH_PS, Task("chief", 0)),
    "a pod": {"KFIT_WORKERS": ",".join(WORKERS["worker"]), "JOB_COMPLETION_INDEX": "0"},
    "a step": {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_PROCID": "0",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": "0",
    },
}
LISTENS = """
    import sys

    def refuse(event, arguments):
        # urllib3, which Keras imports, tries by a port of the system's whether there is IPv6.
        if event in ("socket.bind", "socket.connect") and arguments[1] != ("::1", 0):
            raise SystemExit(f"{event} {arguments[1:]}")

    sys.addaudithook(refuse)
"""


def runs(program: str, **described: str) -> str:
    """Runs a program in a cluster of which nobody else is there, and returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LISTENS) + textwrap.dedent(program)],
        # Whoever waited for the others would wait for longer than the test.
        env={**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "KFIT_START_TIMEOUT": "600", **described},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("task", DESCRIBED)
def test_importing_waits_for_nobody(task: str) -> None:
    program = """
        import kfit
        from kfit.distribute import current_cluster
        import kfit.datasets, kfit.commands.main, kfit.remote.launch
        assert current_cluster().joins
        assert not sys.modules.keys() & {"tensorflow", "keras"}
    """
    runs(program, **DESCRIBED[task])


@pytest.mark.long
def test_nothing_that_can_be_imported_opens_a_socket() -> None:
    program = """
        import kfit
        for name in kfit.__all__:
            getattr(kfit, name)
        for room in (kfit.callbacks, kfit.distribute):
            for name in room.__all__:
                getattr(room, name)
        assert "tensorflow" in sys.modules
        from kfit.internals.runtime import tensorflow_has_run
        print(tensorflow_has_run())
    """
    assert runs(program, **DESCRIBED["a worker"]) == "False\n"


@pytest.mark.parametrize(
    "described",
    [
        {},
        {**DESCRIBED["a worker"], "KFIT_CLUSTER": "none"},
        tf_config({"worker": WORKERS["worker"][:1]}, Task("worker", 0)),
        tf_config(WORKERS, Task("evaluator", 0)),
        tf_config(WITH_PS, Task("worker", 0)),
        tf_config(WITH_PS, Task("ps", 0)),
    ],
)
def test_who_joins_nobody_need_not_even_import_tensorflow(described: dict[str, str]) -> None:
    runs("import kfit; kfit.join_cluster(); assert 'tensorflow' not in sys.modules", **described)


def test_a_wrong_description_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{'cluster'")
    with pytest.raises(ClusterError, match="`TF_CONFIG`: the text is not JSON"):
        kfit.join_cluster()


@pytest.mark.parametrize("task", ["a worker", "a coordinator"])
@pytest.mark.parametrize("join", ["join_cluster", "Trainer", "fit", "Sequential.fit"])
def test_too_late_is_said_with_the_line_to_add(
    monkeypatch: pytest.MonkeyPatch, tiny: Any, task: str, join: str
) -> None:
    assert int(tf.constant(1)) == 1
    for name, value in DESCRIBED[task].items():
        monkeypatch.setenv(name, value)
    who = {"a worker": "worker 1", "a coordinator": "chief 0"}[task]
    joins = {
        "join_cluster": kfit.join_cluster,
        "Trainer": lambda: kfit.Trainer(tiny.model()),
        "fit": lambda: kfit.fit(tiny.model(), *tiny.data(8)),
        "Sequential.fit": lambda: tiny.model(cls=kfit.Sequential).fit(*tiny.data(8)),
    }
    with pytest.raises(ClusterError) as caught:
        joins[join]()
    message = str(caught.value)
    assert message.startswith(f"{who} cannot join its cluster any more: TensorFlow already ran an ")
    assert message.endswith(
        "Write `import kfit; kfit.join_cluster()` as the first lines of the program, or start it "
        "with `kfit run`."
    )
