"""Which tasks a cluster has, where they are, and how they meet; it needs no TensorFlow."""
