"""What tests/distribute/test_multi_worker.py runs on every worker, and once in one process.

Usage: TF_CONFIG=... python cases.py FOLDER CASE...
Prints a line `RESULT {json}` for each case. Each worker starts from other weights and another state
of Python's random numbers: the chief's must win.
"""

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if "CASES_FIREWALL" in os.environ:
    _connect = socket.socket.connect

    def _to_known_ports(self: socket.socket, address: Any) -> None:
        """What a firewall lets through that knows the ports of TF_CONFIG."""
        if isinstance(address, str) or str(address[1]) not in os.environ["TF_CONFIG"]:
            raise TimeoutError
        _connect(self, address)

    socket.socket.connect = _to_known_ports

import keras
import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import kfit
from kfit.cluster import loopback, sockets
from kfit.cluster.resolvers import current_cluster

if "CASES_FIREWALL" in os.environ:
    sockets.is_loopback = lambda _: False  # a neighbour behind a firewall is on another host

kfit.join_cluster()

EXAMPLES, BATCH_SIZE = 101, 20
FILE_SIZES = (25, 24, 26, 26)
FIXED = {"batch_size": BATCH_SIZE, "epochs": 2, "verbose": 0}

Result = dict[str, Any]
Case = Callable[["Task"], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Task:
    """What a case needs to know: who it is, and where to write."""

    def __init__(self, folder: Path, strategy: Any = "auto") -> None:
        self.folder = folder
        self.strategy = strategy
        cluster = None if strategy != "auto" else kfit.distribute.current_cluster()
        self.index = cluster.worker_index if cluster else 0
        self.workers = cluster.num_workers if cluster else 1

    def model(self, *layers: Any, **compiled: Any) -> keras.Model:
        layers = layers or (keras.layers.Dense(8, "tanh"), keras.layers.Dense(3))
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(
            **{
                "optimizer": keras.optimizers.SGD(0.5),
                "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": ["accuracy"],
                **compiled,
            }
        )
        return model

    def trainer(self, model: keras.Model | None = None, seed: int | None = 5) -> kfit.Trainer:
        return kfit.Trainer(model or self.model(), self.strategy, seed=seed)


def result(trainer: kfit.Trainer, **more: Any) -> Result:
    """The history and the weights; `exact` of a task must be equal to its peers'."""
    history = {} if trainer.history is None else trainer.history.history
    weights = [np.asarray(w) for w in trainer.model.get_weights()]
    return {
        "exact": [
            history,
            hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest(),
        ],
        "weights": [w.tolist() for w in weights],
        "history": history,
        **more,
    }


def data(examples: int = EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(EXAMPLES, 4)).astype("float32")
    return x[:examples], np.argmax(x @ draw.normal(size=(4, 3)), axis=1)[:examples]


def pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH_SIZE)


def with_policy(ds: tf.data.Dataset, name: str) -> tf.data.Dataset:
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy[name]
    options.experimental_distribute.auto_shard_policy = policy
    return ds.with_options(options)


# Arrays.


@case
def arrays(task: Task) -> Result:
    trainer = task.trainer()
    trainer.fit(*data(), validation_data=data(33), **{**FIXED, "verbose": 2})
    predicted = trainer.predict(data()[0], batch_size=BATCH_SIZE, verbose=0)
    return result(trainer, predicted=predicted.tolist())


@case
def arrays_without_a_seed(task: Task) -> Result:
    trainer = task.trainer(seed=None)
    trainer.fit(*data(), **FIXED)
    trainer.fit(*data(), **FIXED)
    return result(trainer)


@case
def on_batches(task: Task) -> Result:
    trainer = task.trainer()
    x, y = data()
    # Full, shared unevenly, and one example for all the replicas. Each is a graph of its own.
    logs = [trainer.train_on_batch(x[:k], y[:k]) for k in (20, 7, 1)]
    logs += [trainer.test_on_batch(x[:k], y[:k]) for k in (EXAMPLES, 1)]
    predicted = [trainer.predict_on_batch(x[:k]).tolist() for k in (7, 1)]
    return result(trainer, scores=logs, predicted=predicted)


