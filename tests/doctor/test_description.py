"""What a process was started with, as TF_CONFIG, Slurm and others have it."""

from collections.abc import Callable

import pytest

from kfit.cluster.cluster import Cluster, Task
from kfit.doctor.description import check_description
from kfit.doctor.findings import Finding

Texts = Callable[[list[Finding]], str]
TWO = Cluster({"worker": ("host-a:1", "host-b:2")}, Task("worker", 0))
SLURM_STEP = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NODELIST": "n",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ""),
        ({"TF_CONFIG": TWO.to_tf_config()}, ""),
        ({"TF_CONFIG": "{'cluster'"}, "is not JSON"),
        ({"KFIT_WORKERS": "a:1,b", "KFIT_INDEX": "0"}, "has no port"),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}, "batch script of a Slurm job of 4 tasks"),
        ({"SLURM_NTASKS": "4", "KFIT_CLUSTER": "none"}, ""),
        ({"JOB_COMPLETION_INDEX": "1"}, "KFIT_WORKERS is not set"),
        (SLURM_STEP, ""),
        (
            {**SLURM_STEP, "TF_CONFIG": TWO.to_tf_config()},
            "TF_CONFIG and Slurm describe two clusters that differ; kfit takes TF_CONFIG",
        ),
        ({**SLURM_STEP, "TF_CONFIG": TWO.to_tf_config(), "KFIT_CLUSTER": "slurm"}, ""),
        (
            {"KFIT_WORKERS": "localhost:1,host-b:2", "KFIT_INDEX": "0"},
            "localhost:1 means the host itself on every host",
        ),
    ],
)
def test_the_description(environ: dict[str, str], found: str, texts: Texts) -> None:
    _, findings = check_description(environ)
    assert found in texts(findings)
    assert bool(found) == any(not each.ok for each in findings)


def test_a_fix_says_what_to_do() -> None:
    for environ, fix in (
        ({"TF_CONFIG": "{'cluster'"}, "write it like {"),
        ({"KFIT_WORKERS": "a:x", "KFIT_INDEX": "0"}, "give a number from 1 to 65535"),
        ({"KFIT_WORKER": "a:1", "KFIT_INDEX": "0"}, "did you mean `KFIT_WORKERS` by `KFIT_WORKER`"),
    ):
        _, [finding] = check_description(environ)
        assert finding.fix.startswith(fix)
