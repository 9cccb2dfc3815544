"""What the graph of a replica's step says about the replica's examples."""
