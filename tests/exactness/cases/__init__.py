"""Programs that must give on several replicas what they give on one device, a module a topic.

Each case makes a compiled model and its data. `tests/exactness/test_cases.py` has each trained in
one size on some number of replicas, `tests/exactness/test_matrix.py` in all sizes on every
combination of devices.
"""

from tests.exactness.cases import (
    added_losses,
    layers,
    losses,
    metrics,
    optimizers,
    own_steps,
    precision,
    ways_to_run,
)
from tests.exactness.cases.registry import cases_of

BATCH_SIZE = {7: 5, 64: 16, 101: 20, 128: 50}
"""Examples -> global batch size: the last batch has 2, 16, 1 and 28 examples."""

# In this order `test_cases.py` has them take turns with the sizes and the numbers of replicas.
CASES = cases_of(losses, added_losses, optimizers, layers, metrics, own_steps, ways_to_run)

ROUGH = cases_of(precision)
"""Cases that are equal only as far as their types allow."""
