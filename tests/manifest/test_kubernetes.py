"""What is written for Kubernetes and Kubeflow, held against what their APIs take.

The schemas below say, in words of ours, the parts of two published ones that kfit uses: Kubernetes'
API reference (batch/v1 Job, v1 Service and PodTemplateSpec, networking.k8s.io/v1 NetworkPolicy,
1.26 to 1.34) and the
CustomResourceDefinition of Kubeflow's training operator v1 (kubeflow.org/v1 TFJob). They are
stricter: a field that is not named here is an error.
"""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kfit.cluster.cluster import Task
from kfit.cluster.resolvers import current_cluster
from kfit.commands.main import main

IMAGE = ["--image", "registry.example/train:1"]
EVERYTHING = [
    *("--cpus", "2.5", "--memory", "8Gi", "--gpus", "2", "--namespace", "team-a"),
    *("--backup-claim", "snapshots", "--backup-dir", "/backup", "--env", "NAME=a b"),
]


def fields(required: str, optional: str = "", **types: Any) -> dict[str, Any]:
    """An object with these fields and no others; a text where no type is given."""
    names = [*required.split(), *optional.split()]
    return {
        "type": "object",
        "properties": {name: types.get(name, {"type": "string"}) for name in names},
        "required": required.split(),
        "additionalProperties": False,
    }


