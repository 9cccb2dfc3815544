"""Fingerprints of a training, to find out whether a snapshot is of the same training.

A fingerprint describes data, model, loss, optimizer and metrics by plain values. These values are
equal in every process that runs the same program, so there are no addresses, results of `hash()`,
or numbers that Keras appends to names among them. No batch is drawn to compute a fingerprint.
"""

from kfit.fingerprints.comparison import (
    SECTIONS,
    Difference,
    Section,
    compare,
    differing_attributes,
)
from kfit.fingerprints.of_training import (
    fingerprint_of,
    names_of_layers,
    of_compiled,
    of_model,
    of_optimizers,
)

__all__ = [
    "SECTIONS",
    "Difference",
    "Section",
    "compare",
    "differing_attributes",
    "fingerprint_of",
    "names_of_layers",
    "of_compiled",
    "of_model",
    "of_optimizers",
]
