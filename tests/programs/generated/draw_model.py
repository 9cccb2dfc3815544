"""Draws what is trained: inputs, layers, losses, metrics and the optimizer."""

import random
from typing import Any

Call = dict[str, Any]


def call(name: str, **arguments: Any) -> Call:
    """A call as plain data; names without a dot are pieces."""
    return {"call": name, **arguments}


def layer(name: str, **arguments: Any) -> Call:
    """A call of a Keras layer."""
    return call(f"keras.layers.{name}", **arguments)


def add(made: dict[str, Any], draw: random.Random, brief: bool = False) -> None:
    """Adds all about the model to a program."""
    style = draw.choices(
        ["sequential", "functional", "subclassed", "own_step", "own_trackers", "adversaries"],
        [4, 6, 3, 4, 2, 2],
    )[0]
    plain = style in ("own_trackers", "adversaries")
    kind = "vector" if style == "adversaries" else _input_kind(draw)
    made["inputs"] = {"kind": kind}
    made["outputs"] = {"task": "regression" if plain else _task(draw)}
    joins = style in ("functional", "subclassed", "own_step") and kind == "vector"
    if joins and draw.random() < 0.35:
        made["inputs"] |= {"count": 2, "structure": draw.choice(["list", "dict"])}
    if style in ("functional", "subclassed") and draw.random() < 0.35:
        made["outputs"] |= {"count": 2, "structure": "list"}
        if style == "functional":
            made["outputs"]["structure"] = draw.choice(["list", "dict"])
    made["model"] = {"style": style}
    if style == "adversaries":
        made["compile"] = {
            "maker_optimizer": _optimizer(made, draw),
            "judge_optimizer": _optimizer(made, draw),
            "loss_fn": call("keras.losses.MeanSquaredError"),
        }
        made["dtype"] = "float64"
        return
    _body(made, draw, [1] if brief else [0, 1, 1, 2])
    made["compile"] = {"optimizer": _optimizer(made, draw)}
    if style != "own_trackers":
        _losses(made, draw)


def _input_kind(draw: random.Random) -> str:
    return draw.choices(["vector", "sequence", "image", "tokens"], [6, 2, 2, 3])[0]


def _task(draw: random.Random) -> str:
    return draw.choices(["regression", "binary", "sparse", "categorical"], [4, 2, 3, 2])[0]


def _body(made: dict[str, Any], draw: random.Random, more: list[int]) -> None:
    kind, model = made["inputs"]["kind"], made["model"]
    body: list[Call] = []
    if kind == "vector":
        body = [_dense(draw)]
    elif kind == "image":
        if draw.random() < 0.3:
            body.append(
                draw.choice(
                    [
                        layer("RandomFlip", seed=4),
                        layer("RandomTranslation", height_factor=0.2, width_factor=0.2, seed=4),
                        layer("RandomBrightness", factor=0.2, seed=4),
                    ]
                )
            )
        body.append(layer("Conv2D", filters=3, kernel_size=3, activation="tanh"))
        if draw.random() < 0.4:
            body.append(_state(made, draw))
        body.append(layer(draw.choice(["GlobalAveragePooling2D", "Flatten"])))
    else:
        if kind == "tokens":
            masks = draw.random() < 0.7
            body.append(layer("Embedding", input_dim=9, output_dim=3, mask_zero=masks))
        made["outputs"]["sequences"] = sequences = draw.random() < 0.3
        recurrent = layer(draw.choice(["LSTM", "GRU", "SimpleRNN"]), units=3, return_sequences=True)
        if kind == "sequence" and draw.random() < 0.3:
            recurrent = layer("Conv1D", filters=3, kernel_size=2, padding="same")
        elif draw.random() < 0.25:
            recurrent = layer("Bidirectional", layer=recurrent)
        body.append(recurrent)
        if draw.random() < 0.3:
            body.append(_state(made, draw))
        if not sequences:
            last = [layer("GlobalAveragePooling1D"), layer("GRU", units=2), call("LastOfSequence")]
            body.append(draw.choice(last))
    for _ in range(draw.choice(more)):
        body.append(_state(made, draw))
        if draw.random() < 0.6:
            body.append(_dense(draw))
    if draw.random() < 0.3:
        model["frozen"] = [draw.choice(range(len(body)))]
    # Keras refuses LoRA beside a constraint. Its variables are float32 always, which Keras cannot
    # add to float64 in regularizers, nor in a norm of all gradients: see `_optimizer`.
    dense = [
        n
        for n, each in enumerate(body)
        if each["call"] == "keras.layers.Dense"
        and not each.keys() & {"kernel_constraint", "kernel_regularizer"}
    ]
    if dense and draw.random() < 0.12:
        model["lora"] = [draw.choice(dense)]
    if made["inputs"].get("count") == 2 and draw.random() < 0.6:
        model["shared"] = True
    model["body"] = body


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
        ],
        [4, 1, 2, 2, 1, regularized, 2, 2, 2, 2, 1],
    )[0]


