"""Callbacks for training on any strategy; installed as ``kfit.callbacks``.

One callback a file. They are plain Keras callbacks: they reach training only through the trainer
that is handed to them, and those with memory carry it in ``state_dict`` and ``load_state_dict``.
"""

__all__: list[str] = []