def listed(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


def one_of(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


WHOLE = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
TRUTH = {"type": "boolean"}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|[KMGT]i|[kMGT])?$"}
NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
METADATA = fields("name", "namespace", name=NAME, namespace=NAME)
CONTAINER = fields(
    "name image",
    "command env ports resources volumeMounts",
    command=listed({"type": "string"}),
    env=listed(
        fields(
            "name",
            "value valueFrom",
            valueFrom=fields("secretKeyRef", secretKeyRef=fields("name key", name=NAME)),
        )
    ),
    ports=listed(fields("containerPort", "name", containerPort=PORT)),
    resources=fields("limits", limits={"type": "object", "additionalProperties": QUANTITY}),
    volumeMounts=listed(fields("name mountPath")),
)
VOLUME = fields(
    "name",
    "persistentVolumeClaim emptyDir",
    persistentVolumeClaim=fields("claimName", claimName=NAME),
    emptyDir=fields("medium", medium=one_of("Memory")),
)
POD = fields(
    "containers",
    "enableServiceLinks restartPolicy subdomain terminationGracePeriodSeconds volumes",
    containers=listed(CONTAINER),
    enableServiceLinks=TRUTH,
    restartPolicy=one_of("Never", "OnFailure"),
    subdomain=NAME,
    terminationGracePeriodSeconds=WHOLE,
    volumes=listed(VOLUME),
)
RULE = fields(
    "action",
    "onExitCodes onPodConditions",
    action=one_of("FailJob", "FailIndex", "Ignore", "Count"),
    onExitCodes=fields(
        "operator values",
        operator=one_of("In", "NotIn"),
        values={"type": "array", "items": WHOLE, "minItems": 1, "uniqueItems": True},
    ),
    onPodConditions=listed(fields("type status", status=one_of("True", "False", "Unknown"))),
)
JOB = fields(
    "apiVersion kind metadata spec",
    apiVersion=one_of("batch/v1"),
    kind=one_of("Job"),
    metadata=METADATA,
    spec=fields(
        "template",
        "backoffLimit completionMode completions parallelism podFailurePolicy",
        backoffLimit=WHOLE,
        completionMode=one_of("Indexed", "NonIndexed"),
        completions=WHOLE,
        parallelism=WHOLE,
        podFailurePolicy=fields("rules", rules={**listed(RULE), "maxItems": 20}),
        template=fields("spec", "metadata", spec=POD, metadata=fields("labels", labels=LABELS)),
    ),
)
SERVICE = fields(
    "apiVersion kind metadata spec",
    apiVersion=one_of("v1"),
    kind=one_of("Service"),
    metadata=METADATA,
    spec=fields(
        "",
        "clusterIP ports publishNotReadyAddresses selector",
        ports=listed(fields("port", "name", port=PORT)),
        publishNotReadyAddresses=TRUTH,
        selector=LABELS,
    ),
)
REPLICAS = fields(
    "template",
    "replicas restartPolicy",
    replicas=WHOLE,
    restartPolicy=one_of("Always", "OnFailure", "Never", "ExitCode"),
    template=fields(
        "spec", "metadata", spec=POD, metadata=fields("annotations", annotations=LABELS)
    ),
)
KINDS = ("Chief", "Worker", "PS", "Evaluator")
TFJOB = fields(
    "apiVersion kind metadata spec",
    apiVersion=one_of("kubeflow.org/v1"),
    kind=one_of("TFJob"),
    metadata=METADATA,
    spec=fields(
        "tfReplicaSpecs",
        "runPolicy successPolicy",
        runPolicy=fields(
            "",
            "backoffLimit cleanPodPolicy",
            backoffLimit=WHOLE,
            cleanPodPolicy=one_of("All", "Running", "None"),
        ),
        successPolicy=one_of("", "AllWorkers"),
        tfReplicaSpecs=fields("", " ".join(KINDS), **dict.fromkeys(KINDS, REPLICAS)),
    ),
)
SECRET = fields(
    "apiVersion kind metadata stringData",
    apiVersion=one_of("v1"),
    kind=one_of("Secret"),
    metadata=METADATA,
    stringData=LABELS,
)
PODS = fields("matchLabels", matchLabels={**LABELS, "minProperties": 1})
POLICY = fields(
    "apiVersion kind metadata spec",
    apiVersion=one_of("networking.k8s.io/v1"),
    kind=one_of("NetworkPolicy"),
    metadata=METADATA,
    spec=fields(
        "podSelector policyTypes ingress",
        podSelector=PODS,
        policyTypes=listed(one_of("Ingress", "Egress")),
        ingress=listed(fields("from", **{"from": listed(fields("podSelector", podSelector=PODS))})),
    ),
)
SCHEMAS = {
    "Job": JOB,
    "NetworkPolicy": POLICY,
    "Secret": SECRET,
    "Service": SERVICE,
    "TFJob": TFJOB,
}


def kfit(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["manifest", "kubernetes", *arguments])
    return code, out.getvalue(), err.getvalue()


def written(*arguments: str) -> dict[str, Any]:
    """What is written, checked, by kind."""
    code, text, error = kfit(*arguments)
    assert code == 0, error
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        jsonschema.Draft202012Validator(SCHEMAS[document["kind"]]).validate(document)
    return {document["kind"]: document for document in documents}


def expanded(text: str) -> str:
    """A text as the kubelet hands it on: `$$` is one `$`; a reference is left for the test."""
    return re.sub(r"\$\$", "$", text)


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return container


def secret_of(made: dict[str, Any], container: dict[str, Any]) -> str:
    """The secret of the run, as a container gets it from the Secret."""
    (reference,) = [
        each["valueFrom"]["secretKeyRef"]
        for each in container["env"]
        if each["name"] == "KFIT_SECRET"
    ]
    assert reference["name"] == made["Secret"]["metadata"]["name"]
    secret: str = made["Secret"]["stringData"][reference["key"]]
    return secret


def test_each_job_has_a_secret_of_its_own_and_a_single_task_has_none() -> None:
    def made(*options: str) -> dict[str, Any]:
        return written(*IMAGE, *options, "train.py")

    one, two = (made("--workers", "2") for _ in range(2))
    assert one["Secret"]["stringData"] != two["Secret"]["stringData"]
    alone = made()
    assert "Secret" not in alone
    assert "env" not in container_of(alone["Job"]["spec"]["template"])


@pytest.mark.parametrize(
    ("options", "label"),
    [
        # Kubernetes' and the operator's labels of the pods of one job, with the job's name.
        (["--workers", "2"], "job-name"),
        (["--kind", "tfjob", "--ps", "1"], "training.kubeflow.org/job-name"),
    ],
)
def test_the_pods_of_a_job_reach_only_each_other(options: list[str], label: str) -> None:
    made = written(*IMAGE, *options, "--namespace", "team-a", "src/train_it.py")
    policy = made["NetworkPolicy"]
    assert policy["metadata"] == {"name": "train-it", "namespace": "team-a"}
    pods = {"podSelector": {"matchLabels": {label: "train-it"}}}
    assert policy["spec"]["podSelector"] == pods["podSelector"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [pods]}]
    assert "NetworkPolicy" not in written(*IMAGE, "train.py")


