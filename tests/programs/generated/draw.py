"""Draws a program: everything that Keras offers, as people put it together."""

import random
from typing import Any

from tests.programs.generated import draw_fit, draw_model


def program(seed: str, brief: bool = False) -> dict[str, Any]:
    """The program of a seed: always the same for the same text.

    Args:
        seed: Any text.
        brief: Whether it is to take little time: fewer layers and actions, and short epochs.
    """
    draw = random.Random(seed)
    made: dict[str, Any] = {"seed": draw.randrange(10_000)}
    made["dtype"] = draw.choices(
        ["float64", "float32", "mixed_bfloat16", "mixed_float16"], [16, 3, 0.5, 0.5]
    )[0]
    draw_model.add(made, draw, brief)
    draw_fit.add(made, draw, brief)
    draw_model.add_own_losses(made, draw)
    return made


def placed(seed: str, brief: bool = False) -> dict[str, Any]:
    """The program of a seed, how many replicas it runs on, and whether it is killed."""
    draw = random.Random(f"{seed}:place")
    return {
        "program": program(seed, brief),
        "replicas": draw.choice([1, 2, 2, 2, 3] if brief else [1, 2, 2, 3]),
        "workers": 0,
        "killed": draw.random() < (1 / 4 if brief else 1 / 3),
    }


def mixed(seed: str, number: int) -> dict[str, Any]:
    """One of many programs, of which a third are run on workers and a third are killed.

    Of nine in a row three are on workers, three are killed, and one is both; half are brief.
    """
    made = placed(f"{seed}:{number}", brief=number % 2 == 1)
    on_workers, killed = number % 3 == 0, number % 9 in (0, 1, 2)
    workers = random.Random(f"{seed}:{number}:workers").choice([2, 2, 3]) if on_workers else 0
    return {**made, "workers": workers, "killed": killed}
