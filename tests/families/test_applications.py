"""Networks of `keras.applications`, whose BatchNormalization needs care on several replicas."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

SIDE, CLASSES = 32, 3


def images() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1.0, 1.0, (21, SIDE, SIDE, 3)).astype("float32")


def labels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, CLASSES, 21)


def mobile_net() -> keras.Model:
    return keras.applications.MobileNet(
        (SIDE, SIDE, 3), alpha=0.25, include_top=False, weights=None
    )


def synchronized(layer: Any) -> Any:
    """A copy of a layer; one that takes the statistics of all replicas, if it normalizes."""
    config = layer.get_config()
    if isinstance(layer, layers.BatchNormalization):
        config["synchronized"] = True
    return layer.__class__.from_config(config)


def classifier(features: Any, inputs: Any) -> keras.Model:
    outputs = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(features))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.02), loss, metrics=["accuracy"])
    return model


def first_blocks() -> keras.Model:
    """The first of its blocks, with three BatchNormalizations: the others are of the same kind."""
    whole = mobile_net()
    return keras.Model(whole.input, whole.get_layer("conv_pw_1_relu").output)


def trained_whole() -> keras.Model:
    base = first_blocks()
    return classifier(base.output, base.input)


def trained_whole_synchronized() -> keras.Model:
    base = keras.models.clone_model(first_blocks(), clone_function=synchronized)
    return classifier(base.output, base.input)


def trained_on_top() -> keras.Model:
    base = mobile_net()
    base.trainable = False
    inputs = keras.Input((SIDE, SIDE, 3))
    return classifier(base(inputs, training=False), inputs)


def test_on_one_device_the_statistics_are_those_of_keras(as_in_keras: Any) -> None:
    as_in_keras(trained_whole, images(), labels(), replicas=[1])


@pytest.mark.long
def test_synchronized_statistics_are_those_of_keras(as_in_keras: Any) -> None:
    as_in_keras(trained_whole_synchronized, images(), labels(), replicas=[2])


@pytest.mark.long  # the whole network is trained every day
def test_layers_on_top_of_frozen_ones_are_those_of_keras(as_in_keras: Any) -> None:
    """Frozen layers normalize by the statistics that they have, on any number of replicas."""
    as_in_keras(trained_on_top, images(), labels(), replicas=[2])