@case
def all_of_the_optimizer(task: Task) -> Result:
    options = {
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 0.1,
        "use_ema": True,
        "ema_momentum": 0.8,
        "ema_overwrite_frequency": 2,
    }
    metrics = [keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="weighted")]
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9, **options)
    trainer = task.trainer(task.model(optimizer=optimizer, weighted_metrics=metrics))
    trainer.fit(*data(), sample_weight=np.linspace(0.1, 2.0, EXAMPLES), **FIXED)
    return result(trainer)


@case
def accumulated(task: Task) -> Result:
    """Windows span epochs; the chief saves in the middle of one, and training is cut off there."""

    class Saves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.save(task.folder / "accumulated.keras")
            values = [v.numpy().tolist() for v in self.model.optimizer._accumulated_gradients]
            scores.append(values)

    class Cuts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if task.index == 0:
                # On one task alone: not to be waited for by the others.
                assert self.model.optimizer._accumulated_gradients[0].numpy().any() == (batch != 3)
            if batch == 4:
                raise InterruptedError

    def trainer() -> kfit.Trainer:
        keras.utils.set_random_seed(3)
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9, gradient_accumulation_steps=4)
        return task.trainer(task.model(optimizer=optimizer))

    scores: list[Any] = []
    ended = trainer()
    ended.fit(*data(), callbacks=[Saves()], **FIXED)
    backup = kfit.callbacks.BackupAndRestore(task.folder / "accumulated", save_freq=3)
    again = trainer()
    with contextlib.suppress(InterruptedError):
        again.fit(*data(), callbacks=[backup, Cuts()], **FIXED)
    again._seeds.begin_anew()
    again.fit(*data(), callbacks=[backup], **FIXED)
    pairs = zip(again.model.get_weights(), ended.model.get_weights(), strict=True)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in pairs)
    return result(ended, scores=scores)


@case
def directories_of_their_own(task: Task) -> Result:
    """Keras' own backup, in a directory of each worker's own, after an interruption."""

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise InterruptedError

    def fit(*callbacks: Any) -> kfit.Trainer:
        keras.utils.set_random_seed(task.index)  # each worker has other weights to begin with
        trainer = task.trainer(task.model())
        backup = keras.callbacks.BackupAndRestore(task.folder / f"own-{task.index}")
        with contextlib.suppress(InterruptedError):
            trainer.fit(*data(), callbacks=[backup, *callbacks], **{**FIXED, "epochs": 4})
        return trainer

    fit(Fails())
    trainer = fit()
    return result(trainer, scores=trainer.history.epoch)


@case
def overflow_on_the_last_replica(task: Task) -> Result:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)
    trainer = task.trainer(task.model(keras.layers.Dense(1), optimizer=scaled, loss="mse"))
    x, _ = data()
    y = np.ones((EXAMPLES, 1), "float32")
    y[39] = 3e38
    trainer.fit(x, y, shuffle=False, **FIXED)
    return result(trainer, scores=[float(scaled.dynamic_scale), int(scaled.iterations)])


@case
def batch_normalization(task: Task) -> Result:
    layers = NeedsARow(), keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(3)
    trainer = task.trainer(task.model(*layers))
    trainer.fit(*data(), **FIXED)
    return result(trainer)


class NeedsARow(keras.layers.Layer):
    """Fails on a batch without one."""

    def call(self, x: Any) -> Any:
        return x + 0.0 * x[0]


@case
def embedding(task: Task) -> Result:
    layers = keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(3)
    # What squares and clips rows tells whether they are added up before.
    optimizer = keras.optimizers.Adam(0.05, epsilon=1e-3, global_clipnorm=0.1)
    trainer = task.trainer(task.model(*layers, optimizer=optimizer))
    words = np.random.default_rng(1).integers(0, 9, (EXAMPLES, 4))
    trainer.fit(words, data()[1], **FIXED)
    return result(trainer)


