"""Keras' API with a `strategy` argument: `kfit.fit`, `kfit.Model`, `kfit.install` and the like.

`kfit.Model` and `kfit.Sequential` only add methods, and nothing that is saved with a model. So a
model of these classes is saved as a model of Keras' own class. The file loads as a plain Keras
model, even where kfit is not installed. A plain Keras model can be trained by `kfit.fit`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

import keras

from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.state import Part
from kfit.distribute.factory import check_strategy
from kfit.distribute.strategy import Strategy, TFStrategy
from kfit.heartbeat.tracebacks import for_user
from kfit.internals import patch_points as points
from kfit.internals.keras_methods import diverted, own_method, passing_on
from kfit.internals.models import KerasFunctional, save_under
from kfit.internals.patching import patched
from kfit.lazy import closest_name
from kfit.saving import saving_whole
from kfit.trainer import Trainer
from kfit.training.call import Callbacks
from kfit.training.own_methods import direct, taking_over

_TRAINER = "_kfit_trainer"
_making = threading.RLock()
"""Held while a trainer is looked up or made, so that several threads get the same one."""
_Class = TypeVar("_Class", bound=type)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_TAKES_STRATEGY = ("fit", "evaluate", "predict")
_installed = ExitStack()
"""The installation that `install` has made, if there is one; closing this stack uninstalls kfit."""

if TYPE_CHECKING:
    from keras import Model as _OfKeras  # the mixin calls its methods by `super()`
else:
    _OfKeras = object


def trainer_of(model: keras.Model, strategy: Any = None) -> Trainer:
    """Returns the `kfit.Trainer` that runs a model on a strategy; creates it if necessary.

    The trainer is stored with the model, and is returned again until another strategy is given.
    `kfit.fit`, `kfit.Model.fit` and the like call this function each time they are called.

    Args:
        model: The model.
        strategy: A name, adapter or `tf.distribute.Strategy`, as for `kfit.Trainer`. None means the
            strategy of the stored trainer or, if there is no trainer yet, "auto".
    """
    with _making:
        last: tuple[Any, Trainer] | None = getattr(model, _TRAINER, None)
        if last is not None and (strategy is None or strategy is last[0] or strategy == last[0]):
            return last[1]
        strategy = "auto" if strategy is None else strategy
        trainer = Trainer(model, strategy)
        # `object.__setattr__` bypasses Keras' tracking of attributes: the trainer is no part of the
        # model.
        object.__setattr__(model, _TRAINER, (strategy, trainer))
        return trainer


def _forwarded(declared: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of a function that calls the method of the same name of the model's trainer.

    The decorated function has a signature and a docstring, but no code. Only the arguments that the
    caller gives are passed on, and in the way they are given, since a model's own `fit` may have
    other arguments and defaults than that of Keras.
    """

    @for_user
    @wraps(declared)
    def called(model: keras.Model, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
        name = declared.__name__
        if callable(model) and not isinstance(model, keras.Model):
            raise TypeError(
                "`model` must be a keras.Model; to have it made on the strategy by a function, use "
                f"`kfit.Trainer(make_model, strategy).{name}(...)`. Received: {model!r} (of type "
                f"{type(model)})"
            )
        if isinstance(model, keras.Model):
            _check_keywords(declared, model, kwargs)
        if "devices" in kwargs and own_method(model, name) is None:
            raise TypeError(
                f"`kfit.{name}` has no argument `devices`, since the model exists already. Use "
                f"`kfit.Trainer(make_model, 'mirrored', devices={kwargs['devices']!r})` with a "
                "function that makes the model. Or make the strategy before the model, `strategy = "
                f"kfit.distribute.Mirrored({kwargs['devices']!r})`, and pass it here."
            )
        return getattr(trainer_of(model, strategy), name)(*args, **kwargs)

    return cast(Callable[_P, _R], called)


def _check_keywords(
    declared: Callable[..., Any], model: keras.Model, given: Mapping[str, Any]
) -> None:
    """Checks the names of arguments before a strategy is chosen, which may be told or take long.

    Args:
        declared: The function that declares the arguments, such as `kfit.fit`.
        model: The model. A method of its own, which may take others, checks them itself.
        given: The keyword arguments of the call.

    Raises:
        TypeError: If there is an argument that the function does not have.
    """
    name = declared.__name__
    known = (*_parameters_of(declared), "devices")
    unknown = next((each for each in given if each not in known), None)
    if unknown is not None and own_method(model, name) is None:
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown!r}")


