"""Runs a model's training, evaluation and prediction steps on all replicas, many per graph call."""
