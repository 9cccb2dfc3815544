"""Draws an optimizer."""

import random
from typing import Any

from tests.programs.generated.expression import Call, call


def optimizer(made: dict[str, Any], draw: random.Random) -> Call:
    """An optimizer, clipped, averaged, accumulating or scaled as people have them."""
    if made["dtype"] == "float64" and draw.random() < 0.06:
        return _two_optimizers(draw)
    exact = made["dtype"] == "float64"
    kinds: list[Call] = [
        call("SGD"),
        call("SGD", momentum=0.9),
        call("SGD", momentum=0.5, nesterov=True),
    ]
    if exact:
        kinds += [call("Adam"), call("Adam", amsgrad=True), call("RMSprop")]
        # Keras takes the rows of an embedding that occur twice for others there.
        kinds[-1]["centered"] = made["inputs"]["kind"] != "tokens"
        kinds += [call("Adagrad"), call("AdamW"), call("Nadam"), call("Adadelta"), call("Ftrl")]
    made_ = dict(draw.choice(kinds))
    made_["call"] = f"keras.optimizers.{made_['call']}"
    rate = draw.choice([0.1, 0.02])
    made_["learning_rate"] = rate if draw.random() < 0.75 else _schedule(rate, draw)
    if draw.random() < 0.3:
        clips = [("clipnorm", 0.3), ("clipvalue", 0.1)]
        clip = draw.choice(
            clips if made["model"].get("lora") else [*clips, ("global_clipnorm", 0.5)]
        )
        made_[clip[0]] = clip[1]
    if draw.random() < 0.2:
        made_["use_ema"] = True
        made_["ema_momentum"] = 0.8
        if draw.random() < 0.5:
            made_["ema_overwrite_frequency"] = 3
    if draw.random() < 0.2:
        made_["gradient_accumulation_steps"] = draw.choice([2, 3])
    if draw.random() < 0.15:
        made_["weight_decay"] = 0.01
    scaled = made["dtype"] == "mixed_float16" or draw.random() < 0.08
    if not scaled or "gradient_accumulation_steps" in made_:
        return made_
    return call(
        "keras.optimizers.LossScaleOptimizer",
        inner_optimizer=made_,
        initial_scale=64.0,
        dynamic_growth_steps=3,
    )


def _two_optimizers(draw: random.Random) -> Call:
    """One for kernels, another one for the rest."""
    kernels = call("keras.optimizers.Adam", learning_rate=draw.choice([0.02, 0.1]))
    rest = call("keras.optimizers.SGD", learning_rate=0.1, momentum=draw.choice([0.0, 0.9]))
    chosen = call("ByName", kernels=kernels, rest=rest)
    return call("keras.optimizers.MultiOptimizer", optimizer_map=chosen)


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
