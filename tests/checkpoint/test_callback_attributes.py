"""Which attributes of a callback are looked at, by what it is made from."""

from typing import Any

import keras

from kfit.checkpoint.callback_attributes import attributes_of


class Own(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.counted = self.elsewhere = self.known = 0


class Stops(keras.callbacks.EarlyStopping):
    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        def count() -> None:
            self.counted += 1

        count()


def changed(callback: keras.callbacks.Callback, *names: str) -> set[str]:
    """The names of those attributes that are kept when all of `names` change."""
    looked_at = attributes_of(callback, {"known"}, ())
    assert looked_at is not None
    for name in names:
        setattr(callback, name, 7)
    return {name for name in names if name in repr(looked_at.state_dict())}


def test_all_of_one_made_from_the_base_but_what_it_was_given_or_is_known() -> None:
    names = ("counted", "elsewhere", "known", "params", "validation_data")
    assert changed(Own(), *names) == {"counted", "elsewhere"}


def test_of_one_made_from_another_what_its_own_code_names() -> None:
    assert changed(Stops(), "counted", "wait", "best_epoch") == {"counted"}


def test_of_one_of_keras_nothing_unless_it_was_given_a_function() -> None:
    assert attributes_of(keras.callbacks.EarlyStopping(), (), ()) is None
    counted = [0]

    def count(epoch: int, logs: Any) -> None:
        counted[0] += 1

    given = attributes_of(keras.callbacks.LambdaCallback(on_epoch_end=count), (), ())
    assert given is not None
    count(0, None)
    assert "counted" in repr(given.state_dict())