def _declared_by(declared: Callable[_P, _R]) -> Callable[[Callable[..., Any]], Callable[_P, _R]]:
    """Decorator that gives a method of models the signature of a function such as `kfit.fit`.

    The first parameter of the function, the model, becomes the method's `self`.
    """

    def decorate(method: Callable[..., Any]) -> Callable[_P, _R]:
        model, *others = inspect.signature(declared).parameters.values()
        parameters = [model.replace(name="self", annotation=inspect.Parameter.empty), *others]
        signature = inspect.signature(declared).replace(parameters=parameters)
        setattr(method, "__signature__", signature)  # noqa: B010  a function has no such attribute
        return cast(Callable[_P, _R], method)

    return decorate


@_forwarded
def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Callbacks = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    profile: bool = False,
    strategy: str | Strategy | TFStrategy | None = None,
) -> keras.callbacks.History:
    """Trains a compiled Keras model in place on a `tf.distribute` strategy.

    See `kfit.Trainer.fit` for the errors that it raises.

    Args:
        model: The compiled model.
        x: Arrays in any structure, a `tf.data.Dataset` batched to the global batch size, a
            `keras.utils.PyDataset`, a generator, a torch or grain loader, a distributed data
            set, or a function. A function gets a `tf.distribute.InputContext`, and returns a
            data set batched to the batch size of one replica.
        y: Targets; only if `x` is arrays.
        batch_size: The *global* batch size, over all replicas; only if `x` is arrays. By default
            32 or, with `steps_per_epoch`, such that an epoch reads all the data once, as in Keras.
        epochs: The number of epochs after which training ends, including those before
            `initial_epoch`.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        callbacks: Keras callbacks; their hooks run on every task.
        validation_split: The fraction of the arrays, from their end, to validate on.
        validation_data: `(x, y)`, `(x, y, sample_weight)`, or anything that `x` may be.
        shuffle: Whether to shuffle arrays, and the batches of a PyDataset, in each epoch;
            "batch" shuffles arrays within batches only.
        class_weight: A dict that maps each class to the weight of its examples in the loss.
        sample_weight: The weight of each example; only if `x` is arrays.
        initial_epoch: The index of the epoch to begin with, counted from 0.
        steps_per_epoch: The number of steps in an epoch; None for all the data. For a generator
            that never ends it must be given: without it, the first epoch never ends, either.
        validation_steps: The number of steps in a validation; None for all the data.
        validation_batch_size: The global batch size of validation; `batch_size` by default.
        validation_freq: A number n, to validate after every n epochs; or a list of the epochs
            to validate after, counted from 1.
        profile: Whether to measure what the parts of a step take, and to print a report with advice
            when training has ended. The parts are measured after the last step, for which some
            steps are run again and undone; training itself is the same.
        strategy: A name such as "mirrored", or another value that `kfit.Trainer` takes. None means
            the strategy that kfit used last to train, evaluate or run this model, or "auto" if
            there is none.

    Returns:
        The History, as `keras.Model.fit` returns it.
    """


@_forwarded
def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Callbacks = None,
    return_dict: bool = False,
    *,
    snapshot: Snapshot | None = None,
    parts: Sequence[Part] = ("model",),
    strategy: str | Strategy | TFStrategy | None = None,
) -> Any:
    """Evaluates a compiled Keras model on a `tf.distribute` strategy.

    Args:
        model: The compiled model.
        x: As for `kfit.fit`.
        y: Targets; only if `x` is arrays.
        batch_size: The global batch size; only if `x` is arrays. By default 32 or, with `steps`,
            such that the steps read all the data once, as in Keras.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        sample_weight: The weight of each example; only if `x` is arrays.
        steps: The number of steps to take; None for all the data.
        callbacks: Keras callbacks; their hooks run on every task.
        return_dict: Whether to return a dict.
        snapshot: The saved state of a training of this model, read by `kfit.checkpoint.Store`;
            the same on every task. Its weights replace those of the model before the
            evaluation, and stay in the model. None to evaluate the model's present weights.
        parts: The parts of the snapshot to restore: "model", and "optimizer" if the model will
            be saved with its optimizer.
        strategy: As for `kfit.fit`.

    Returns:
        The loss, the list of loss and metrics, or a dict of them, as in Keras.
    """


@_forwarded
def predict(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    steps: int | None = None,
    callbacks: Callbacks = None,
    *,
    strategy: str | Strategy | TFStrategy | None = None,
) -> Any:
    """Predicts the outputs of a Keras model on a `tf.distribute` strategy.

    Args:
        model: The model; it need not be compiled.
        x: As for `kfit.fit`.
        batch_size: The global batch size; only if `x` is arrays. By default 32 or, with `steps`,
            such that the steps read all the data once, as in Keras.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        steps: The number of steps to take; None for all the data.
        callbacks: Keras callbacks; their hooks run on every task.
        strategy: As for `kfit.fit`.

    Returns:
        Arrays of shape `(examples, ...)` in the structure of the model's outputs, as in Keras.
    """


