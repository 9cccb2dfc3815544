"""Tells the user's files: which kfit may replace or delete, and which modules are the program's."""
