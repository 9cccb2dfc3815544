"""`kfit manifest`: writes job files for Kubernetes, Kubeflow and Slurm.

A job file tells such a system which containers or processes to start for a training. `job`
describes a training job independently of the system. `kubernetes`, `tfjob` and `slurm` write this
description as a job file, and raise a CommandError for values that the system would not accept.
"""