@case
def embedding_of_varying_lengths(task: Task) -> Result:
    """Gradients with another number of rows in each step and on each worker."""
    layers = keras.layers.Embedding(9, 3), keras.layers.GlobalAveragePooling1D()
    x = keras.Input((None,), dtype="int64")
    model = keras.Model(x, keras.layers.Dense(3)(layers[1](layers[0](x))))
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(True))
    trainer = task.trainer(model)
    draw = np.random.default_rng(1)
    sizes = [(20, 4), (20, 7), (13, 2), (1, 3), (20, 7)]
    batches = [(draw.integers(0, 9, size), draw.integers(0, 3, size[0])) for size in sizes]
    specs = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64)
    ds = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
    trainer.fit(ds, epochs=2, verbose=0)
    return result(trainer)


class Counts(keras.layers.Layer):
    """Counts the examples that it has seen, and in halves those of the last batch."""

    def build(self, shape: Any) -> None:
        made = {"shape": (), "initializer": "zeros", "trainable": False}
        self.seen = self.add_weight(aggregation="sum", dtype="int32", **made)
        self.average = self.add_weight(aggregation="mean", **made)

    def call(self, x: Any) -> Any:
        self.seen.assign_add(keras.ops.shape(x)[0])
        self.average.assign(0.5 * self.average + 0.5 * keras.ops.mean(x))
        return x


@case
def kept_by_layers(task: Task) -> Result:
    """Counts, means, and what a mask leaves of the batch for a BatchNormalization."""
    norm = keras.layers.BatchNormalization(synchronized=True)
    first = keras.layers.Reshape((2, 2)), keras.layers.Masking(), norm
    last = keras.layers.Flatten(), keras.layers.Dense(3)
    trainer = task.trainer(task.model(Counts(), *first, *last))
    x, y = data()
    x[::3, 2:] = 0.0
    trainer.fit(x, y, **FIXED)
    predicted = trainer.predict(x, batch_size=BATCH_SIZE, verbose=0)
    return result(trainer, predicted=predicted.tolist())


class Returning(keras.Sequential):
    """Returns the values of its batch, and updates no metric: those are read beside its sums."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(
                keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), True)
            )
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"batch_loss": loss, "norm": tf.linalg.global_norm(self.trainable_variables)}

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Returns sums over the examples, and what each example has, of which some are strings."""
        x, _ = batch
        words = tf.strings.as_string(x[:, :2])
        return {"sums": tf.reduce_sum(x, 0), "rows": self(x), "first": x[:3], "words": words}


@case
def returned_values(task: Task) -> Result:
    dense = keras.layers.Dense(64, "tanh"), keras.layers.Dense(64, "tanh"), keras.layers.Dense(3)
    model = Returning([keras.Input((4,)), *dense])
    model.never_updated = keras.metrics.Mean(name="never_updated")
    model.compile(keras.optimizers.SGD(0.1))
    trainer = task.trainer(model)
    trainer.fit(*data(), **{**FIXED, "epochs": 10})
    logs = trainer.evaluate(*data(), batch_size=BATCH_SIZE, verbose=0, return_dict=True)
    return result(trainer, scores=[np.asarray(logs[name], "f8").tolist() for name in sorted(logs)])


@case
def of_types_that_are_not_sent(task: Task) -> Result:
    """Whole numbers of a quantized kernel, and bfloat16 of a layer that is not trained."""
    quantized = keras.layers.Dense(6, "tanh")
    half = keras.layers.Dense(6, dtype="bfloat16", trainable=False)
    model = task.model(quantized, half, keras.layers.Dense(3))
    quantized.enable_lora(2)
    quantized.quantize("int8")
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(True))
    trainer = task.trainer(model)
    trainer.fit(*data(), **FIXED)
    return result(trainer)


@case
def examples_in_place(task: Task) -> Result:
    x = keras.Input(batch_shape=(BATCH_SIZE, 2, 2))
    model = keras.Model(x, keras.layers.Dense(3)(keras.layers.LSTM(2, stateful=True)(x)))
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(True))
    trainer = task.trainer(model)
    x, y = data(80)
    trainer.fit(x.reshape(-1, 2, 2), y, **FIXED)
    predicted = trainer.predict(x.reshape(-1, 2, 2), batch_size=BATCH_SIZE, verbose=0)
    return result(trainer, predicted=predicted.tolist())


class OfStrings(keras.Model):
    """Predicts texts of any length, of which some are empty."""

    def predict_step(self, batch: Any) -> Any:
        x, *_ = keras.utils.unpack_x_y_sample_weight(batch)
        words = tf.strings.regex_replace(tf.strings.as_string(x), "^-.*", "")
        return words, tf.RaggedTensor.from_tensor(words, padding="")


