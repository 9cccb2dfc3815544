"""`kfit doctor`: finds what would make training hang or fail, before training is started.

Each module checks one subject and returns findings (results of checks). `examination` calls all
checks in order. Many problems with a cluster are differences between two of its tasks (processes).
So tasks that run `kfit doctor` at the same time send each other reports about themselves
(`peer_reports.py`), and compare them.
"""
