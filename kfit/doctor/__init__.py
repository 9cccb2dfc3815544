"""`kfit doctor`: finds what would make training hang or fail, before training is started.

Each module checks one subject and returns findings; `examination` calls all checks in order. Tasks
that run `kfit doctor` at the same time exchange their reports (`peer_reports.py`), since many
problems of a cluster are differences between two tasks.
"""