def test_the_policy_of_the_documentation_is_the_one_that_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert yaml.safe_load(shown) == written(*IMAGE, "--workers", "2", "train.py")["NetworkPolicy"]


def test_the_schemas_refuse() -> None:
    job = written(*IMAGE, "train.py")["Job"]
    wrong = [
        {**job, "kind": "CronJob"},
        {**job, "spec": {**job["spec"], "workers": 2}},
        {**job, "spec": {**job["spec"], "completions": "2"}},
        {**job, "metadata": {"name": "Train"}},
    ]
    for each in wrong:
        assert not jsonschema.Draft202012Validator(JOB).is_valid(each)


@pytest.mark.parametrize("options", [[], EVERYTHING, ["--doctor"]])
def test_a_job_is_a_cluster_to_each_of_its_pods(options: list[str]) -> None:
    made = written(
        *IMAGE, "--workers", "3", "--port", "4000", *options, "src/train_it.py", "--fast"
    )
    job, service = made["Job"], made["Service"]
    name = job["metadata"]["name"]
    assert name == ("train-it-doctor" if options == ["--doctor"] else "train-it")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["metadata"] == job["metadata"]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3
    container = container_of(job["spec"]["template"])
    environ = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert len(secret_of(made, container)) == 32
    for index in range(3):
        cluster = current_cluster({**environ, "JOB_COMPLETION_INDEX": str(index)})
        assert cluster is not None
        assert cluster.task == Task("worker", index)
        # What Kubernetes calls pod i of an indexed Job, in the domain of its Service.
        assert cluster.address == f"{name}-{index}.{name}:4000"


def test_what_is_asked_for_is_in_it() -> None:
    job = written(*IMAGE, *EVERYTHING, "--grace", "50", "-m", "pkg.train", "-x")["Job"]
    pod = job["spec"]["template"]["spec"]
    container = container_of(job["spec"]["template"])
    assert container["image"] == IMAGE[1]
    assert container["resources"]["limits"] == {
        "cpu": "2.5",
        "memory": "8Gi",
        "nvidia.com/gpu": "2",
    }
    assert {"name": "NAME", "value": "a b"} in container["env"]
    assert {"name": "TF_NUM_INTRAOP_THREADS", "value": "2"} in container["env"]
    assert {"name": "backup", "mountPath": "/backup"} in container["volumeMounts"]
    assert container["command"][:2] == ["kfit", "run"]
    assert container["command"][-5:] == ["--grace", "50", "-m", "pkg.train", "-x"]
    assert pod["terminationGracePeriodSeconds"] > 50
    assert job["metadata"] == {"name": "pkg-train", "namespace": "team-a"}


def test_what_is_no_failure_and_what_is_one_at_once() -> None:
    spec = written(*IMAGE, "train.py")["Job"]["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[0] == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    by_code = {code: rule["action"] for rule in rules[1:] for code in rule["onExitCodes"]["values"]}
    assert by_code == {129: "Ignore", 138: "Ignore", 143: "Ignore", 2: "FailJob"}
    # The policy needs it.
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    "text",
    ["$(HOME)", "$$x", "$", "a'b\"c", "yes", "- #", "{{a}}", "日本\n\t", "--x=*", "${A}", "`id`"],
)
def test_nasty_words_reach_the_program(text: str) -> None:
    job = written(*IMAGE, "--env", f"A={text}", "train.py", text)["Job"]
    container = container_of(job["spec"]["template"])
    assert expanded(container["command"][-1]) == text
    assert expanded(container["env"][0]["value"]) == text
    for word in (container["command"][-1], container["env"][0]["value"]):
        # Every dollar is doubled, so that no reference to a variable is left.
        assert word.replace("$$", "").count("$") == 0


def test_a_doctor_in_place_of_the_program() -> None:
    made = written(*IMAGE, "--workers", "2", "--doctor", "--backup-dir", "/a b", "train.py")
    command = container_of(made["Job"]["spec"]["template"])["command"]
    assert command[:2] == ["sh", "-c"]
    assert command[2] == "kfit doctor --timeout 600 --backup-dir '/a b' || true"


