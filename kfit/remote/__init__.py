"""`kfit.launch`: runs a Python function on the workers of a cluster, on this host or on Ray."""
