"""Callbacks as people write them: with memory, and with an influence on training."""

from typing import Any

import keras


class HalvesRate(keras.callbacks.Callback):
    """Halves the learning rate every so many batches, and remembers how many there were."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.seen = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen % self.every == 0:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            self.model.optimizer.learning_rate = rate / 2

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


class RaisesRate(keras.callbacks.Callback):
    """Raises the learning rate when the loss has fallen; remembers the least loss so far."""

    def __init__(self) -> None:
        super().__init__()
        self.least = float("inf")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs["loss"] < self.least:
            self.least = float(logs["loss"])
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            self.model.optimizer.learning_rate = 1.1 * rate

    def state_dict(self) -> dict[str, Any]:
        return {"least": self.least}

    def load_state_dict(self, state: Any) -> None:
        self.least = state["least"]


class StopsAt(keras.callbacks.Callback):
    """Stops training at a batch of an epoch, or at its end."""

    def __init__(self, epoch: int, batch: int | None = None) -> None:
        super().__init__()
        self.epoch = epoch
        self.batch = batch
        self.now = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.now = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.batch is None and epoch == self.epoch:
            self.model.stop_training = True

    def state_dict(self) -> dict[str, Any]:
        return {"now": self.now}

    def load_state_dict(self, state: Any) -> None:
        self.now = state["now"]


class StopsAtBatch(StopsAt):
    """Stops training at a batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.now == self.epoch and batch == self.batch:
            self.model.stop_training = True


class ShrinksWeights(keras.callbacks.Callback):
    """Takes a tenth of the weights away at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(0.9 * variable)


class FreezesAtBegin(keras.callbacks.Callback):
    """Freezes a layer when training begins."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def on_train_begin(self, logs: Any = None) -> None:
        self.layer.trainable = False
