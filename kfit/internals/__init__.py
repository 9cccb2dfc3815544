"""The only code that touches private names of Keras and TensorFlow, or patches their functions.

Each name has one small typed function, with the reason why no public name can be used instead
(`kfit.internals.private`). The rest of kfit calls these functions; ruff refuses private names
everywhere else.
"""
