"""What travels between a launch and its workers, and what cannot."""

import threading
from typing import Any

import pytest

from kfit.remote import pickling


def test_a_history_comes_back_without_its_model() -> None:
    from keras.callbacks import History

    history = History()
    history.set_params({"epochs": 2})
    history.set_model(threading.Lock())  # as little to be pickled as many a model
    history.on_train_begin()
    history.epoch, history.history = [0, 1], {"loss": [2.0, 1.0]}
    back = pickling.unpack_result(pickling.pack_result({"first": (history,)}))["first"][0]
    assert type(back) is History
    assert (back.history, back.epoch, back.params) == ({"loss": [2.0, 1.0]}, [0, 1], {"epochs": 2})
    assert back.model is None
    assert history.model is not None


def test_a_call_keeps_the_names_of_its_files() -> None:
    scope: dict[str, Any] = {}
    source = "def outer():\n    def inner():\n        raise ValueError('no')\n    inner()"
    exec(compile(source, "cell 7", "exec"), scope)
    function, _, _ = pickling.unpack_call(pickling.pack_call(scope["outer"], (), {}))
    with pytest.raises(ValueError, match="no") as raised:
        function()
    assert [str(entry.path) for entry in raised.traceback[1:]] == ["cell 7", "cell 7"]


def test_a_call_travels_with_what_it_refers_to() -> None:
    factor = 3
    function, args, kwargs = pickling.unpack_call(
        pickling.pack_call(lambda x, *, y: factor * x + y, (2,), {"y": 1})
    )
    assert function(*args, **kwargs) == 7


@pytest.mark.parametrize(
    ("result", "named"),
    [
        ({"a": [1, threading.Lock()]}, r"`result\['a'\]\[1\]`, of type lock"),
        (threading.Lock(), "`result`, of type lock"),
    ],
)
def test_what_cannot_be_sent_back_is_named(result: Any, named: str) -> None:
    with pytest.raises(pickling.NotPicklableError, match=named + ", cannot be sent back"):
        pickling.pack_result(result)


def test_a_result_that_contains_itself_and_a_default_by_keyword() -> None:
    result: list[Any] = [threading.Lock()]
    result.append(result)
    with pytest.raises(pickling.NotPicklableError, match=r"`result\[0\]`, of type lock"):
        pickling.pack_result(result)

    def train(*, lock: Any = result[0]) -> None: ...

    with pytest.raises(pickling.NotPicklableError, match="`a default`, which `train` refers to"):
        pickling.pack_call(train, (), {})


def test_a_callback_comes_back_with_the_state_that_its_class_gives() -> None:
    from keras.callbacks import Callback

    class Locked(Callback):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.best = threading.Lock(), 3

        def __getstate__(self) -> dict[str, Any]:
            return {key: value for key, value in vars(self).items() if key != "lock"}

    class Slotted(Callback):
        __slots__ = ("seen",)

    class Reduced(Callback):
        def __reduce__(self) -> Any:
            return (Slotted, ())

    locked, slotted = Locked(), Slotted()
    slotted.seen = 5
    for callback in (locked, slotted):
        callback.set_model(threading.Lock())
    back = pickling.unpack_result(pickling.pack_result([locked, slotted, Reduced()]))
    assert (back[0].best, hasattr(back[0], "lock"), back[0].model) == (3, False, None)
    assert (back[1].seen, back[1].model) == (5, None)
    assert type(back[2]).__name__ == "Slotted"


CELL = """
import keras

class Scaled(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale

def squared(y, y_pred):
    return keras.ops.square(y - y_pred)

class Error(keras.metrics.MeanAbsoluteError):
    pass

model = keras.Sequential([keras.Input((3,)), Scaled(), keras.layers.Dense(1)])
model.compile("adam", squared, metrics=[Error()])
"""


def test_a_model_travels_with_what_a_notebook_has_defined() -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, "cell 3", "exec"), cell)
    _, (model,), _ = pickling.unpack_call(pickling.pack_call(print, (cell["model"],), {}))
    assert [type(layer).__name__ for layer in model.layers] == ["Scaled", "Dense"]
    for own, sent in zip(model.get_weights(), cell["model"].get_weights(), strict=True):
        assert (own == sent).all()
    assert model.loss.__name__ == "squared"
    assert "squared" not in dir(__import__("__main__"))


PICKLED_BY_ITSELF = """
import keras

class Own(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.units = units

    def __reduce__(self):
        return Own, (self.units,), {"kept": 1}

    def __setstate__(self, state):
        self.kept = state["kept"]
"""


def test_a_model_of_a_notebook_may_be_pickled_in_its_own_way() -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PICKLED_BY_ITSELF, "cell 4", "exec"), cell)
    _, (model,), _ = pickling.unpack_call(pickling.pack_call(print, (cell["Own"](3),), {}))
    assert (model.units, model.kept) == (3, 1)