def _saved_as(name: str) -> Callable[[_Class], _Class]:
    """Returns a class decorator that makes Keras save models of the class as models of `name`.

    So a saved model of `kfit.Sequential`, for example, is a `keras.Sequential`, and can be loaded
    without kfit. Subclasses of the decorated class are still saved under their own names.

    Args:
        name: The full name of Keras' class, such as "keras.Sequential".
    """

    def named(cls: _Class) -> _Class:
        save_under(cls, name)
        return cls

    return named


class _Fitting(_OfKeras):
    """A mixin that gives a model class the methods `fit`, `evaluate` and so on of kfit.

    Each method does what the method of `kfit.Trainer` with the same name does. The arguments are
    described there.
    """

    @_declared_by(fit)
    @passing_on
    @for_user
    def fit(self, *args: Any, strategy: Any = None, **kwargs: Any) -> keras.callbacks.History:
        """Trains the model on a `tf.distribute` strategy.

        If `strategy` is None, the strategy that kfit used last for this model is used again, or
        "auto" if there is none. See `kfit.Trainer.fit` for the other arguments.
        """
        _check_keywords(fit, self, kwargs)
        with taking_over(trainer_of(self, strategy)):
            return super().fit(*args, **kwargs)

    @_declared_by(evaluate)
    @passing_on
    @for_user
    def evaluate(self, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
        """Evaluates the model on `strategy`; the default is as for `fit`.

        See `kfit.Trainer.evaluate` for the other arguments.
        """
        _check_keywords(evaluate, self, kwargs)
        with taking_over(trainer_of(self, strategy)):
            return super().evaluate(*args, **kwargs)

    @_declared_by(predict)
    @passing_on
    @for_user
    def predict(self, *args: Any, strategy: Any = None, **kwargs: Any) -> Any:
        """Predicts outputs on `strategy`; the default is as for `fit`.

        See `kfit.Trainer.predict` for the other arguments.
        """
        _check_keywords(predict, self, kwargs)
        with taking_over(trainer_of(self, strategy)):
            return super().predict(*args, **kwargs)

    @passing_on
    @for_user
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Takes one training step on a global batch; see `kfit.Trainer.train_on_batch`."""
        with taking_over(trainer_of(self)):
            return super().train_on_batch(*args, **kwargs)

    @passing_on
    @for_user
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates one global batch; see `kfit.Trainer.test_on_batch`."""
        with taking_over(trainer_of(self)):
            return super().test_on_batch(*args, **kwargs)

    @passing_on
    @for_user
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Predicts one global batch; see `kfit.Trainer.predict_on_batch`."""
        with taking_over(trainer_of(self)):
            return super().predict_on_batch(*args, **kwargs)

    def __reduce__(self) -> Any:
        """Returns the function and arguments by which `pickle` and `copy` restore the model.

        The model is restored as in Keras, and then gets back its class, such as `kfit.Sequential`.
        Keras alone would return a `keras.Sequential` in this case.
        """
        return _restored, (type(self), *super().__reduce__())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Returns a copy of the same class, also if a library has changed how Keras copies models.

        `import scikeras`, for example, replaces `keras.Model.__deepcopy__` by a function that
        returns a model of one of Keras' classes.
        """
        restore, arguments = self.__reduce__()
        copy = memo[id(self)] = restore(*arguments)
        return copy


def _restored(cls: type, load: Callable[..., keras.Model], arguments: tuple[Any, ...]) -> Any:
    """Unpickles a model, and gives it back the class that it had, such as `kfit.Sequential`.

    Keras' function alone returns a model of one of Keras' classes, such as `keras.Sequential`.

    Args:
        cls: The class that the model had when it was pickled. If `cls` is not a subclass of the
            class of the model that `load` returns, that model is returned unchanged.
        load: Keras' function that unpickles the model.
        arguments: The arguments of `load`.
    """
    model = load(*arguments)
    if issubclass(cls, type(model)):
        model.__class__ = cls
    return model


class Model(_Fitting, keras.Model):
    """A `keras.Model` whose `fit`, `evaluate` and `predict` take a `strategy`.

    Example:
        >>> model = kfit.Model(inputs, outputs)
        >>> model.compile(optimizer="adam", loss="mse")
        >>> model.fit(x, y, strategy="mirrored")
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        """Creates a functional model if inputs and outputs are given, as `keras.Model` does.

        Args:
            *args: The arguments of `keras.Model`.
            **kwargs: The keyword arguments of `keras.Model`.
        """
        made = Functional if cls is Model and _are_functional(args, kwargs) else cls
        model: Model = super().__new__(made)
        return model

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _are_functional(args, kwargs):
            # `keras.Model.__init__` would change the bases of `kfit.Model` itself, and so make all
            # its subclasses functional.
            _make_functional(type(self))
            KerasFunctional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)


@_saved_as("keras.src.models.functional.Functional")
class Functional(Model, KerasFunctional):
    """A functional `kfit.Model`, such as `kfit.Model(inputs, outputs)` returns."""


@_saved_as("keras.Sequential")
class Sequential(_Fitting, keras.Sequential):
    """A `keras.Sequential` whose `fit`, `evaluate` and `predict` take a `strategy`."""


def _are_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether the arguments of a model are inputs and outputs, so that it is functional."""
    return len(args) == 2 or ("outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs))


def _make_functional(cls: type) -> None:
    """Makes a user's subclass of `kfit.Model` functional, that is, a subclass of `Functional`.

    This is needed if the user creates an object by `cls(inputs, outputs)`. In the bases of the
    class and of its ancestors, `Model` is replaced by `Functional`. Keras does the same with
    subclasses of `keras.Model`. A class that is functional already is not changed.

    Args:
        cls: The user's class.
    """
    if not issubclass(cls, KerasFunctional):
        bases = tuple(Functional if base is Model else base for base in cls.__bases__)
        for base in bases:
            if base is not Functional and issubclass(base, Model):
                _make_functional(base)
        cls.__bases__ = bases


class Installation(AbstractContextManager["Installation"]):
    """The result of `kfit.install`: a context manager that uninstalls kfit when its context ends.

    Until then, `fit`, `evaluate` and so on of all Keras models are those of kfit.

    Args:
        strategy: The strategy of each model that is used without an argument `strategy`: a name
            such as "mirrored", or another value that `kfit.Trainer` takes.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self._given: WeakKeyDictionary[keras.Model, Any] = WeakKeyDictionary()
        self._is_installed = True
        self._stack = ExitStack()
        self._stack.enter_context(diverted(self._divert))
        for point in (points.SAVE_MODEL, points.SAVE_WEIGHTS):
            self._stack.enter_context(patched(point, saving_whole))

    def uninstall(self) -> None:
        """Restores Keras' own methods. It does nothing if kfit was uninstalled before."""
        self._is_installed = False
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        state = "installed" if self._is_installed else "uninstalled"
        return f"<kfit.Installation strategy={self.strategy!r}, {state}>"

    def _divert(self, model: keras.Model, name: str) -> Callable[..., Any]:
        return partial(self._call, model, name)

    def _call(self, model: keras.Model, name: str, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # in notebooks
        given = kwargs.pop("strategy", None) if name in _TAKES_STRATEGY else None
        if given is not None:
            self._given[model] = given
        _check_names(name, kwargs)
        trainer = trainer_of(model, self._given.get(model, self.strategy))
        return direct(trainer, name)(*args, **kwargs)


def _check_names(method: str, given: Mapping[str, Any]) -> None:
    """Raises a TypeError that says what was meant, if a method of Keras has no such argument."""
    __tracebackhide__ = True
    known = _arguments_of(method)
    for name in given:
        if name not in known and not name.startswith("_"):  # such as those of Keras' own `fit`
            alike = closest_name(name, known)
            hint = "" if alike is None else f". Did you mean {alike!r}?"
            raise TypeError(f"model.{method}() got an unexpected keyword argument {name!r}{hint}")


def _arguments_of(method: str) -> list[str]:
    """Returns the names of the arguments that a method of Keras takes while kfit is installed."""
    _, *names = _parameters_of(getattr(Trainer, method))
    return names + ["strategy"] * (method in _TAKES_STRATEGY)


@cache
def _parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of a function's parameters; each call of kfit and Keras asks for them."""
    return tuple(inspect.signature(function).parameters)


@for_user
def install(strategy: str | Strategy | TFStrategy = "auto") -> Installation:
    """Replaces `fit`, `evaluate`, `predict` and `*_on_batch` of all Keras models by those of kfit.

    So programs and libraries that do not know kfit train on a `tf.distribute` strategy. Until kfit
    is uninstalled, `fit`, `evaluate` and `predict` also take the argument `strategy`. A strategy
    that is given there is used for this call and for later calls of the same model. The replacement
    applies to all threads of the process. A second `install` replaces the first.

    With several workers, every task must run the same program, and must have joined the cluster,
    either by `kfit run` or by `kfit.join_cluster()`.

    Args:
        strategy: The strategy of models for which none is given; as for `kfit.Trainer`.

    Returns:
        An object that restores Keras' own methods: call its `uninstall()`, or use it in a `with`
        statement.

    Raises:
        ValueError: If `strategy` is no strategy. What is installed already stays installed.

    Example:
        >>> kfit.install("mirrored")
        >>> model.fit(x, y, batch_size=128, epochs=3)
    """
    check_strategy(strategy)
    uninstall()
    return _installed.enter_context(Installation(strategy))


def uninstall() -> None:
    """Restores Keras' own methods after `kfit.install`. Without `install`, nothing changes."""
    _installed.close()
