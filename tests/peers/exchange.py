"""Puts kfit in the place of the methods of `keras.Model` that train."""

from collections.abc import Callable
from typing import Any

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def put_kfit_in_place(strategy: Callable[[Any], Any]) -> None:
    """Has every Keras model train, evaluate and predict through kfit.

    Args:
        strategy: Returns what to train a model on, as for `kfit.Trainer`.
    """
    import keras

    # Imported now, while Keras is as it was installed: kfit looks for methods of Keras by name.
    from kfit.model import trainer_of

    for method in METHODS:
        setattr(keras.Model, method, _through_kfit(method, strategy, trainer_of))


def _through_kfit(method: str, strategy: Callable[[Any], Any], trainer_of: Any) -> Any:
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_use_cached_eval_dataset", None)  # Keras' `fit` gives it to its own `evaluate`
        return getattr(trainer_of(model, strategy(model)), method)(*args, **kwargs)

    call.__name__ = method
    return call
