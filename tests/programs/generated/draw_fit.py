"""Draws how it is trained: the data, the calls of `fit`, callbacks, and what comes around them."""

import random
from typing import Any

from tests.programs.generated.expression import call

KINDS = ["arrays", "dataset", "py_dataset", "generator", "loader"]


def add(made: dict[str, Any], draw: random.Random, brief: bool = False) -> None:
    """Adds data and actions to a program."""
    style, outputs = made["model"]["style"], made["outputs"]
    data: dict[str, Any] = {
        "kind": draw.choices(KINDS, [5, 4, 2, 1.5, 1.5])[0],
        "examples": draw.choice([13, 16, 23] if brief else [16, 23, 29, 33, 37]),
        "batch_size": draw.choice([6, 7, 8] if brief else [4, 5, 6, 8, 11]),
    }
    if made["model"].get("stateful"):
        data["examples"] = data["batch_size"] * draw.choice([2, 3])
    plain = style in ("own_trackers", "adversaries") or outputs.get("sequences")
    if not plain and draw.random() < 0.35:
        data["weights"] = "one"
        if outputs.get("count") == 2:
            data["weights"] = "each"
    made["data"] = data
    if data["kind"] == "dataset":
        _dataset(data, draw)
    if data["kind"] == "py_dataset" and draw.random() < 0.5:
        data["shuffles"] = draw.choice(["own", "global", "roll"])
    if data["kind"] == "loader":
        data["shuffles"] = draw.random() < 0.5
        data["says_its_state"] = draw.random() < 0.5
    if style not in ("own_trackers", "adversaries") and draw.random() < 0.15:
        made["door"] = "function"
    made["watch"] = draw.random() < 0.4
    made["actions"] = actions = []
    if draw.random() < (0.1 if brief else 0.25):
        actions.append(_around(made, draw))
    actions.append(_fit(made, draw, len(actions), brief))
    for _ in range(draw.choice([0, 0, 1] if brief else [0, 1, 1, 2])):
        actions.append(_around(made, draw))
    if draw.random() < (0.15 if brief else 0.3):
        actions.append(_fit(made, draw, len(actions), brief))
        if draw.random() < 0.5:
            actions.append({"do": "evaluate"})


def _dataset(data: dict[str, Any], draw: random.Random) -> None:
    if draw.random() < 0.3:
        data["shuffle"] = draw.choice([7, 50])
    if draw.random() < 0.25:
        data["drop_remainder"] = True
    if draw.random() < 0.25:
        data["unknown"] = True
    if draw.random() < 0.3:
        data["endless"] = True


def steps_of(data: dict[str, Any]) -> int:
    """Steps of one pass over the data."""
    whole, rest = divmod(data["examples"], data["batch_size"])
    return int(whole + (rest > 0 and not data.get("drop_remainder")))


