"""The validation data of a `fit`, as it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from kfit.argument_checks import check_parts
from kfit.inputs import Batches
from kfit.inputs.python import PythonBatches
from kfit.training.numbers_only import require_numbers
from kfit.training.own_methods import HasModel, taking_over
from kfit.training.ready_model import ReadyModel


@dataclass(frozen=True)
class ValidationData:
    """What a `fit` validates on: its arguments `validation_data`, `validation_steps` and so on.

    Attributes:
        data: The argument `validation_data` of `fit`; None if nothing is validated.
        batch_size: The global batch size of a validation.
        steps: The number of steps in a validation; None for all the data.
    """

    data: Any
    batch_size: int | None
    steps: int | None

    def batches(self, make: Callable[..., Batches], ready: ReadyModel) -> Batches | None:
        """Returns the data as global batches, or None if there is none.

        The targets are checked, too, except in data that Python code makes, such as a generator.

        Args:
            make: A function that makes batches of `x`, `y`, `sample_weight`, `batch_size`, `steps`.
            ready: The model that is to be evaluated.

        Raises:
            ValueError: If the validation data is wrong.
        """
        if self.data is None:
            return None
        try:
            check_parts("it", self.data)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(self.data)
            batches = make(x, y, sample_weight, self.batch_size, self.steps)
            if batches.lacks_end:
                raise ValueError("it never ends. Pass `validation_steps`.")
            # The check reads a batch. Python code, such as a generator, must not be asked for one
            # before the first validation.
            if not isinstance(batches, PythonBatches):
                ready.require_targets(batches, "test_step")
                require_numbers(ready.model, batches.spec, "test_step")
        except ValueError as error:
            raise ValueError(f"`validation_data` is wrong: {error}") from error
        return batches

    def evaluate_by(
        self,
        own: Callable[..., dict[str, Any]],
        trainer: HasModel,
        cached: Callable[[], Any],
        callbacks: keras.callbacks.CallbackList,
    ) -> dict[str, Any]:
        """Evaluates the data by the `evaluate` that the model itself defines.

        Called for each validation of a `fit` if the model does not use Keras' own `evaluate`.

        Args:
            own: The model's own `evaluate`.
            trainer: The Trainer whose `fit` validates.
            cached: A function that evaluates the batches that `fit` has made of the data. If `own`
                calls `super().evaluate`, this function may run instead (see `taking_over`).
            callbacks: The callbacks of the `fit`.

        Returns:
            The loss and the metrics by name.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(self.data)
        with taking_over(trainer, cached):
            return own(
                x=x,
                y=y,
                sample_weight=sample_weight,
                batch_size=self.batch_size,
                steps=self.steps,
                callbacks=callbacks,
                return_dict=True,
                _use_cached_eval_dataset=True,
            )
