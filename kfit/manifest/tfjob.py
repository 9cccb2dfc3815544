"""Writes a training job as a TFJob for Kubeflow's training operator, which sets TF_CONFIG in pods.

The TFJob has the restartPolicy ExitCode. With this policy the operator restarts a pod if its exit
code is 128 or more, which means that the pod was killed, preempted, or told to stop. Other failures
are handled in the pod by `kfit run`, before the operator notices them.
"""

from __future__ import annotations

from typing import Any

from kfit.manifest.job import Job
from kfit.manifest.kubernetes import (
    PodOptions,
    check_job,
    metadata,
    network_policy,
    pod_spec,
    secret_document,
)

# The operator requires these names: it finds the container and its port by them.
_CONTAINER, _PORT = "tensorflow", "tfjob-port"
# The operator marks the pods of a TFJob by this label.
_JOB_LABEL = "training.kubeflow.org/job-name"


def tfjob_documents(
    job: Job,
    options: PodOptions,
    *,
    parameter_servers: int = 0,
    chief: bool = False,
    evaluator: bool,
) -> list[dict[str, Any]]:
    """Returns a training job as a TFJob: an object of the API of Kubeflow's training operator (v1).

    Args:
        job: The description of the training job. A separate chief is not among `job.workers`.
        options: The options of the job's pods.
        parameter_servers: The number of ps tasks. If it is not 0, training is asynchronous: a
            separate chief, which is added in any case, runs the program as the coordinator, and the
            workers are servers, like the ps tasks.
        chief: Whether to add a separate chief. If not, and without ps tasks, worker 0 is the chief.
        evaluator: Whether to add an evaluator, a task that evaluates the training's checkpoints.

    Returns:
        A NetworkPolicy, by which no other pod reaches the tasks; a Secret, by which the tasks
        recognize each other's messages; and the TFJob.

    Raises:
        CommandError: If Kubernetes would not accept a value of the job or its pods.
    """
    check_job(job, options, longest_suffix=f"-evaluator-{job.workers + parameter_servers}")
    replicas = {}
    if chief or parameter_servers:
        replicas["Chief"] = _replica(job, options, 1)
    replicas["Worker"] = _replica(job, options, job.workers)
    if parameter_servers:
        replicas["PS"] = _replica(job, options, parameter_servers)
    if evaluator:
        replicas["Evaluator"] = _replica(job, options, 1)
    # "Running" ends all pods when training has ended. "None" ends none, which an evaluator needs:
    # it must still evaluate the last checkpoints. Servers end by themselves after the chief.
    clean = "None" if evaluator else "Running"
    spec: dict[str, Any] = {
        "runPolicy": {"cleanPodPolicy": clean, "backoffLimit": job.max_restarts},
        "tfReplicaSpecs": replicas,
    }
    if not (chief or parameter_servers):
        # By default the job succeeds with worker 0, and the operator would end the other workers.
        spec["successPolicy"] = "AllWorkers"
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(job, options),
        "spec": spec,
    }
    policy = network_policy(job, options, _JOB_LABEL)
    return [policy, secret_document(job, options), manifest]


def _replica(job: Job, options: PodOptions, count: int) -> dict[str, Any]:
    pod = pod_spec(job, options, _CONTAINER, {}, has_peers=True)
    (container,) = pod["containers"]
    container["ports"] = [{"name": _PORT, "containerPort": options.port}]
    # Istio's proxy would intercept the tasks' connections, and keep pods running after their end.
    labels = {"annotations": {"sidecar.istio.io/inject": "false"}}
    return {
        "replicas": count,
        "restartPolicy": "ExitCode",
        "template": {"metadata": labels, "spec": pod},
    }
