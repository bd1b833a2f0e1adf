from __future__ import annotations

import copy
from typing import Any

import pytest
from arm_lab import WRAPPED, annotation_of, container_of, env_of, fixture, is_armed

from sameshot.arm import ArmOptions, NotArmable, arm_template
from sameshot.arm.kinds import arm_object, disarm_object, place_of_pod

Json = dict[str, Any]

ALWAYS = {
    "SAMESHOT_ARMED": "1",
    "SAMESHOT_DIR": "/sameshot",
    "SAMESHOT_NODE": "@spec.nodeName",
    "SAMESHOT_POD": "@metadata.name",
    "SAMESHOT_POD_UID": "@metadata.uid",
    "SAMESHOT_JOB_NAMESPACE": "@metadata.namespace",
}
JOB = {
    "SAMESHOT_JOB_NAME": "@metadata.labels['batch.kubernetes.io/job-name']",
    "SAMESHOT_JOB_UID": "@metadata.labels['batch.kubernetes.io/controller-uid']",
}
# Fixture: the pod templates that are armed, the container, workers in it, and what else stands in its environment.
KINDS: dict[str, tuple[list[str], str, str, dict[str, str]]] = {
    "pod": (
        [""],
        "trainer",
        "auto",
        {"SAMESHOT_JOB_NAME": "@metadata.name", "SAMESHOT_JOB_UID": "@metadata.uid", "RUN": "7"}
        | {"PYTHONPATH": "/app/lib"},
    ),
    "job": (["spec.template"], "main", "8", JOB),
    "cronjob": (["spec.jobTemplate.spec.template"], "main", "1", JOB | {"SAMESHOT_SINGLE": "1"}),
    "jobset": (
        ["spec.replicatedJobs.1.template.spec.template"],
        "pytorch",
        "8",
        {
            "SAMESHOT_JOB_NAME": "@metadata.labels['jobset.sigs.k8s.io/jobset-name']",
            "SAMESHOT_JOB_UID": "@metadata.labels['jobset.sigs.k8s.io/jobset-uid']",
            "SAMESHOT_JOB_ATTEMPT": "@metadata.labels['jobset.sigs.k8s.io/restart-attempt']",
        },
    ),
    "pytorchjob": (
        ["spec.pytorchReplicaSpecs.Master.template", "spec.pytorchReplicaSpecs.Worker.template"],
        "pytorch",
        "1",
        {"SAMESHOT_JOB_NAME": "@metadata.labels['training.kubeflow.org/job-name']"},
    ),
    "statefulset": (["spec.template"], "main", "auto", {"SAMESHOT_JOB_NAME": "learner"}),
    "deployment": (
        ["spec.template"],
        "main",
        "auto",
        {"SAMESHOT_JOB_NAME": "notebook", "PYTHONPATH": "/sameshot-hook:/srv/lib:/srv/more"},
    ),
    "volcanojob": (
        ["spec.tasks.0.template", "spec.tasks.1.template"],
        "main",
        "1",
        {"SAMESHOT_JOB_NAME": "@metadata.labels['volcano.sh/job-name']"},
    ),
}


def at(thing: Any, path: str) -> Json:
    for step in path.split(".") if path else []:
        thing = thing[int(step)] if step.isdigit() else thing[step]
    return thing


def armed_places(thing: Any) -> int:
    """How often the annotation stands anywhere in an object."""
    if isinstance(thing, dict):
        return ("sameshot.dev/armed" in thing) + sum(map(armed_places, thing.values()))
    return sum(map(armed_places, thing)) if isinstance(thing, list) else 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_armed_where_it_keeps_its_pod_templates(kind: str) -> None:
    paths, name, workers, more = KINDS[kind]
    plain = fixture(kind)
    before = copy.deepcopy(plain)
    done = arm_object(plain)
    assert plain == before
    assert done.templates == len(paths) == armed_places(done.thing)
    for path in paths:
        armed = at(done.thing, path)
        assert annotation_of(armed)["container"] == name
        assert armed["metadata"]["labels"]["sameshot.dev/arm"] == "enabled"
        expected = ALWAYS | more | {"SAMESHOT_CONTAINER": name, "SAMESHOT_LOCAL_WORLD_SIZE": workers}
        assert env_of(armed, name) == expected
        own = container_of(at(plain, path), name).get("command")
        assert container_of(armed, name).get("command") == ([*WRAPPED, *own] if own else None)
        assert {each["name"] for each in armed["spec"]["volumes"]} >= {"sameshot", "sameshot-hook"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_armed_once_and_disarmed_whole(kind: str) -> None:
    plain = fixture(kind)
    once = arm_object(plain).thing
    assert arm_object(once).thing == once
    done = disarm_object(once)
    assert done.thing == plain
    assert done.templates == len(KINDS[kind][0])
    assert not done.told
    assert disarm_object(plain).templates == 0


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_outside_the_pod_templates_changes(kind: str) -> None:
    plain = fixture(kind)
    armed = arm_object(plain).thing
    for path in KINDS[kind][0]:
        for each in (plain, armed):
            template = at(each, path)
            template.pop("metadata", None)
            template.pop("spec")
    assert armed == plain


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("trainjob", "no pod template of its own.*admission webhook"),
        ("mpijob", "not supported yet.*ssh"),
        ("rayjob", "not supported yet.*after torch is imported"),
        ("workflow", "not supported yet.*hold containers"),
    ],
)
def test_kinds_that_are_not_supported_say_why(kind: str, why: str) -> None:
    for paths in ((), ("spec.template",)):
        with pytest.raises(NotArmable, match=f"(?s){why}"):
            arm_object(fixture(kind), None, paths)


