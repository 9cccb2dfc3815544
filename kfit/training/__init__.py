"""The loops of `fit`, `evaluate` and `predict`, and the state of a `fit`, which callbacks save."""
