"""The loops of `fit`, `evaluate` and `predict`, the state of a `fit`, and its save points."""
