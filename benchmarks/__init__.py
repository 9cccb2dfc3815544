"""Measurements of kfit against its peers; `python -m benchmarks.NAME` from the repository."""
