"""A `fit`, `evaluate` or `predict` under way: its loops, its state, and when that may be saved."""