@case
def strings_predicted(task: Task) -> Result:
    model = OfStrings()
    model.compile()
    outputs = task.trainer(model).predict(data(13)[0], batch_size=5, verbose=0)
    texts = [str(np.asarray(outputs[0]).tolist()), str(outputs[1].to_list())]
    lengths = [[len(text)] for text in texts]
    return {"exact": texts, "weights": [], "history": {}, "predicted": lengths}


class ToSparseAndRagged(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        sparse = tf.sparse.from_dense(tf.where(x > 0.5, x, tf.zeros_like(x)))
        return sparse, tf.RaggedTensor.from_tensor(x, padding=None, lengths=lengths(x))

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, sparse=True), keras.KerasTensor(x.shape, ragged=True)


def lengths(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(x > 0, tf.int64), 1)


@case
def sparse_and_ragged_predictions(task: Task) -> Result:
    x = keras.Input((4,))
    trainer = task.trainer(keras.Model(x, ToSparseAndRagged()(x)))
    outputs: list[Any] = []
    for n in (EXAMPLES, 41):
        sparse, ragged = trainer.predict(data(n)[0], batch_size=BATCH_SIZE, verbose=0)
        outputs += [tf.sparse.to_dense(sparse).numpy().tolist(), ragged.to_list()]
        outputs.append([*sparse.shape, *ragged.shape[:1]])
    return {"exact": outputs, "weights": [], "history": {}, "predicted": outputs}


class WithoutRows(keras.Model):
    def __init__(self, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self.compute = compute
        self.rows = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(1))

    def call(self, x: Any) -> Any:
        return self.rows(x)

    def predict_step(self, data: Any) -> Any:
        return self.compute(super().predict_step(data))


@case
def predictions_without_rows(task: Task) -> Result:
    """The last batch has one example, so that only one of the workers has any."""
    outputs: list[Any] = []
    for compute in (
        lambda p: [p, tf.reduce_mean(p, 0), tf.reduce_sum(p, 0, keepdims=True), tf.eye(3)],
        lambda p: [p, p[:5], p[0], tf.reduce_sum(tf.cast(p > 0, "int32"), 0) + 1],
        lambda p: [tf.transpose(p), tf.reduce_mean(p)],
    ):
        trainer = task.trainer(WithoutRows(compute))
        predicted = trainer.predict(data(81)[0], batch_size=BATCH_SIZE, verbose=0)
        predicted += trainer.predict_on_batch(data(7)[0])
        outputs += [
            each.to_list() if isinstance(each, tf.RaggedTensor) else np.asarray(each).tolist()
            for each in predicted
        ]
    return {"exact": outputs, "weights": [], "history": {}, "predicted": outputs}


# tf.data.


@case
def finite(task: Task) -> Result:
    trainer = task.trainer()
    trainer.fit(pipeline(), epochs=2, verbose=0)
    scores = trainer.evaluate(pipeline(), verbose=0)
    predicted = trainer.predict(pipeline().map(lambda x, y: x), verbose=0)
    return result(trainer, scores=scores, predicted=predicted.tolist())


@case
def infinite(task: Task) -> Result:
    trainer = task.trainer()
    tf.random.set_seed(7)
    ds = tf.data.Dataset.from_tensor_slices(data()).shuffle(EXAMPLES, seed=3).repeat()
    trainer.fit(ds.batch(BATCH_SIZE), epochs=2, steps_per_epoch=4, verbose=0)
    return result(trainer)


@case
def unknown_length(task: Task) -> Result:
    x, y = data()
    spec = tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int64)
    rows = lambda: zip(x, y, strict=True)  # noqa: E731
    ds = tf.data.Dataset.from_generator(rows, output_signature=spec).batch(BATCH_SIZE)
    trainer = task.trainer()
    trainer.fit(ds, epochs=2, verbose=0)
    return result(trainer)


@case
def policy_data(task: Task) -> Result:
    trainer = task.trainer()
    trainer.fit(with_policy(records(task), "DATA"), epochs=2, verbose=0)
    return result(trainer)


