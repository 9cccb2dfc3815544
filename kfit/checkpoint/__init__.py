"""Snapshots: training state in memory, and its way to disk and back.

`state` says what training state is, `store` keeps snapshots in a directory, `writer` writes them in
the background, and `files` is the only door to the file system.
"""