def _fit(made: dict[str, Any], draw: random.Random, number: int, brief: bool) -> dict[str, Any]:
    data = made["data"]
    fit: dict[str, Any] = {"do": "fit", "epochs": draw.choice([1, 2, 2] if brief else [1, 2, 2, 3])}
    steps = steps_of(data)
    if data["kind"] == "generator" or data.get("endless"):
        fit["steps_per_epoch"] = draw.choice([max(1, steps - 1), steps, 4])
    elif data["kind"] != "loader" and draw.random() < 0.15:
        fit["steps_per_epoch"] = draw.choice([max(1, steps - 1), max(1, steps // fit["epochs"])])
    if draw.random() < 0.15:
        fit["initial_epoch"] = 1
        fit["epochs"] += 1
    if data["kind"] == "arrays" and draw.random() < 0.25:
        fit["shuffle"] = True
    if draw.random() < 0.5:
        stateful = made["model"].get("stateful")
        if data["kind"] == "arrays" and not stateful and draw.random() < 0.3:
            fit["validation_split"] = 0.25
        else:
            fit["validation_data"] = {"code": "held_out"}
            if draw.random() < 0.3:
                fit["validation_steps"] = 1
        if draw.random() < 0.25:
            fit["validation_freq"] = 2
        if not stateful and draw.random() < 0.3:
            fit["validation_batch_size"] = 3
    task, count = made["outputs"]["task"], made["outputs"].get("count", 1)
    labels = task in ("binary", "sparse") and count == 1 and not made["outputs"].get("sequences")
    plain = made["model"]["style"] not in ("own_trackers", "adversaries")
    # Keras takes no class weights for generators and loaders, nor beside sample weights; and it
    # reads ahead of them, into the next pass of an endless data set, as far as it comes.
    weighable = data["kind"] not in ("generator", "loader")
    weighable &= not data.get("weights") and not data.get("endless")
    if labels and plain and weighable and draw.random() < 0.25:
        fit["class_weight"] = {"code": "{0: 1.0, 1: 2.0, 2: 0.5}"}
        if task == "binary":
            fit["class_weight"] = {"code": "{0: 1.0, 1: 2.5}"}
    fit["callbacks"] = _callbacks(made, fit, draw, number)
    return fit


def _callbacks(made: dict[str, Any], fit: Any, draw: random.Random, number: int) -> list[Any]:
    validated = ("validation_data" in fit or "validation_split" in fit) and (
        "validation_freq" not in fit
    )
    monitor = "val_loss" if validated and draw.random() < 0.7 else "loss"
    adversaries = made["model"]["style"] == "adversaries"
    changes_rate = not adversaries and isinstance(_rate(made), float)
    keras = "keras.callbacks."
    kinds = [
        call(
            keras + "EarlyStopping",
            monitor=monitor,
            patience=draw.choice([0, 1]),
            restore_best_weights=draw.random() < 0.5,
        ),
        call(keras + "CSVLogger", filename={"code": f"os.path.join(folder, 'log{number}.csv')"}),
        call(keras + "TerminateOnNaN"),
        call(keras + "LambdaCallback", on_epoch_end={"code": "lambda epoch, logs: None"}),
        call("StopsAt", epoch=draw.choice([0, 1])),
        call("ShrinksWeights"),
        call("StopsAtBatch", epoch=draw.choice([0, 1]), batch=draw.choice([0, 1, 2])),
        call(
            keras + "ModelCheckpoint",
            filepath={
                "code": f"os.path.join(folder, 'checkpoints{number}', '{{epoch}}.weights.h5')"
            },
            save_weights_only=True,
            save_best_only=draw.random() < 0.5,
            monitor=monitor,
        ),
    ]
    # kfit builds optimizers before `on_train_begin`, Keras without a strategy after it: with slots
    # for what is frozen there. Once a step was traced, Keras does not look any more.
    if number == 0 and made["model"].get("body") and not _has_slots(made):
        index = draw.randrange(len(made["model"]["body"]))
        kinds.append(call("FreezesAtBegin", layer={"code": f"body[{index}]"}))
    if changes_rate:
        kinds += [
            call(
                keras + "ReduceLROnPlateau",
                monitor=monitor,
                patience=1,
                factor=0.5,
                min_delta=draw.choice([0.0, 0.05]),
            ),
            call(
                keras + "LearningRateScheduler",
                schedule={"code": "lambda epoch, rate: rate * 0.8"},
            ),
            call("HalvesRate", every=draw.choice([2, 3, 5])),
            call("RaisesRate"),
        ]
    if _option(made, "use_ema") and "ema_overwrite_frequency" not in made["compile"]["optimizer"]:
        kinds.append(call(keras + "SwapEMAWeights", swap_on_epoch=draw.random() < 0.5))
    return draw.sample(kinds, draw.choice([0, 0, 1, 1, 2, 3]))


def _rate(made: dict[str, Any]) -> Any:
    optimizer = made["compile"].get("optimizer", {})
    return optimizer.get("inner_optimizer", optimizer).get("learning_rate")


def _has_slots(made: dict[str, Any]) -> bool:
    """Whether the optimizer keeps something for each variable."""
    optimizer = made["compile"].get("optimizer", {})
    slots = {"momentum", "use_ema", "gradient_accumulation_steps"}
    return optimizer.get("call") != "keras.optimizers.SGD" or bool(slots & optimizer.keys())


def _option(made: dict[str, Any], name: str) -> Any:
    return made["compile"].get("optimizer", {}).get(name)


def _around(made: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """What comes before or after a `fit`."""
    style = made["model"]["style"]
    kinds = ["evaluate", "predict", "evaluate", "predict", "train_on_batch", "set_weights"]
    kinds += ["load_weights"]
    writable = not str(made["compile"].get("optimizer", {})).count("ByName")
    if style in ("sequential", "functional") and made.get("door") != "function" and writable:
        kinds += ["save_load"]
    if style not in ("own_trackers", "adversaries"):
        kinds += ["compile"]
        if made["model"]["body"]:
            kinds += ["freeze"]
    if style != "adversaries" and isinstance(_rate(made), float):
        kinds += ["set_rate"]
    do = draw.choice(kinds)
    if do == "compile":
        rate = draw.choice([0.05, 0.2])
        optimizer = call("keras.optimizers.SGD", learning_rate=rate)
        return {"do": do, **made["compile"], "optimizer": optimizer}
    if do == "freeze":
        index = draw.randrange(len(made["model"]["body"]))
        return {"do": do, "layer": index, "trainable": draw.random() < 0.5}
    if do == "set_rate":
        return {"do": do, "rate": 0.03}
    # In a list nothing tells the losses of outputs, which Keras takes the mean of batches of.
    if do == "evaluate" and made["outputs"].get("count", 1) == 1 and draw.random() < 0.3:
        return {"do": do, "return_dict": False}
    return {"do": do}
