"""A TFJob for Kubeflow's training operator, which sets TF_CONFIG in every pod.

With restartPolicy ExitCode the operator starts a pod again whose exit code is 128 or more: killed,
preempted, or told to stop. Other failures are handled in the pod, by `kfit run`, before they reach
the operator.
"""

from __future__ import annotations

from typing import Any

from kfit.manifest.job import Job
from kfit.manifest.kubernetes import PodOptions, check_job, metadata, pod_spec

# Both names are the operator's: it looks for the container and its port by them.
_CONTAINER, _PORT = "tensorflow", "tfjob-port"


def tfjob_documents(
    job: Job,
    options: PodOptions,
    *,
    parameter_servers: int = 0,
    chief: bool = False,
    evaluator: bool,
) -> list[dict[str, Any]]:
    """Returns the TFJob, as the API of Kubeflow's training operator (v1) has it.

    Args:
        job: The job; its workers do not count the chief.
        options: Where it runs.
        parameter_servers: How many ps tasks serve variables; with some, a chief trains and the
            workers serve too: what `kfit run` does there with the same program.
        chief: Whether the chief is a task of its own, rather than worker 0.
        evaluator: Whether a task evaluates beside the training.

    Raises:
        CommandError: If a name or a quantity is none that Kubernetes takes.
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
    # Training ends before its evaluation does, so an evaluator must not be ended with it; servers
    # end without being told to when the chief has gone.
    clean = "None" if evaluator else "Running"
    spec: dict[str, Any] = {
        "runPolicy": {"cleanPodPolicy": clean, "backoffLimit": job.max_restarts},
        "tfReplicaSpecs": replicas,
    }
    if not (chief or parameter_servers):
        # The default counts worker 0 only, and would end the others while they finish.
        spec["successPolicy"] = "AllWorkers"
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(job, options),
        "spec": spec,
    }
    return [manifest]


def _replica(job: Job, options: PodOptions, count: int) -> dict[str, Any]:
    pod = pod_spec(job, options, _CONTAINER, {})
    (container,) = pod["containers"]
    container["ports"] = [{"name": _PORT, "containerPort": options.port}]
    # Istio's proxy would come between the tasks, and keep the pods running after their end.
    labels = {"annotations": {"sidecar.istio.io/inject": "false"}}
    return {
        "replicas": count,
        "restartPolicy": "ExitCode",
        "template": {"metadata": labels, "spec": pod},
    }
