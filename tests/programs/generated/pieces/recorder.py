"""What a program comes to, in order: results, weights and hooks; and where it is cut off."""

import os
import signal
from typing import Any

import keras
import numpy as np


class CutOffError(BaseException):
    """The end of a process, for a program that is run within another one."""


class Recorder:
    """Notes what happens; at the event number `cut` (from 1) the program ends."""

    def __init__(self, cut: int | None = None, kill: bool = False) -> None:
        self.cut = cut
        self.kill = kill
        self.events = 0
        self.records: list[tuple[str, Any]] = []
        self.hooks: list[Any] = []

    def event(self) -> None:
        """Counts one more event, and ends the program where it is to be cut off."""
        self.events += 1
        if self.events == self.cut:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise CutOffError

    def note(self, name: str, value: Any) -> None:
        """Notes a result."""
        self.records.append((name, value))
        self.event()

    def state(self, name: str, model: Any) -> None:
        """Notes the weights and what the optimizers hold."""
        self.records.append((f"{name}: weights", numbers(model.variables)))
        if model.optimizer is not None and model.optimizer.built:
            self.records.append((f"{name}: optimizer", numbers(model.optimizer.variables)))

    def text(self, name: str, path: str) -> None:
        """Notes the lines of a file, or the names in a folder."""
        if os.path.isdir(path):
            self.records.append((name, sorted(os.listdir(path))))
        elif os.path.exists(path):
            with open(path) as file:
                self.records.append((name, file.read().splitlines()))
        else:
            self.records.append((name, None))


def numbers(variables: Any) -> list[Any]:
    """The values of variables."""
    return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]


class Hooks(keras.callbacks.Callback):
    """Notes hooks and what their logs hold; watches no batch."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def noted(self, hook: str, index: Any, logs: Any, values: bool = False) -> None:
        logs = dict(logs or {})
        self.recorder.hooks.append(
            [hook, index, {k: float(v) for k, v in logs.items()} if values else sorted(logs)]
        )
        self.recorder.event()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass

    def on_train_begin(self, logs: Any = None) -> None:
        self.noted("train_begin", None, logs)

    def on_train_end(self, logs: Any = None) -> None:
        self.noted("train_end", None, logs, values=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.noted("epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.noted("epoch_end", epoch, logs, values=True)

    def on_test_begin(self, logs: Any = None) -> None:
        self.noted("test_begin", None, logs)

    def on_test_end(self, logs: Any = None) -> None:
        self.noted("test_end", None, logs, values=True)

    def on_predict_begin(self, logs: Any = None) -> None:
        self.noted("predict_begin", None, logs)

    def on_predict_end(self, logs: Any = None) -> None:
        self.noted("predict_end", None, None)


class BatchHooks(Hooks):
    """Notes the hooks of batches as well."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.noted("train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.noted("train_batch_end", batch, logs, values=True)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.noted("test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.noted("test_batch_end", batch, logs, values=True)
