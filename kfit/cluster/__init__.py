"""The tasks of a cluster, their addresses, and how tasks meet. It does not import TensorFlow."""
