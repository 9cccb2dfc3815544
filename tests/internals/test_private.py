"""Every private name in the table is there, and every one that is used is in the table."""

import ast
import hashlib
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from kfit.internals import (  # noqa: F401  all of them enter their names
    callbacks,
    eager_random,
    functions,
    graphs,
    layers,
    losses,
    models,
    optimizers,
    patch_points,
    randomness,
    runtime,
    strategies,
    tf_data,
    variables,
)
from kfit.internals.patching import Point, patched
from kfit.internals.private import TABLE, MissingNameError, imported, uses

ROOT = Path(__file__).parents[2]
INTERNALS = ROOT / "kfit" / "internals"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the examples write to the current folder, as Keras' callbacks do by default."""
    monkeypatch.chdir(tmp_path)


def compiled_model() -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), "mse", metrics=["mae"])
    return model


def built(optimizer: Any) -> Any:
    optimizer.build([keras.Variable([1.0])])
    return optimizer


def tensorboard() -> keras.callbacks.TensorBoard:
    callback = keras.callbacks.TensorBoard(write_graph=False)
    callback.set_model(compiled_model())
    callback.on_train_begin()
    return callback


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.range(4)


def distributed() -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def on_devices() -> Any:
    with distributed().scope():
        return tf.Variable(1.0)


def made_in_a_graph() -> Any:
    made: list[Any] = []

    @tf.function
    def make() -> None:
        if not made:
            made.append(tf.Variable(1.0))

    with distributed().scope():
        make()
    return made[0].values[0]


EXAMPLES: dict[str, Callable[[], Any]] = {
    "tensorflow.python.eager.context.context": lambda: seeded(runtime.runtime()),
    "keras.Variable": lambda: keras.Variable(1.0),
    "keras.Layer": lambda: keras.layers.Dense(1),
    "keras.Model": compiled_model,
    "keras.Sequential": keras.Sequential,
    "keras.layers.BatchNormalization": lambda: built_norm(),
    "keras.losses.MeanSquaredError": keras.losses.MeanSquaredError,
    "keras.metrics.Accuracy": keras.metrics.Accuracy,
    "keras.metrics.MeanSquaredError": keras.metrics.MeanSquaredError,
    "keras.optimizers.Optimizer": lambda: built(
        keras.optimizers.SGD(gradient_accumulation_steps=2, use_ema=True)
    ),
    "keras.optimizers.LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD()
    ),
    "keras.callbacks.TensorBoard": tensorboard,
    "keras.callbacks.ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint("a.keras"),
    "tf.compat.v1.Graph": tf.compat.v1.Graph,
    "tf.Variable.handle": lambda: on_devices().values[0].handle,
    "tf.Variable": made_in_a_graph,
    "tf.train.ExponentialMovingAverage": lambda: tf.train.ExponentialMovingAverage(0.9),
    "tf.function": lambda: tf.function(lambda: None),
    "tf.data.Dataset": rows,
    "tf.data.Dataset.map": lambda: rows().map(lambda x: x, num_parallel_calls=2),
    "tf.data.Dataset.batch": lambda: rows().batch(2),
    "tf.data.Dataset.repeat": lambda: rows().repeat(2),
    "tf.data.Dataset.shuffle": lambda: rows().shuffle(2),
    "tf.data.Dataset.random": lambda: tf.data.Dataset.random(),
    "tf.data.TextLineDataset": lambda: tf.data.TextLineDataset([__file__]),
    "tf.distribute.MirroredStrategy.extended": lambda: distributed().extended,
    "tf.distribute.MultiWorkerMirroredStrategy": lambda: tf.distribute.MultiWorkerMirroredStrategy,
    "tf.distribute.MultiWorkerMirroredStrategy.extended": lambda: (
        tf.distribute.MultiWorkerMirroredStrategy().extended
    ),
    "tf.distribute.DistributedDataset.element_spec": lambda: (
        distributed().experimental_distribute_dataset(rows().batch(2)).element_spec
    ),
}
"""Objects that have the attributes of an owner in the table."""

NEEDS_A_CLUSTER = {"tf.distribute.ParameterServerStrategy", "tf.distribute.TPUStrategy"}
"""Owners that this process cannot make: their attributes are looked for in the class's source."""


def built_norm() -> keras.layers.BatchNormalization:
    norm = keras.layers.BatchNormalization()
    norm.build((None, 2))
    return norm


def seeded(context: Any) -> Any:
    tf.random.set_seed(1)
    return context


def resolved(name: str) -> Any:
    """What a name means: an attribute of an example, or a module's."""
    for owner in sorted(EXAMPLES, key=len, reverse=True):
        if name.startswith(f"{owner}."):
            value = EXAMPLES[owner]()
            for part in name.removeprefix(f"{owner}.").split("."):
                value = getattr(value, part)
            return value
    module, _, attribute = name.rpartition(".")
    while True:
        try:
            value = importlib.import_module(module)
            break
        except ImportError:
            module, _, before = module.rpartition(".")
            attribute = f"{before}.{attribute}"
            if not module:
                raise
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def names_in_table() -> list[str]:
    return sorted({name for use in TABLE.values() for name in use.names})


@pytest.mark.parametrize("name", names_in_table())
def test_a_name_in_the_table_is_there(name: str) -> None:
    owner = next((each for each in NEEDS_A_CLUSTER if name.startswith(f"{each}.")), None)
    if owner is None:
        resolved(name)
        return
    kind: Any = tf
    for part in owner.split(".")[1:]:
        kind = getattr(kind, part)
    sources = [inspect.getsource(inspect.getmodule(each)) for each in kind.__mro__[:-1]]
    assert any(f"self.{name.rpartition('.')[2]} = " in source for source in sources)


