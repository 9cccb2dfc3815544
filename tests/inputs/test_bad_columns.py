"""The error of a data frame with a column that cannot become a tensor names the column."""

import decimal
import re
from typing import Any

import keras
import numpy as np
import pandas as pd
import polars as pl
import pytest

import kfit

ROWS = np.array([10, 20, 20, 30])
FRAMES: dict[str, tuple[Any, str]] = {
    "objects": (
        pd.DataFrame({"a": ROWS, "b": ROWS.astype(object)}),
        "pandas.DataFrame, with the column 'b' of dtype object; make it numbers: "
        "`.astype({'b': 'float32'})`",
    ),
    "many objects": (
        pd.DataFrame({name: ROWS.astype(object) for name in "abcde"}),
        "with the columns 'a' of dtype object, 'b' of dtype object, 'c' of dtype object, 2 more; "
        "make them numbers: `.astype({'a': 'float32', 'b': 'float32', 'c': 'float32', ...})`",
    ),
    "a series": (
        pd.Series(ROWS.astype(object)),
        "pandas.Series of dtype object; make it numbers: `.astype('float32')`",
    ),
    "decimals": (
        pl.DataFrame({"a": [decimal.Decimal(1)] * 4, "b": ROWS}),
        "polars.DataFrame, with the column 'a' of dtype Decimal",
    ),
    "intervals": (
        pd.DataFrame({"b": ROWS, "a": pd.cut(ROWS, 3)}),
        "with the column 'a' of dtype category; compute numbers from it, or leave it out",
    ),
    "lists": (
        pl.DataFrame({"a": [[1]] * 4, "b": ROWS}),
        "with the column 'a' of dtype List(Int64); compute numbers from it, or leave it out",
    ),
    "text beside numbers": (
        pl.DataFrame({"a": list("uvwx"), "b": ROWS}),
        "with the column 'a' of dtype String; compute numbers from it, or leave it out",
    ),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_the_columns_are_named(kind: str) -> None:
    frame, expected = FRAMES[kind]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    message = "`x` cannot be made into a tensor: .* Received: a .*" + re.escape(expected)
    with pytest.raises(ValueError, match=message):
        kfit.predict(model, frame, strategy="one_device", verbose=0)
