"""Draws layers."""

import random
from typing import Any

from tests.programs.generated.expression import Call, call, layer


def body(made: dict[str, Any], draw: random.Random, more: list[int]) -> None:
    """Adds the layers between the inputs and the heads to a program."""
    kind, model = made["inputs"]["kind"], made["model"]
    layers = [_dense(draw)]
    if kind == "image":
        layers = _of_images(made, draw)
    elif kind != "vector":
        layers = _of_sequences(made, draw)
    if kind != "tokens" and draw.random() < 0.3:
        layers.insert(0, layer("Rescaling", scale=0.5))
    for _ in range(draw.choice(more)):
        layers.append(_state(made, draw))
        if draw.random() < 0.6:
            layers.append(_dense(draw))
    if draw.random() < 0.3:
        model["frozen"] = [draw.choice(range(len(layers)))]
    # Keras refuses LoRA beside a constraint. Its variables are float32 always, which Keras cannot
    # add to float64 in regularizers, nor in a norm of all gradients: see `draw_optimizer`.
    dense = [
        n
        for n, each in enumerate(layers)
        if each["call"] == "keras.layers.Dense"
        and not each.keys() & {"kernel_constraint", "kernel_regularizer"}
    ]
    if dense and draw.random() < 0.12:
        model["lora"] = [draw.choice(dense)]
    if made["inputs"].get("count") == 2 and draw.random() < 0.6:
        model["shared"] = True
    model["body"] = layers


def _of_images(made: dict[str, Any], draw: random.Random) -> list[Call]:
    layers = []
    if draw.random() < 0.3:
        augmentations = [
            layer("RandomFlip", seed=4),
            layer("RandomTranslation", height_factor=0.2, width_factor=0.2, seed=4),
            layer("RandomBrightness", factor=0.2, seed=4),
        ]
        layers.append(draw.choice(augmentations))
    layers.append(layer("Conv2D", filters=3, kernel_size=3, activation="tanh"))
    if draw.random() < 0.4:
        layers.append(_state(made, draw))
    layers.append(layer(draw.choice(["GlobalAveragePooling2D", "Flatten"])))
    return layers


def _of_sequences(made: dict[str, Any], draw: random.Random) -> list[Call]:
    layers, kind = [], made["inputs"]["kind"]
    if kind == "tokens":
        masks = draw.random() < 0.7
        layers.append(layer("Embedding", input_dim=9, output_dim=3, mask_zero=masks))
    made["outputs"]["sequences"] = sequences = draw.random() < 0.3
    recurrent = layer(draw.choice(["LSTM", "GRU", "SimpleRNN"]), units=3, return_sequences=True)
    if kind == "sequence" and draw.random() < 0.3:
        recurrent = layer("Conv1D", filters=3, kernel_size=2, padding="same")
    elif draw.random() < 0.25:
        recurrent = call("AttendsToItself", causal=draw.random() < 0.5)
    elif draw.random() < 0.25:
        recurrent = layer("Bidirectional", layer=recurrent)
    elif made["model"]["style"] != "subclassed" and draw.random() < 0.2:
        # As many examples in every batch as the state has rows: see `draw_fit` and `data_text`.
        recurrent["stateful"] = made["model"]["stateful"] = True
    layers.append(recurrent)
    if draw.random() < 0.3:
        layers.append(_state(made, draw))
    if not sequences:
        last = [layer("GlobalAveragePooling1D"), layer("GRU", units=2), call("LastOfSequence")]
        layers.append(draw.choice(last))
    return layers


def _dense(draw: random.Random) -> Call:
    made = layer("Dense", units=draw.choice([3, 4, 5]))
    if draw.random() < 0.8:
        made["activation"] = draw.choice(["tanh", "softplus", "gelu", "relu"])
    if draw.random() < 0.25:
        made["kernel_regularizer"] = draw.choice(["l2", "l1"])
    if draw.random() < 0.1:
        made["kernel_constraint"] = "unit_norm"
    return made


def _state(made: dict[str, Any], draw: random.Random) -> Call:
    """A layer with state, with draws or with a loss of its own."""
    # Keras cannot add the loss of an activity in half precision to the others, in float32.
    regularized = 0 if made["dtype"].startswith("mixed") else 2
    return draw.choices(
        [
            layer("BatchNormalization", synchronized=True, momentum=0.8),
            layer("BatchNormalization"),
            layer("LayerNormalization"),
            layer("Dropout", rate=0.3),
            layer("GaussianNoise", stddev=0.1, seed=9),
            layer("ActivityRegularization", l2=0.01),
            call("CountsCalls"),
            call("AddsUp"),
            call("MovingAverage"),
            call("AddsMeanLoss"),
            layer("UnitNormalization"),
            call("CountsSteps"),
            call("HoldsVariable"),
            call("KeepsOwnMean"),
            call("CountsInVariable"),
        ],
        [4, 1, 2, 2, 1, regularized, 2, 2, 2, 2, 1, 2, 1, 0.3, 0.3],
    )[0]
