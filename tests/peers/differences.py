"""Where kfit differs from Keras in Keras' own tests, test by test, with the reason."""

import re

DIFFERENCES: list[tuple[str, int, str]] = [
    (
        "test_loss_scaling_prevents_underflow",
        1,
        "its model has an attribute `layers`, which a keras.Model reserves and a bare trainer not",
    ),
    (
        "test_swap_ema_weights_with_tf_distribute$",
        1,
        "it trains in the scope of a strategy of its own, which is refused by name",
    ),
    (
        "test_retracing$",
        2,
        "it counts calls while a step is traced, and each replica makes its own",
    ),
]
"""Pattern of a test's id, the least number of replicas on which it fails, and why."""


def reason_of(nodeid: str, replicas: int) -> str | None:
    """Why a test is expected to fail, or None if it is not."""
    for pattern, least, reason in DIFFERENCES:
        if replicas >= least and re.search(pattern, nodeid):
            return reason
    return None
