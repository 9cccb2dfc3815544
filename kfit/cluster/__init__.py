"""The tasks of a cluster, their addresses, and how the tasks connect to each other at the start.

A task is one process of a cluster. This package does not import TensorFlow.
"""
