"""A training, evaluation or prediction step on all replicas, and graph calls of many steps."""
