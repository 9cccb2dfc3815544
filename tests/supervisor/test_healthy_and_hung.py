"""Real programs that are slow and silent, or hang, in every phase; all limits a fifth as long."""

import io
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfit.supervisor.backend import LocalBackend
from kfit.supervisor.hang_detection import Limits
from kfit.supervisor.local import local_commands
from kfit.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.long

PROGRAM = """
    import sys, time
    import keras, kfit, numpy as np
    where = sys.argv[1]
    x = np.ones((32, 4), "float32")
    y = np.ones((32, 1), "float32")

    def stall(here):
        if here == where:
            time.sleep(600)  # here

    class Stalls(keras.callbacks.Callback):
        steps = 0
        def on_train_begin(self, logs=None):
            stall("on_train_begin")
        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            while where == "on_train_batch_end" and self.steps == 2:
                time.sleep(0.02)
        def on_predict_end(self, logs=None):
            stall("on_predict_end")

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
        def call(self, x):
            return self.dense(x)
        def train_step(self, data):
            stall("tracing")
            return super().train_step(data)

    def batches():
        for index in range(100):
            if index == 5:
                stall("reading data")
            time.sleep(0.6 if where == "healthy" else 0)
            yield x[:8], y[:8]

    trainer = kfit.Trainer(Model(), "one_device")
    trainer.compile("sgd", "mse")
    trainer.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Stalls()])
    trainer.fit(batches(), steps_per_epoch=8, verbose=0)
    trainer.predict(x, verbose=0, callbacks=[Stalls()])
    time.sleep(5)
    for rows in trainer.predict_iter(x, batch_size=8, verbose=0):
        time.sleep(5)
        break
    time.sleep(5)
    trainer.train_on_batch(x, y)
    time.sleep(5)
    import atexit
    atexit.register(time.sleep, 5)
"""
# 2 s until a stall is spoken of, 12 s until it is ended.
LIMITS = Limits().times(0.2)


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Runs the program: the exit code, and what the supervisor said."""
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))

    def run(where: str) -> tuple[int, list[str]]:
        argv = (sys.executable, str(tmp_path / "train.py"), where)
        environ = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        backend = LocalBackend(lambda: local_commands(argv, 1, environ), sample_interval=0.2)
        stderr = io.StringIO()
        code = Supervisor(backend, limits=LIMITS, stdout=io.StringIO(), stderr=stderr).run()
        return code, [line for line in stderr.getvalue().splitlines() if line[:5] == "kfit:"]

    return run


def test_a_slow_and_silent_program_is_left_alone(supervise: Any) -> None:
    code, said = supervise("healthy")
    assert code == 0, said
    assert not [line for line in said if "hung:" in line]


@pytest.mark.parametrize(
    "where", ["on_train_begin", "on_train_batch_end", "tracing", "reading data", "on_predict_end"]
)
def test_a_stall_is_spoken_of_where_it_is_and_then_ended(supervise: Any, where: str) -> None:
    code, said = supervise(where)
    assert code == 137
    (spoken,) = [line for line in said if "has made no progress" in line and where in line]
    (hung,) = [line for line in said if "hung:" in line and "the stacks of" in line]
    assert "train.py:" in spoken
    assert "It is ended as hung after 12 s without progress; `--hang-timeout` changes" in spoken
    assert said.index(spoken) < said.index(hung)
    assert where in hung
    assert said[-1].startswith("kfit: error: worker 0 hung: no progress for 12 s")


def test_sigterm_outside_of_fit_ends_a_task_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import os, signal, time
            if os.environ["TF_CONFIG"].endswith('"index": 1}}'):
                signal.signal(signal.SIGTERM, lambda *_: os._exit(77))
            import kfit
            kfit.join_cluster()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
            """
        )
    )
    argv = (sys.executable, str(tmp_path / "train.py"))
    environ = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    stderr = io.StringIO()
    # Both send it to themselves; a handler that the program has set stays.
    code = Supervisor(
        lambda: local_commands(argv, 2, environ), stdout=io.StringIO(), stderr=stderr
    ).run()
    said = stderr.getvalue()
    assert code in (143, 77), said
    assert "was killed by SIGTERM, preempted" in said or "exit code 77" in said