def points() -> list[Point]:
    found: list[Point] = []
    for value in vars(patch_points).values():
        found += [value] if isinstance(value, Point) else []
        found += [p for p in value if isinstance(p, Point)] if isinstance(value, tuple) else []
    return found


@pytest.mark.parametrize("point", points(), ids=lambda point: f"{point.owner}.{point.name}")
def test_what_is_patched_is_there_and_comes_back(point: Point) -> None:
    of = on_devices() if point is patch_points.AGGREGATION else None
    owner = point.owner if of is None else of
    before = getattr(owner, point.name)
    with patched(point, lambda original: lambda *args: original, of=of):
        assert getattr(owner, point.name) != before
    assert getattr(owner, point.name) == before
    assert point.because


def private_attributes(tree: ast.AST) -> set[str]:
    """Private attributes that code reads or sets, but for its own objects'."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def private_texts(tree: ast.AST) -> set[str]:
    """Private attributes that code reads or sets by `getattr` and its kin."""
    return {
        node.args[1].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr", "setattr")
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and is_private(str(node.args[1].value))
    }


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("path", sorted(INTERNALS.glob("*.py")), ids=lambda path: path.stem)
def test_a_private_name_that_is_used_is_in_the_table(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for definition in tree.body:
        if not isinstance(definition, ast.FunctionDef):
            continue
        use = TABLE.get(f"kfit.internals.{path.stem}.{definition.name}")
        listed = {part for name in (use.names if use else ()) for part in name.split(".")}
        body = ast.Module(definition.body, [])
        assert private_attributes(body) | private_texts(body) <= listed, definition.name


def test_nothing_else_of_kfit_touches_a_private_name() -> None:
    """Ruff's SLF001 sees attributes; this sees what it does not."""
    found = {}
    for folder in ("kfit", "callbacks", "datasets"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if INTERNALS not in path.parents:
                text = path.read_text(encoding="utf-8")
                imports = r"^\s*(?:from|import) (?:keras\.src|tensorflow\.python)|tf\.__internal__"
                names = {*private_texts(ast.parse(text)), *re.findall(imports, text, re.M)}
                if names:
                    found[path.relative_to(ROOT).as_posix()] = names
    assert found == {}


def test_a_name_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    @uses("keras.Variable._gone", because="a test")
    def read(variable: Any) -> Any:
        return variable._gone

    @uses("keras.Variable._there", because="a test")
    def fails_otherwise(variable: Any) -> Any:
        return variable.misspelled

    variable = keras.Variable(1.0)
    with pytest.raises(MissingNameError, match=r"no `keras.Variable._gone`.*pip install"):
        read(variable)
    with pytest.raises(AttributeError, match="misspelled"):
        fails_otherwise(variable)
    with pytest.raises(MissingNameError, match=r"keras\.src\.losses\.gone"):
        imported("keras.src.losses.gone", because="a test")
    gone = patched(Point(keras.Variable, "gone", "a test"), lambda original: original)
    with pytest.raises(MissingNameError, match=r"Variable\.gone"), gone:
        pass
    for name in list(TABLE):
        if "gone" in name or "test_private" in name:
            del TABLE[name]


RESTATED: dict[str, set[str]] = {
    # kfit/exactness/joint_update.py: `apply_together`; optimizer_update.py: `apply_scaled`
    "keras.src.optimizers.base_optimizer.BaseOptimizer.apply": {"0e669aa92b15dad4"},
    "keras.src.optimizers.base_optimizer.BaseOptimizer._backend_apply_gradients": {
        "5f44088cabd5c03c"
    },
    "keras.src.optimizers.loss_scale_optimizer.LossScaleOptimizer._common_apply": {
        "a47ca24bb2aa5c38"
    },
    "keras.src.optimizers.loss_scale_optimizer.LossScaleOptimizer._tf_apply": {"376c9d2cafccbf67"},
    # kfit/exactness/loss_estimates.py: `_own_divisor`
    "keras.src.losses.loss.reduce_weighted_values": {"69f3efce67d0aed6"},
    # kfit/exactness/batch_losses.py: `_dice`, `_tversky`
    "keras.src.losses.losses.dice": {"06a38da82dc8ee68"},
    "keras.src.losses.losses.tversky": {"74414fc874946c78"},
    # kfit/exactness/moments.py: `_masked`; until Keras 3.14, and since 3.15
    "keras.src.layers.normalization.batch_normalization.BatchNormalization._moments": {
        "d03b6d25533b28ba",
        "9237986428b04a49",
    },
    # kfit/internals/callbacks.py: `decide_to_save`
    "keras.src.callbacks.model_checkpoint.ModelCheckpoint._save_model": {"45f89b1ae6007679"},
}
"""Functions of Keras that kfit re-states, with the digests of the sources that were read."""


@pytest.mark.parametrize("name", RESTATED)
def test_what_kfit_restates_is_what_was_read(name: str) -> None:
    """Read the new source, bring kfit's own in line with it, and add the digest."""
    assert digest_of(name) in RESTATED[name]


def digest_of(name: str) -> str:
    """The digest of the code of a function of Keras, whatever its comments and docstrings."""
    parts = name.split(".")
    count = len(parts)
    while True:
        try:
            module = importlib.import_module(".".join(parts[:count]))
            break
        except ImportError:
            count -= 1
    body: Any = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
    for part in parts[count:]:
        found = next(node for node in body if getattr(node, "name", None) == part)
        body = found.body
    for node in ast.walk(found):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(found).encode()).hexdigest()[:16]
