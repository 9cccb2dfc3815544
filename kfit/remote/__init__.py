"""`kfit.launch`: calls a Python function in new worker processes, on this host or on Ray."""