@case
def policy_off(task: Task) -> Result:
    """Each worker shards by itself: its rows of the batches are every second example."""
    ds = tf.data.Dataset.from_tensor_slices(data()).shard(task.workers, task.index)
    trainer = task.trainer()
    trainer.fit(with_policy(ds.batch(BATCH_SIZE), "OFF"), epochs=2, verbose=0)
    return result(trainer)


def write_records(folder: Path) -> None:
    """The examples in four files of different sizes."""
    x, y = data()
    first = 0
    for number, size in enumerate(FILE_SIZES):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for row in range(first, first + size):
                whole = np.append(x[row], np.float32(y[row]))
                writer.write(tf.io.serialize_tensor(whole).numpy())
        first += size


def records(task: Task) -> tf.data.Dataset:
    def parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [5])
        return row[:4], tf.cast(row[4], tf.int64)

    files = [str(task.folder / f"{number}.tfrecord") for number in range(len(FILE_SIZES))]
    return tf.data.TFRecordDataset(files).map(parsed).batch(BATCH_SIZE)


@case
def policy_file(task: Task) -> Result:
    """TensorFlow gives each worker whole files; a batch has as many rows of each worker."""
    trainer = task.trainer(task.model(NeedsARow(), keras.layers.Dense(3)))
    if task.workers > 1:
        trainer.fit(with_policy(records(task), "FILE"), epochs=2, verbose=0)
        return result(trainer)
    x, y = data()
    bounds = np.cumsum([0, *FILE_SIZES])
    rows = [np.arange(*bounds[k : k + 2]) for k in range(len(FILE_SIZES))]
    of_worker = [np.concatenate(rows[worker::2]) for worker in range(2)]
    half = BATCH_SIZE // 2
    steps = -(-max(map(len, of_worker)) // half)
    batches = [np.concatenate([own[half * k :][:half] for own in of_worker]) for k in range(steps)]
    twice = ((x[rows], y[rows]) for rows in 2 * batches)
    trainer.fit(twice, epochs=2, steps_per_epoch=steps, verbose=0)
    return result(trainer)


@case
def predicted_files(task: Task) -> Result:
    """The rows of a prediction are in the order of the files."""
    trainer = task.trainer(task.model(NeedsARow(), keras.layers.Dense(3)))
    rows = trainer.predict(records(task), verbose=0)
    return result(trainer, scores=np.round(rows, 4).tolist())


@case
def dataset_function(task: Task) -> Result:
    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        own = tf.data.Dataset.from_tensor_slices(data())
        own = own.shard(context.num_input_pipelines, context.input_pipeline_id)
        return own.batch(context.get_per_replica_batch_size(BATCH_SIZE))

    trainer = task.trainer()
    trainer.fit(make, epochs=2, verbose=0)
    return result(trainer)


@case
def endless_parts_of_other_sizes(task: Task) -> Result:
    """The first half of the workers reads batches of 12 rows, the other one of 8."""
    x, y = data()
    sizes = 12, 8

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        half = 2 * context.input_pipeline_id // task.workers
        own = tf.data.Dataset.from_tensor_slices((x[50 * half :][:48], y[50 * half :][:48]))
        return own.batch(sizes[half], drop_remainder=True).repeat()

    trainer = task.trainer()
    if task.workers > 1:
        trainer.fit(make, epochs=2, steps_per_epoch=3, verbose=0)
        return result(trainer)
    halves = [np.arange(50 * half, 50 * half + 48).reshape(-1, sizes[half]) for half in (0, 1)]
    parts = [[rows[step % len(rows)] for step in range(6)] for rows in halves]
    batches = [np.concatenate(rows) for rows in zip(*parts, strict=True)]
    trainer.fit(((x[b], y[b]) for b in batches), epochs=2, steps_per_epoch=3, verbose=0)
    return result(trainer)


@case
def other_seeds_on_other_workers(task: Task) -> Result:
    tf.random.set_seed(task.index)
    ds = tf.data.Dataset.from_tensor_slices(data()).shuffle(EXAMPLES).batch(BATCH_SIZE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = task.trainer()
        trainer.fit(ds, verbose=0)
    messages = [str(w.message) for w in caught if "of its own" in str(w.message)]
    return {"exact": messages, "warnings": messages}


# Python.


class Rows(keras.utils.PyDataset):
    """Batches of the arrays, later ones often ready before earlier ones."""

    def __len__(self) -> int:
        return -(-EXAMPLES // BATCH_SIZE)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.003 * (index % 3))
        return tuple(array[BATCH_SIZE * index :][:BATCH_SIZE] for array in data())


@case
def py_dataset(task: Task) -> Result:
    trainer = task.trainer()
    trainer.fit(Rows(workers=3), epochs=2, verbose=0)
    scores = trainer.evaluate(Rows(workers=1), verbose=0)
    return result(trainer, scores=scores)


class Unseeded(keras.utils.PyDataset):
    """Puts its rows in an order of its own, and notes what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng()
        self.indices = np.random.permutation(20)
        self.seen: list[list[int]] = [[]]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        rows = self.indices[5 * index : 5 * index + 5]
        self.seen[-1] += map(int, rows)
        x, y = data()
        return x[rows] + self.draw.normal(size=(5, 4)) * np.random.random(), y[rows]

    def on_epoch_begin(self) -> None:
        self.seen[-1] = []

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.indices)
        self.seen.append([])


@case
def made_without_a_seed(task: Task) -> Result:
    np.random.seed(100 + task.index)  # as processes do that give none
    trainer, x = task.trainer(), Unseeded()
    trainer.fit(x, epochs=3, verbose=0)
    return {**result(trainer), "seen": [sorted(seen) for seen in x.seen[1:4]]}


@case
def pipeline_made_without_a_seed(task: Task) -> Result:
    """The second half of each batch is the first one again, on the other worker's rows."""
    np.random.seed(100 + task.index)
    noise = tf.random.Generator.from_non_deterministic_state()

    def batches() -> Iterator[Any]:
        for _ in range(4):
            yield (np.random.normal(size=(3, 4)).astype("float32"),)

    spec = (tf.TensorSpec((3, 4), tf.float32),)
    halves = tf.data.Dataset.from_generator(batches, output_signature=spec)

    def doubled(x: tf.Tensor) -> Any:
        x = tf.concat([x, x], 0) + noise.normal([])
        return x, tf.zeros([6], tf.int64)

    trainer = task.trainer()
    trainer.fit(halves.map(doubled), epochs=2, verbose=0)
    rows = trainer.predict(halves.map(doubled), verbose=0).reshape(4, 2, 3, -1)
    return result(trainer, scores=[float(np.allclose(rows[:, 0], rows[:, 1]))])


@case
def other_batches_on_other_workers(task: Task) -> Result:
    def batches() -> Iterator[Any]:
        x, y = data()
        draw = np.random.default_rng(task.index)
        while True:
            rows = draw.permutation(20)[:5]
            yield x[rows], y[rows]

    trainer = task.trainer()
    told = ""
    try:
        trainer.fit(batches(), steps_per_epoch=3, verbose=0)
    except ValueError as error:
        told = str(error)
    return {"exact": told, "error": told, "steps": int(trainer.model.optimizer.iterations)}


@case
def other_data_on_other_workers(task: Task) -> Result:
    x, y = data()
    trainer = task.trainer()
    told = []
    for given in ((x[task.index :: 2][:20], y[:20]), (x, (y + task.index) % 3)):
        try:
            trainer.fit(*given, verbose=0)
        except ValueError as error:
            told.append(str(error))
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    try:
        trainer.fit(rows.take(40 + 10 * task.index).batch(5), verbose=0)
    except ValueError as error:
        told.append(str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(rows.take(60).shard(task.workers, task.index).batch(5), verbose=0)
    warned = [str(w.message) for w in caught if "is another one" in str(w.message)]
    return {"exact": "", "errors": told, "warnings": warned}


@case
def other_settings_on_other_workers(task: Task) -> Result:
    """Optimizers that differ in class, a number or their slots, and losses."""
    trainer, told = task.trainer(), []
    adam, sgd = keras.optimizers.Adam, keras.optimizers.SGD
    loss = keras.losses.SparseCategoricalCrossentropy
    pairs = [
        ((adam(), loss()), (sgd(), loss())),
        ((sgd(0.1, momentum=0.9), loss()), (sgd(0.1), loss())),
        ((sgd(0.1), loss()), (sgd(0.2), loss())),
        ((sgd(0.1), loss()), (sgd(0.1), loss(from_logits=True))),
    ]
    for pair in pairs:
        trainer.compile(*pair[min(task.index, 1)])
        try:
            trainer.fit(*data(), verbose=0)
        except ValueError as error:
            told.append(str(error))
    return {"exact": "", "errors": told}


@case
def derived_from_writers(task: Task) -> Result:
    """Callbacks of the user's change logs and weights in hooks, and write by those of Keras."""

    class Board(keras.callbacks.TensorBoard):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["rate"] = float(self.model.optimizer.learning_rate)
            self.model.set_weights([0.5 * each for each in self.model.get_weights()])
            super().on_epoch_end(epoch, logs)

    class Rows(keras.callbacks.CSVLogger):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["mean"] = float(self.model.predict(data()[0], verbose=0).mean())
            super().on_epoch_end(epoch, logs)

    folder = task.folder / f"derived-{task.index}-of-{task.workers}"
    folder.mkdir()
    trainer = task.trainer()
    backup = kfit.callbacks.BackupAndRestore(task.folder / "derived", save_freq=2)
    callbacks = [Board(folder / "board"), Rows(folder / "rows.csv"), backup]
    trainer.fit(*data(), callbacks=callbacks, **FIXED)
    return result(trainer, files=sorted(path.name for path in folder.iterdir()))


@case
def weights_changed_by_the_chief(task: Task) -> Result:
    class Halves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and kfit.saving.is_chief():
                self.model.set_weights([0.5 * each for each in self.model.get_weights()])

    trainer, told = task.trainer(), "nothing"
    try:
        trainer.fit(*data(), callbacks=[Halves()], **{**FIXED, "epochs": 4})
    except ValueError as error:
        told = str(error)
    return {"exact": "", "error": told, "epochs": len(trainer.model.history.epoch)}


@case
def mirrored_beside_a_cluster(task: Task) -> Result:
    """The devices of this task, not those that it sees of the others."""
    trainer = kfit.Trainer(task.model(), kfit.distribute.Mirrored())
    trainer.fit(*data(), verbose=0)
    return {"exact": trainer.num_replicas}


@case
def generator(task: Task) -> Result:
    def batches() -> Iterator[Any]:
        while True:
            for index in range(len(Rows())):
                yield Rows()[index]

    trainer = task.trainer()
    trainer.fit(batches(), epochs=2, steps_per_epoch=4, verbose=0)
    return result(trainer)


# What one task does alone, all do.


@case
def stopped_by_one(task: Task) -> Result:
    """The last worker stops the first fit at a step, and the second at the end of an epoch."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._stop_if(batch == 2 and self.params["epochs"] == 2)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._stop_if(epoch == 1 and self.params["epochs"] == 5)

        def _stop_if(self, now: bool) -> None:
            if now and task.index == task.workers - 1:
                self.model.stop_training = True

    trainer = task.trainer()
    steps = []
    for epochs in (2, 5):
        trainer.fit(*data(), callbacks=[Stop()], **{**FIXED, "epochs": epochs})
        steps.append(int(trainer.model.optimizer.iterations))
    return result(trainer, scores=steps)


@case
def watched_by_one(task: Task) -> Result:
    """Only the last worker's callbacks look at every batch; all must run the same graph."""

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = False

    trainer = task.trainer()
    callbacks = [Watch()] if task.index == task.workers - 1 else []
    trainer.fit(*data(), callbacks=callbacks, **FIXED)
    return result(trainer)


@case
def written(task: Task) -> Result:
    best = keras.callbacks.ModelCheckpoint(
        task.folder / "best.weights.h5", monitor="loss", save_best_only=True, save_weights_only=True
    )
    log = keras.callbacks.CSVLogger(task.folder / "log.csv")
    rate = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=10.0)
    board = kfit.callbacks.TensorBoard(task.folder / "logs", histogram_freq=1, update_freq=4)
    trainer = task.trainer()
    trainer.fit(*data(), callbacks=[best, log, rate, board], **{**FIXED, "epochs": 4})
    trainer.save(task.folder / "model.keras")
    # `save` returns when the chief has written.
    loaded = keras.saving.load_model(task.folder / "model.keras").get_weights()
    same = [np.array_equal(*w) for w in zip(loaded, trainer.model.get_weights(), strict=True)]
    lines = (task.folder / "log.csv").read_text().splitlines()
    best_size = (task.folder / "best.weights.h5").stat().st_size
    points = EventAccumulator(str(task.folder / "logs" / "train"), size_guidance={"tensors": 0})
    points.Reload()
    steps = {tag: [p.step for p in points.Tensors(tag)] for tag in points.Tags()["tensors"]}
    scores = [bool(s) for s in same]
    return result(trainer, scores=scores, lines=lines, best_size=best_size, points=steps)


@case
def saved_after_a_call_in_a_hook(task: Task) -> Result:
    """A hook evaluates and predicts, and saves to a path of each task's own: the chief's alone."""
    trainer = task.trainer()
    own = task.folder / f"in_a_hook_{task.index}.keras"

    class Calls(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            trainer.evaluate(*data(), verbose=0)
            trainer.predict(data()[0], verbose=0)
            self.model.save(own)

    trainer.fit(*data(), callbacks=[Calls()], **FIXED)
    return result(trainer, saved=own.exists())


@case
def rolled_back(task: Task) -> Result:
    """One batch in the middle of an epoch gives NaN: all go back, and around it.

    So does a callback with a state of its own, which all of them have.
    """

    class AddsNoise(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.draw = np.random.default_rng(3)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            kernel = self.model.layers[0].kernel
            now = keras.ops.convert_to_numpy(kernel)
            kernel.assign(now + self.draw.normal(0.0, 0.01, now.shape))

    x, y = data()
    x[45] = np.nan
    trainer = task.trainer()
    back = kfit.callbacks.RollBack(save_freq=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(x, y, shuffle=False, callbacks=[AddsNoise(), back], **FIXED)
    return result(trainer, scores=[back.rollbacks, int(trainer.model.optimizer.iterations)])


@case
def out_of_time(task: Task) -> Result:
    """The chief's time is up in the middle of an epoch; what is saved at the end is not, then."""

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.02)

    limit = kfit.callbacks.TimeLimit(0.3 if task.index == 0 else 1e6)
    path, folder = task.folder / "ended.keras", task.folder / "exported"
    save = [kfit.callbacks.SaveModel(path), kfit.callbacks.Export(folder)]
    trainer = task.trainer()
    trainer.fit(*data(), callbacks=[limit, Slow(), *save], **{**FIXED, "epochs": 1000})
    scores = [trainer.interrupted, path.exists(), int(trainer.model.optimizer.iterations)]
    exact = result(trainer)["exact"]
    trainer.fit(*data(), callbacks=save, **FIXED)
    # No task leaves `fit` before the chief has written.
    loaded = keras.saving.load_model(path).get_weights()
    same = all(map(np.array_equal, loaded, trainer.model.get_weights()))
    exported = tf.saved_model.load(str(folder))
    served = exported.serve(data()[0])
    close = np.allclose(served, trainer.model(data()[0]), atol=1e-6)
    return {"exact": exact, "scores": scores, "written": [trainer.interrupted, same, bool(close)]}


@case
def heard(task: Task) -> Result:
    """Who can connect to TensorFlow's server: the devices to which its sockets are bound."""
    task.trainer()
    port = int(current_cluster().address.rpartition(":")[2])
    devices = []
    for descriptor in loopback._listening():
        with loopback._borrowed(descriptor) as listener:
            if listener.getsockname()[1] == port:
                device = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
                devices.append(device.rstrip(b"\0").decode())
    return {"devices": devices}


def run(name: str, task: Task) -> Result:
    keras.utils.set_random_seed(1 + task.index)
    return {"case": name, "task": task.index, **CASES[name](task)}


def main() -> None:
    task = Task(Path(sys.argv[1]))
    for name in sys.argv[2:]:
        started = time.perf_counter()
        line = json.dumps(run(name, task))
        print(f"RESULT {line}", flush=True)
        print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