@pytest.mark.parametrize("options", [[], EVERYTHING])
def test_a_tfjob(options: list[str]) -> None:
    made = written(*IMAGE, "--kind", "tfjob", "--workers", "3", *options, "t.py")
    spec = made["TFJob"]["spec"]
    assert list(spec["tfReplicaSpecs"]) == ["Worker"]
    assert spec["successPolicy"] == "AllWorkers"
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
    worker = spec["tfReplicaSpecs"]["Worker"]
    assert (worker["replicas"], worker["restartPolicy"]) == (3, "ExitCode")
    container = container_of(worker["template"])
    assert container["name"] == "tensorflow"
    assert secret_of(made, container)
    assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]
    assert container["command"][-1] == "t.py"
    assert "KFIT_WORKERS" not in [each["name"] for each in container.get("env", [])]


def test_a_tfjob_with_parameter_servers_and_an_evaluator() -> None:
    options = ["--kind", "tfjob", "--workers", "2", "--ps", "2", "--evaluator"]
    spec = written(*IMAGE, *options, "t.py")["TFJob"]["spec"]
    commands = {
        kind: container_of(replica["template"])["command"]
        for kind, replica in spec["tfReplicaSpecs"].items()
    }
    # "Running" would end the evaluator with the chief, before the last checkpoint is evaluated.
    assert spec["runPolicy"]["cleanPodPolicy"] == "None"
    counts = {kind: replica["replicas"] for kind, replica in spec["tfReplicaSpecs"].items()}
    assert counts == {"Chief": 1, "Worker": 2, "PS": 2, "Evaluator": 1}
    # `kfit run` starts a server where TF_CONFIG says so, with its restarts and its patience.
    assert commands["Chief"][:2] == ["kfit", "run"]
    assert commands["Chief"][-1] == "t.py"
    assert commands["Worker"] == commands["PS"] == commands["Evaluator"] == commands["Chief"]


def test_a_tfjob_with_a_chief() -> None:
    options = ["--kind", "tfjob", "--workers", "2", "--chief"]
    spec = written(*IMAGE, *options, "t.py")["TFJob"]["spec"]
    assert list(spec["tfReplicaSpecs"]) == ["Chief", "Worker"]
    assert container_of(spec["tfReplicaSpecs"]["Worker"]["template"])["command"][-1] == "t.py"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "Train_1", "t.py"], "`--name` is 'Train_1'"),
        (["--name", "a" * 62, "--workers", "11", "t.py"], "longer than the 63 characters"),
        (["--workers", "0", "t.py"], "`--workers` is '0'"),
        (["--cpus", "many", "t.py"], "`--cpus` is 'many'"),
        (["--memory", "8 GB", "t.py"], "`--memory` is '8 GB'"),
        (["--backup-claim", "c", "t.py"], "`--backup-dir` is missing"),
        (["--backup-claim", "c", "--backup-dir", "b", "t.py"], "`--backup-dir` is 'b'"),
        (["--ps", "1", "t.py"], "`--ps` needs `--kind tfjob`"),
        (["--env", "A", "t.py"], "`--env` is 'A'; expected NAME=VALUE"),
        (["--port", "0", "t.py"], "`--port` is '0'"),
        ([], "`script.py` is missing"),
        (["--no-such", "t.py"], "`--no-such` is not an option of `kfit manifest kubernetes`"),
        (["t.py", "a\0b"], "bytes that are not text"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], message: str) -> None:
    code, out, error = kfit(*IMAGE, *options)
    assert (code, out) == (2, "")
    assert message in error


def test_it_is_written_to_a_new_file_only(tmp_path: Any) -> None:
    path = tmp_path / "job.yaml"
    assert kfit(*IMAGE, "--output", str(path), "t.py")[:2] == (0, "")
    assert path.stat().st_mode & 0o777 == 0o600  # it may have a secret
    before = path.read_text()
    assert len(list(yaml.safe_load_all(before))) == 2
    code, _, error = kfit(*IMAGE, "--output", str(path), "other.py")
    assert code == 2
    assert "File exists" in error
    assert path.read_text() == before
