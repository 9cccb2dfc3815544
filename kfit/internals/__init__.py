"""The only code that touches private names of Keras and TensorFlow, or replaces their functions.

Each name has one small typed function, which says why nothing public serves
(`kfit.internals.private`). The rest of kfit calls these functions; ruff refuses private names
everywhere else.
"""
