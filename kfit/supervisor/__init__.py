"""Starts, watches, restarts and stops the tasks of a cluster."""
