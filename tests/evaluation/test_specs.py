import json
import re
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.evaluation.workflow import part_here

X = np.zeros((101, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": X}, "`epochs` or `max_steps` must be given"),
        ({"epochs": 1}, "`input_fn` or `x` must be given"),
        ({"epochs": 1, "x": X, "input_fn": lambda: X}, "either `input_fn` or `x`"),
        ({"epochs": 1, "input_fn": X}, "`input_fn` must be a function"),
        ({"epochs": 0, "x": X}, "`epochs` must be an integer of at least 1. Received: 0"),
        ({"max_steps": 2.5, "x": X}, "`max_steps` must be an integer of at least 1"),
        ({"max_steps": "ten", "x": X}, "`max_steps` must be an integer of at least 1"),
        ({"epochs": float("nan"), "x": X}, "`epochs` must be an integer of at least 1"),
        ({"epochs": 1, "x": X, "model_dir": ""}, "`model_dir` must be the path"),
    ],
)
def test_train_spec_refuses(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kfit.TrainSpec(**{"model_dir": "job", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`input_fn` or `x` must be given"),
        ({"x": X, "steps": 0}, "`steps` must be an integer of at least 1"),
        ({"x": iter([X])}, "`x` is read in each evaluation, but a generator only once"),
        ({"x": X, "name": "a/b"}, "`name` must be a part of a directory's name"),
        ({"x": X, "exporters": ["best"]}, "`exporters` must be a kfit.Exporter"),
        ({"x": X, "exporters": "best"}, "`exporters` must be a kfit.Exporter"),
        ({"x": X, "exporters": 5}, "`exporters` must be a kfit.Exporter"),
        (
            {"x": X, "exporters": [kfit.BestExporter(), kfit.BestExporter(monitor="mae")]},
            "two BestExporters of one name, which is that of their file. Received: 'best' twice",
        ),
        ({"x": X, "callbacks": ["early"]}, "`callbacks` must be a list of keras.callbacks"),
        ({"x": X, "throttle_secs": -1}, "`throttle_secs` is -1; expected a number of seconds from"),
        ({"x": X, "throttle_secs": "5"}, "`throttle_secs` is '5'; expected a number of seconds"),
        ({"x": X, "start_delay_secs": float("nan")}, "`start_delay_secs` is nan; expected"),
        ({"x": X, "idle_timeout_secs": 0}, "`idle_timeout_secs` is 0; expected a number of secon"),
    ],
)
def test_eval_spec_refuses(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kfit.EvalSpec(**options)


def test_one_several_or_no_callbacks_and_exporters():
    callback, best, other = keras.callbacks.History(), kfit.BestExporter(), kfit.BestExporter("b")
    train = partial(kfit.TrainSpec, model_dir="job", x=X, epochs=1)
    for spec in (train, partial(kfit.EvalSpec, x=X)):
        for given in (callback, [callback], (c for c in [callback])):
            made = spec(callbacks=given)
            assert made.each_callback == made.each_callback == (callback,)
        assert spec().each_callback == spec(callbacks=None).each_callback == ()
    for given in ([best, other], (e for e in (best, other))):
        made = kfit.EvalSpec(x=X, exporters=given)
        assert made.each_exporter == made.each_exporter == (best, other)
    assert kfit.EvalSpec(x=X, exporters=best).each_exporter == (best,)
    assert kfit.EvalSpec(x=X, exporters=None).each_exporter == ()


def test_integers_of_numpy():
    numbers = {name: np.int64(3) for name in ("epochs", "max_steps", "batch_size")}
    spec = kfit.TrainSpec(model_dir="job", x=X, steps_per_epoch=np.int32(2), **numbers)
    assert json.dumps(spec.target) == '{"epochs": 3, "max_steps": 3}'
    assert type(spec.batch_size) is type(spec.steps_per_epoch) is int
    assert type(kfit.EvalSpec(x=X, steps=np.int64(3)).steps) is int


def test_directories_of_a_name():
    spec = kfit.EvalSpec(x=X, name="other")
    assert (spec.directory("job"), spec.export_directory("job")) == (
        "job/eval_other",
        "job/export_other",
    )
    spec = kfit.EvalSpec(x=X)
    assert (spec.directory("job"), spec.export_directory("job")) == ("job/eval", "job/export")


def test_specs_are_frozen_and_keyword_only():
    spec = kfit.EvalSpec(x=X)
    with pytest.raises(AttributeError):
        spec.steps = 3
    with pytest.raises(TypeError):
        kfit.EvalSpec(X)
    assert "0." not in repr(kfit.TrainSpec(model_dir="job", x=X, epochs=1))


def test_data_of_an_input_fn():
    assert kfit.EvalSpec(input_fn=lambda: (1, 2)).data() == (1, 2, None)
    dataset = tf.data.Dataset.range(3)
    assert kfit.EvalSpec(input_fn=lambda: dataset).data() == (dataset, None, None)


@pytest.mark.parametrize(
    ("options", "x", "epochs"),
    [
        ({"epochs": 7}, X, 7),
        ({"max_steps": 12}, X, 2),  # 101 examples in batches of 20 are 6 steps
        ({"max_steps": 13}, {"a": X, "b": X}, 3),
        ({"max_steps": 12, "steps_per_epoch": 5}, X, 4),  # of 5, 1, 5 and 1 steps
        ({"max_steps": 11, "steps_per_epoch": 5}, X, 3),
        ({"max_steps": 12, "steps_per_epoch": 9}, X, 2),
        ({"max_steps": 12, "steps_per_epoch": 5}, lambda: tf.data.Dataset.range(5).repeat(), 3),
        ({"max_steps": 12, "steps_per_epoch": 5}, iter([]), 3),
        (
            {"max_steps": 12, "steps_per_epoch": 5},
            lambda: tf.data.Dataset.range(9).filter(lambda i: i > 3),
            12,
        ),
        ({"max_steps": 12}, lambda: tf.data.Dataset.range(5), 3),
        ({"max_steps": 12}, lambda: tf.data.Dataset.range(5).repeat(), 12),
        ({"max_steps": 12}, iter([]), 12),
    ],
)
def test_the_last_epoch(options, x, epochs):
    spec = kfit.TrainSpec(model_dir="job", x=X, batch_size=20, **options)
    assert spec.last_epoch(x() if callable(x) else x) == epochs


def test_who_evaluates(monkeypatch):
    def part(cluster, task, **options):
        config = {"cluster": cluster, "task": {"type": task, "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        return part_here(kfit.EvalSpec(x=X, **options))

    assert part_here(kfit.EvalSpec(x=X)) == "both"
    workers, listed = {"worker": ["a:1", "b:1"]}, {"worker": ["a:1"], "evaluator": ["e:1"]}
    assert part(workers, "worker") == "both"
    assert part(workers, "worker", evaluator=True) == "train"
    assert part(workers, "evaluator") == "evaluate"
    assert part(listed, "worker") == "train"
    assert part(listed, "worker", evaluator=False) == "both"
    with pytest.raises(kfit.distribute.ClusterError, match="`evaluator` is False"):
        part(listed, "evaluator", evaluator=False)
