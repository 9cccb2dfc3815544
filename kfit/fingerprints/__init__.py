"""What a training is made of, in few words: to tell whether a snapshot is of the same one.

Data, model, loss, optimizer and metrics are each described by plain values, equal in every process
that runs the same program: no address, no hash of Python's, no name that Keras has counted up. No
batch is drawn for it.
"""

from kfit.fingerprints.comparison import SECTIONS, Difference, Section, compare
from kfit.fingerprints.of_training import fingerprint_of, of_optimizers

__all__ = ["SECTIONS", "Difference", "Section", "compare", "fingerprint_of", "of_optimizers"]
