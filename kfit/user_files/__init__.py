"""Protects the user's files: decides which files kfit may replace or delete."""
