"""Starts, watches, restarts and stops the processes of a training that runs as several tasks."""
