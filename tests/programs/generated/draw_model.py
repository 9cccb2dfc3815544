"""Draws what is trained: inputs, layers, losses, metrics and the optimizer."""

import random
from typing import Any

from tests.programs.generated.draw_layers import body
from tests.programs.generated.draw_optimizer import optimizer
from tests.programs.generated.expression import call

OWN_METHODS = ("own_step", "clips_by_hand", "own_loss", "own_trackers", "adversaries")
"""Styles of models with methods of their own in the place of Keras'."""


def add(made: dict[str, Any], draw: random.Random, brief: bool = False) -> None:
    """Adds all about the model to a program."""
    style = draw.choices(
        ["sequential", "functional", "subclassed", *OWN_METHODS],
        [4, 6, 3, 4, 1, 2, 2, 2],
    )[0]
    plain = style in ("own_trackers", "adversaries")
    kind = "vector" if style == "adversaries" else _input_kind(draw)
    made["inputs"] = {"kind": kind}
    made["outputs"] = {"task": "regression" if plain else _task(draw)}
    of_call = ("functional", "subclassed", "own_step", "clips_by_hand", "own_loss")
    joins = style in of_call and kind == "vector"
    if joins and draw.random() < 0.35:
        made["inputs"] |= {"count": 2, "structure": draw.choice(["list", "dict"])}
    if style in ("functional", "subclassed") and draw.random() < 0.35:
        made["outputs"] |= {"count": 2, "structure": "list"}
        if style == "functional":
            made["outputs"]["structure"] = draw.choice(["list", "dict"])
    made["model"] = {"style": style}
    if style == "adversaries":
        made["compile"] = {
            "maker_optimizer": optimizer(made, draw),
            "judge_optimizer": optimizer(made, draw),
            "loss_fn": call("keras.losses.MeanSquaredError"),
        }
        made["dtype"] = "float64"
        return
    body(made, draw, [1] if brief else [0, 1, 1, 2])
    made["compile"] = {"optimizer": optimizer(made, draw)}
    if style != "own_trackers":
        _losses(made, draw)


def _input_kind(draw: random.Random) -> str:
    return draw.choices(["vector", "sequence", "image", "tokens"], [6, 2, 2, 3])[0]


def _task(draw: random.Random) -> str:
    return draw.choices(["regression", "binary", "sparse", "categorical"], [4, 2, 3, 2])[0]


def _losses(made: dict[str, Any], draw: random.Random) -> None:
    task, count = made["outputs"]["task"], made["outputs"].get("count", 1)
    compiled = made["compile"]
    losses = [_loss(task, draw, _takes_values(made)) for _ in range(count)]
    if made["dtype"] == "mixed_float16":  # a sum that overflows on one device may not on several
        for loss in losses:
            if isinstance(loss, dict) and loss["reduction"] in ("sum", None):
                loss["reduction"] = "sum_over_batch_size"
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


def add_own_losses(made: dict[str, Any], draw: random.Random) -> None:
    """Replaces losses of numbers, and adds metrics, by functions that a person has written.

    Not beside sample weights: Keras multiplies a loss of the whole batch by each of them.
    """
    compiled, double = made["compile"], made["dtype"] in ("float64", "float32")
    if made["outputs"]["task"] != "regression" or made["data"].get("weights") or not double:
        return
    if "loss" not in compiled or draw.random() < 0.2:
        return
    given = compiled["loss"]
    one = draw.choice(OWN_LOSSES)
    if isinstance(given, list):
        compiled["loss"] = [one, *given[1:]]
    elif set(given) == {"p", "q"} if isinstance(given, dict) else False:
        compiled["loss"] = {**given, "p": one}
    else:
        compiled["loss"] = one
        if draw.random() < 0.5:
            compiled["metrics"] = [draw.choice(OWN_LOSSES), call("OwnAverage")]


OWN_LOSSES = [
    {"code": name}
    for name in (
        *("mean_of_squares", "sum_by_number", "sum_of_parts", "sum_of_squares"),
        *("mean_of_multiples", "mean_and_sum", "squares"),
    )
]


def _takes_values(made: dict[str, Any]) -> bool:
    """Whether a loss may be one value an example: Keras adds no others to it, nor logs it so."""
    adds = any(
        "kernel_regularizer" in each or each["call"].endswith(("Regularization", "AddsMeanLoss"))
        for each in made["model"]["body"]
    )
    return not adds and made["model"]["style"] not in OWN_METHODS


def _by_name(values: list[Any], as_dict: bool) -> Any:
    return dict(zip("pq", values, strict=True)) if as_dict else values


def _loss(task: str, draw: random.Random, takes_values: bool) -> Any:
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
        ["sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", None],
        [3, 2, 1, 2, int(takes_values)],
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
