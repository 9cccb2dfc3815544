"""One step of a model on all replicas, and many of them in one call of a graph."""
