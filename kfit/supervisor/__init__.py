"""Start, watch and stop the tasks of a cluster."""
