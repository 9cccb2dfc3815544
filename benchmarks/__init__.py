"""Benchmarks of kfit and other libraries; run `python -m benchmarks.NAME` in the repository."""
