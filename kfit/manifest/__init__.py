"""`kfit manifest`: writes job files for Kubernetes, Kubeflow and Slurm.

`job` describes a training job independently of the system; `kubernetes`, `tfjob` and `slurm` write
it as a job file. They raise a CommandError for values that their system would not accept.
"""