def _losses(made: dict[str, Any], draw: random.Random) -> None:
    task, count = made["outputs"]["task"], made["outputs"].get("count", 1)
    compiled = made["compile"]
    losses = [_loss(task, draw) for _ in range(count)]
    as_dict = count > 1 and (
        made["outputs"]["structure"] == "dict"
        or (made["model"]["style"] == "functional" and draw.random() < 0.4)
    )
    compiled["loss"] = losses[0] if count == 1 else _by_name(losses, as_dict)
    if count > 1 and draw.random() < 0.5:
        compiled["loss_weights"] = _by_name([0.5, 2.0], as_dict)
    for argument in ("metrics", "weighted_metrics"):
        if draw.random() < 0.6:
            metrics = [_metrics(made, draw) for _ in range(count)]
            compiled[argument] = metrics[0] if count == 1 else _by_name(metrics, as_dict)
    if draw.random() < 0.1:
        compiled["steps_per_execution"] = draw.choice([2, 3])


def _by_name(values: list[Any], as_dict: bool) -> Any:
    return dict(zip("pq", values, strict=True)) if as_dict else values


def _loss(task: str, draw: random.Random) -> Any:
    named = {
        "regression": ["mse", "mae", "log_cosh", "huber"],
        "binary": ["binary_crossentropy", "binary_focal_crossentropy", "squared_hinge"],
        "sparse": ["sparse_categorical_crossentropy"],
        "categorical": ["categorical_crossentropy", "kl_divergence", "categorical_hinge"],
    }[task]
    if draw.random() < 0.5:
        return draw.choice(named)
    classes = {
        "regression": ["MeanSquaredError", "MeanAbsoluteError", "Huber", "CosineSimilarity"],
        "binary": ["BinaryCrossentropy", "BinaryFocalCrossentropy"],
        "sparse": ["SparseCategoricalCrossentropy"],
        "categorical": ["CategoricalCrossentropy", "CategoricalFocalCrossentropy"],
    }[task]
    reduction = draw.choices(
        ["sum_over_batch_size", "sum", "mean", "mean_with_sample_weight"], [3, 2, 1, 2]
    )[0]
    made = call(f"keras.losses.{draw.choice(classes)}", reduction=reduction)
    if task in ("binary", "categorical") and draw.random() < 0.3:
        made["label_smoothing"] = 0.1
    return made


def _metrics(made: dict[str, Any], draw: random.Random) -> list[Any]:
    task, several = made["outputs"]["task"], made["outputs"].get("sequences")
    names = {
        "regression": ["MeanAbsoluteError", "RootMeanSquaredError", "CosineSimilarity", "R2Score"],
        "binary": ["BinaryAccuracy", "AUC", "Precision", "FalsePositives"],
        "sparse": ["SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"],
        "categorical": ["CategoricalAccuracy", "F1Score", "Recall", "CategoricalCrossentropy"],
    }[task]
    names = [n for n in names if not (several and n in ("R2Score", "F1Score"))]
    picked = draw.sample(names, draw.choice([1, 1, 2]))
    made_ = [call(f"keras.metrics.{name}") for name in picked]
    for each in made_:
        if each["call"].endswith("F1Score"):
            each["average"] = "macro"
    return made_


def _optimizer(made: dict[str, Any], draw: random.Random) -> Call:
    exact = made["dtype"] == "float64"
    kinds: list[Call] = [
        call("SGD"),
        call("SGD", momentum=0.9),
        call("SGD", momentum=0.5, nesterov=True),
    ]
    if exact:
        kinds += [call("Adam"), call("Adam", amsgrad=True), call("RMSprop", centered=True)]
        kinds += [call("Adagrad"), call("AdamW"), call("Nadam"), call("Adadelta"), call("Ftrl")]
    optimizer = dict(draw.choice(kinds))
    optimizer["call"] = f"keras.optimizers.{optimizer['call']}"
    rate = draw.choice([0.1, 0.02])
    optimizer["learning_rate"] = rate if draw.random() < 0.75 else _schedule(rate, draw)
    if draw.random() < 0.3:
        clips = [("clipnorm", 0.3), ("clipvalue", 0.1)]
        clip = draw.choice(
            clips if made["model"].get("lora") else [*clips, ("global_clipnorm", 0.5)]
        )
        optimizer[clip[0]] = clip[1]
    if draw.random() < 0.2:
        optimizer["use_ema"] = True
        optimizer["ema_momentum"] = 0.8
        if draw.random() < 0.5:
            optimizer["ema_overwrite_frequency"] = 3
    if draw.random() < 0.2:
        optimizer["gradient_accumulation_steps"] = draw.choice([2, 3])
    if draw.random() < 0.15:
        optimizer["weight_decay"] = 0.01
    scaled = made["dtype"] == "mixed_float16" or draw.random() < 0.08
    if not scaled or "gradient_accumulation_steps" in optimizer:
        return optimizer
    return call(
        "keras.optimizers.LossScaleOptimizer",
        inner_optimizer=optimizer,
        initial_scale=64.0,
        dynamic_growth_steps=3,
    )


def _schedule(rate: float, draw: random.Random) -> Call:
    schedules = "keras.optimizers.schedules."
    return draw.choice(
        [
            call(
                schedules + "ExponentialDecay",
                initial_learning_rate=rate,
                decay_steps=3,
                decay_rate=0.7,
            ),
            call(schedules + "CosineDecay", initial_learning_rate=rate, decay_steps=8),
            call(
                schedules + "PiecewiseConstantDecay",
                boundaries=[2, 5],
                values=[rate, rate / 2, rate / 4],
            ),
        ]
    )