def test_an_unknown_kind_is_armed_where_one_says_its_templates_are() -> None:
    plain = fixture("unknown")
    with pytest.raises(NotArmable, match=r"Experiment \(train.example.com\) is not known.*--template-path"):
        arm_object(plain)
    for path in ("spec.roles.*.workers[*].pod", "spec.roles.leader.workers[0].pod"):
        done = arm_object(plain, None, [path])
        assert done.templates == 1
        assert is_armed(done.thing["spec"]["roles"]["leader"]["workers"][0]["pod"])
        assert disarm_object(done.thing, [path]).thing == plain


@pytest.mark.parametrize("path", ["spec.nothing", "spec.roles.leader.workers[1].pod", "spec.roles.leader.workers.pod"])
def test_a_path_to_nothing_is_refused(path: str) -> None:
    with pytest.raises(NotArmable, match="no pod template at"):
        arm_object(fixture("unknown"), None, [path])


@pytest.mark.parametrize("path", ["spec.workers[x]", "spec.[0", "spec..x"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(NotArmable, match="can't be read"):
        arm_object(fixture("unknown"), None, [path])


def test_templates_without_an_accelerator_are_left_where_others_ask_for_one() -> None:
    done = arm_object(fixture("jobset"))
    assert done.thing["spec"]["replicatedJobs"][0] == fixture("jobset")["spec"]["replicatedJobs"][0]
    assert [path for path, text in done.told if "no accelerator" in text] == [
        "spec.replicatedJobs[0].template.spec.template"
    ]


def test_without_any_accelerator_all_templates_are_armed() -> None:
    plain = fixture("jobset")
    del plain["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]
    plain["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"] = ["store"]
    assert arm_object(plain).templates == 2


def test_one_template_that_cannot_be_armed_refuses_the_workload_and_names_the_place() -> None:
    plain = fixture("volcanojob")
    del plain["spec"]["tasks"][1]["template"]["spec"]["containers"][0]["command"]
    with pytest.raises(NotArmable, match=r"^spec.tasks\[1\].template: .*no `command`"):
        arm_object(plain)


@pytest.mark.parametrize(
    ("per_node", "command", "workers"),
    [
        ("4", ["torchrun", "t.py"], "4"),
        (4, ["torchrun", "t.py"], "4"),
        ("auto", ["torchrun", "t.py"], "auto"),
        ("gpu", ["torchrun", "t.py"], "auto"),
        (None, ["torchrun", "t.py"], "auto"),
        ("auto", ["python", "t.py"], "1"),
        ("2", ["bash", "run.sh"], "2"),
    ],
)
def test_a_pytorchjob_says_how_many_workers_torchrun_starts(
    per_node: str | int | None, command: list[str], workers: str
) -> None:
    plain = copy.deepcopy(fixture("pytorchjob"))
    replicas = plain["spec"]["pytorchReplicaSpecs"]
    container_of(replicas["Master"]["template"], "pytorch")["command"] = command
    if per_node is not None:
        plain["spec"]["nprocPerNode"] = per_node
    armed = arm_object(plain).thing["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    assert env_of(armed, "pytorch")["SAMESHOT_LOCAL_WORLD_SIZE"] == workers


def test_an_elastic_pytorchjob_without_a_master_ranks_no_pods() -> None:
    """Its operator sets RANK only where there is a Master; torchrun does it otherwise."""
    plain = fixture("pytorchjob")
    del plain["spec"]["pytorchReplicaSpecs"]["Master"]
    plain["spec"]["elasticPolicy"] = {"nProcPerNode": 2}
    worker = plain["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    container_of(worker, "pytorch")["command"] = ["torchrun", "t.py"]
    armed = arm_object(plain).thing["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert env_of(armed, "pytorch")["SAMESHOT_LOCAL_WORLD_SIZE"] == "2"
    container_of(worker, "pytorch")["command"] = ["python", "t.py"]
    del plain["spec"]["elasticPolicy"]
    done = arm_object(plain)
    armed = done.thing["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert env_of(armed, "pytorch")["SAMESHOT_LOCAL_WORLD_SIZE"] == "auto"
    assert any("--single" in text for _, text in done.told)


def test_a_name_that_will_be_generated_is_left_to_the_agent() -> None:
    plain = fixture("deployment")
    plain["metadata"] = {"generateName": "notebook-"}
    assert "SAMESHOT_JOB_NAME" not in env_of(arm_object(plain).thing["spec"]["template"])


def test_annotations_of_a_template_are_options_and_the_command_line_outdoes_them() -> None:
    plain = fixture("job")
    plain["spec"]["template"]["metadata"]["annotations"] = {"sameshot.dev/local-world-size": "4"}
    assert env_of(arm_object(plain).thing["spec"]["template"])["SAMESHOT_LOCAL_WORLD_SIZE"] == "4"
    done = arm_object(plain, ArmOptions(local_world_size=6))
    assert env_of(done.thing["spec"]["template"])["SAMESHOT_LOCAL_WORLD_SIZE"] == "6"


POD = {
    "job": {"batch.kubernetes.io/job-name": "x", "batch.kubernetes.io/controller-uid": "u"},
    "jobset": {
        "jobset.sigs.k8s.io/jobset-name": "x",
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "batch.kubernetes.io/job-name": "x-workers-0",  # its child Job
    },
    "pytorchjob": {"training.kubeflow.org/job-name": "x"},
    "volcanojob": {"volcano.sh/job-name": "x"},
}


@pytest.mark.parametrize("kind", POD)
def test_a_pod_of_a_kind_is_told_by_its_labels(kind: str) -> None:
    """What the webhook writes is what the command line writes."""
    paths, name, _, more = KINDS[kind]
    pod = copy.deepcopy(at(fixture(kind), paths[0]))
    metadata = pod.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **POD[kind]}
    metadata["ownerReferences"] = [{"kind": "X", "name": "x", "uid": "u", "controller": True}]
    env = env_of(arm_template(pod, None, place_of_pod(pod)).template, name)
    facts = {key: value for key, value in more.items() if key.startswith("SAMESHOT_JOB_")}
    assert {key: value for key, value in env.items() if key.startswith("SAMESHOT_JOB_") and key in facts} == facts


@pytest.mark.parametrize("kind", POD)
def test_a_pod_of_an_armed_workload_is_left_as_it_is_by_the_webhook(kind: str) -> None:
    pod = copy.deepcopy(at(arm_object(fixture(kind)).thing, KINDS[kind][0][0]))
    pod["metadata"]["labels"] |= POD[kind]
    pod["metadata"]["ownerReferences"] = [{"kind": "X", "name": "x", "uid": "u", "controller": True}]
    for place in (None, place_of_pod(pod)):
        done = arm_template(pod, None, place)
        assert not done.changed
        assert done.template == pod


def test_a_bare_pod_is_its_own_job_and_one_with_an_unknown_owner_is_not() -> None:
    pod = fixture("pod")
    assert place_of_pod(pod).name is not None
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "x", "uid": "u"}]
    assert place_of_pod(pod).name is None


def test_places_that_are_one_object_by_an_anchor_are_armed_apart() -> None:
    """Labels are often shared with a selector, which must not change."""
    marks = {"app": "x"}
    plain = fixture("deployment")
    spec = plain["spec"]
    spec["selector"]["matchLabels"] = spec["template"]["metadata"]["labels"] = marks
    rule = {"topologyKey": "x", "labelSelector": {"matchLabels": marks}}
    spec["template"]["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    }
    armed = arm_object(plain).thing["spec"]
    assert armed["template"]["metadata"]["labels"] == {"app": "x", "sameshot.dev/arm": "enabled"}
    assert armed["selector"]["matchLabels"] == {"app": "x"}
    assert armed["template"]["spec"]["affinity"] == spec["template"]["spec"]["affinity"]


OF_SERVER = {"batch.kubernetes.io/job-name": "bert-x", "batch.kubernetes.io/controller-uid": "u", "job-name": "bert-x"}


def as_a_server_keeps_it(job: Json, **own: str) -> Json:
    """A Job without labels gets those of its template; the server adds some to the template, at times to both."""
    job = copy.deepcopy(job)
    marks = job["spec"]["template"]["metadata"]["labels"]
    job["metadata"]["labels"] = dict(own or marks)
    marks |= OF_SERVER
    return job


@pytest.mark.parametrize("shared", [True, False])
def test_disarming_takes_the_label_from_a_job_to_which_the_server_copied_it(shared: bool) -> None:
    kept = as_a_server_keeps_it(arm_object(fixture("job")).thing)
    if shared:
        kept["metadata"]["labels"] |= OF_SERVER
    assert kept["metadata"]["labels"]["sameshot.dev/arm"] == "enabled"
    done = disarm_object(kept)
    assert done.thing["metadata"]["labels"] == {"app": "bert"} | (OF_SERVER if shared else {})
    assert "sameshot.dev/arm" not in done.thing["spec"]["template"]["metadata"]["labels"]
    assert not done.told


def test_labels_that_a_person_gave_a_job_stay_when_it_is_disarmed() -> None:
    mine = {"team": "a", "sameshot.dev/arm": "enabled"}
    done = disarm_object(as_a_server_keeps_it(arm_object(fixture("job")).thing, **mine))
    assert done.thing["metadata"]["labels"] == mine
    plain = fixture("job")
    for holder in (plain, plain["spec"]["template"]):  # the same at both: neither came by arming
        holder["metadata"]["labels"] = {"app": "bert", "sameshot.dev/arm": "enabled"}
    assert disarm_object(arm_object(plain).thing).thing == plain
    assert disarm_object(plain).thing == plain
