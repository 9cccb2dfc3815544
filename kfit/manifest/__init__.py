"""`kfit manifest`: job files for the systems that run clusters.

`job` is what is wanted, the same for all; `kubernetes`, `tfjob` and `slurm` write it down, and
refuse what their system would not take.
"""
