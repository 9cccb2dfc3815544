"""The tasks of a cluster, their addresses, and how the tasks connect to each other at the start.

The package does not import TensorFlow.
"""
