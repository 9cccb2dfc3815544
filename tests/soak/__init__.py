"""A soak test: real trainings, hit by random faults, that must end as if nothing had happened.

`python -m tests.soak --help` has the command; `docs/reliability.md` has what is checked.
"""
