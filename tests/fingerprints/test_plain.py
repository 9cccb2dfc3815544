"""What configures a training becomes the same plain values in every process."""

from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kfit.fingerprints.plain import config_of, flat, is_argument, numbers_of, plain, stable


def made(rate: float) -> Any:
    def function(x: Any, by: float = 2.0) -> Any:
        return x * rate * by

    return function


class Own:
    def __init__(self) -> None:
        self.rate, self.name, self._hidden = 0.5, "a", 1


def test_functions_are_told_by_what_they_do() -> None:
    assert plain(made(1.0)) == plain(made(1.0))
    assert plain(made(1.0)) != plain(made(2.0))
    assert plain(made(1.0))["function"] == "made.<locals>.function"
    assert plain(partial(made(1.0), by=3.0)) != plain(partial(made(1.0), by=4.0))
    assert plain(keras.losses.mean_squared_error) == "mean_squared_error"


def test_defaults_are_part_of_a_function_by_keyword_too() -> None:
    def by_keyword(weight: float) -> Any:
        def loss(y: float, *, by: float = weight) -> float:
            return y * by

        return loss

    assert plain(by_keyword(1.0)) == plain(by_keyword(1.0))
    assert plain(by_keyword(1.0)) != plain(by_keyword(2.0))


def test_folders_and_addresses_on_this_machine_are_left_out(tmp_path: Path) -> None:
    here = partial(open, str(tmp_path / "rows.csv"))
    assert plain(here)[1] == ["rows.csv"]
    assert plain(f"{object()!r}") == "<object object>"


def test_a_layer_is_its_configuration_whatever_keras_has_counted() -> None:
    one, other = keras.layers.Dense(3, "relu"), keras.layers.Dense(3, "relu")
    assert one.name != other.name
    assert plain(one) == plain(other)
    assert plain(one) != plain(keras.layers.Dense(4, "relu"))
    assert stable("dense_12/kernel") == "dense/kernel"


def test_values_that_are_long_are_told_shortly() -> None:
    words = [f"word {index}" for index in range(1000)]
    assert plain(words).startswith("1000 values #")
    assert plain(words) == plain(list(words)) != plain(words[::-1])
    assert "1000 characters #" in plain("x" * 1000)
    assert plain(np.arange(3)) == plain(np.arange(3)) != plain(np.arange(4))


def test_what_has_no_configuration_is_its_class() -> None:
    assert plain(Own()) == {"class_name": "Own"}
    assert config_of(Own()) == {}
    assert numbers_of(Own()) == {"rate": 0.5}
    assert plain({"b", "a"}) == ["'a'", "'b'"]


def test_numbers_of_numpy_are_plain_ones() -> None:
    of_numpy = {"a": np.float64(0.5), "b": [np.int64(2), np.bool_(True)], "c": np.str_("d")}
    found = plain(of_numpy)
    assert found == {"a": 0.5, "b": [2, True], "c": "d"}
    assert list(map(type, (found["a"], *found["b"], found["c"]))) == [float, int, bool, str]
    own = Own()
    vars(own)["rate"] = np.float32(0.5)
    assert numbers_of(own) == {"rate": 0.5}
    assert type(numbers_of(own)["rate"]) is float


def test_an_argument_of_a_constructor_is_a_setting() -> None:
    class Base:
        def __init__(self, scale: float) -> None:
            self.scale, self.begun = scale, 1.5

    class Derived(Base):
        def __init__(self, *, rate: float, **rest: Any) -> None:
            super().__init__(**rest)
            self.rate = rate

    made = Derived(rate=1.0, scale=2.0)
    assert [name for name in vars(made) if is_argument(made, name)] == ["scale", "rate"]


def test_leaves_have_paths() -> None:
    tree = {"a": {"class_name": "A", "config": {"x": 1}}, "b": [1, 2], "c": [{"d": 3}]}
    assert dict(flat(tree)) == {"a": "A", "a.x": 1, "b": [1, 2], "c[0].d": 3}
