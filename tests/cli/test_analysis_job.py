"""The Job of `sameshot analyze --on-cluster` as an object, and what is made of what a cluster says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kubernetes_objects import schema_problems
from pod_security import violations

from sameshot.cli.main import application
from sameshot.errors import Denied, SameshotError, TryAgain, UsageError
from sameshot.steps.on_cluster import AnalysisJob, job_of, namespace_of
from sameshot.steps.on_cluster.build import FINAL_CODES
from sameshot.steps.on_cluster.standing import EventSeen, JobSeen, PodSeen, new_lines, standing

MANIFEST = "s3://traces/cluster-a/ml/llama-7b/0/0197f3a2c4d17e0a8b54d6f1c2a3b4c5/manifest.json"


def asked(**more: Any) -> AnalysisJob:
    return AnalysisJob(**{"manifest": MANIFEST, "results": "s3://results/profiling", "namespace": "ml", **more})


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


# --- the object


def test_it_is_one_that_an_api_server_takes_also_in_a_restricted_namespace() -> None:
    job = job_of(asked())
    assert schema_problems(job) == []
    assert violations(job["spec"]["template"], "restricted") == []


def test_its_pod_has_no_right_but_its_storage_credential() -> None:
    spec = pod_of(job_of(asked()))
    assert spec["serviceAccountName"] == "sameshot-analysis"
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "sameshot-results", "optional": True}}]
    assert container["env"] == [{"name": "HOME", "value": "/tmp"}]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert [list(volume) for volume in spec["volumes"]] == [["name", "emptyDir"]]


def test_a_secret_that_was_named_must_be_there() -> None:
    (container,) = pod_of(job_of(asked(secret="bucket")))["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]


def test_the_same_request_has_the_same_name_and_another_one_another() -> None:
    name = job_of(asked())["metadata"]["name"]
    assert name == job_of(asked())["metadata"]["name"]
    assert len(name) <= 63
    others = [
        asked(results="s3://elsewhere"),
        asked(image="mirror/steps:1"),
        asked(limits={"memory": "16Gi"}),
        asked(min_ranks=3),
    ]
    assert len({name, *(job_of(each)["metadata"]["name"] for each in others)}) == 1 + len(others)


def test_what_another_try_cannot_mend_is_not_tried_again_and_an_eviction_is_no_failure() -> None:
    spec = job_of(asked())["spec"]
    ignored, final = spec["podFailurePolicy"]["rules"]
    assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert final["action"] == "FailJob"
    assert set(final["onExitCodes"]["values"]) == set(FINAL_CODES) == {2, 3, 4, 5, 6, 7, 77}
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # else a podFailurePolicy is refused
    assert 0 < spec["backoffLimit"] < 6
    assert spec["activeDeadlineSeconds"] == 3600
    assert spec["ttlSecondsAfterFinished"] > 3600


def test_its_command_is_one_that_the_steps_know() -> None:
    job = job_of(asked(min_ranks=3, fetch_pattern="^load", expected_sha256="ab" * 32, history=False))
    (container,) = pod_of(job)["containers"]
    words = [*container["command"], *container["args"]]
    assert words[:3] == ["sameshot", "step", "analyze"]
    import typer.main

    group = typer.main.get_command(application(["step"]))
    step = group.commands["step"].commands["analyze"]  # type: ignore[attr-defined]
    given = step.make_context("analyze", words[3:], resilient_parsing=False).params
    assert given["manifest"] == MANIFEST
    assert given["results"] == "s3://results/profiling"
    assert str(given["result"]) == "/dev/termination-log"
    assert (given["min_ranks"], given["fetch_pattern"], given["history"]) == (3, "^load", False)
    assert given["workers"] == 2  # as many as it asks for processors, not as the node has


@pytest.mark.parametrize(("amounts", "workers"), [({"cpu": "500m"}, 1), ({"cpu": "3500m"}, 4), ({"memory": "1Gi"}, 1)])
def test_it_starts_no_more_processes_than_it_has_processors(amounts: dict[str, str], workers: int) -> None:
    (container,) = pod_of(job_of(asked(requests=amounts)))["containers"]
    assert f"--workers={workers}" in container["args"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"manifest": "/data/cap/manifest.json"}, "can't reach"),
        ({"results": "file:///data"}, "can't reach"),
        ({"results": "report"}, "can't reach"),
        ({"namespace": "ML"}, "no name"),
        ({"limits": {"memory": "lots"}}, "limit memory=lots"),
        ({"requests": {"cpu": "-1"}}, "request cpu=-1"),
        ({"workers": 0}, "workers"),
        ({"min_ranks": 0}, "min_ranks"),
    ],
)
def test_what_no_pod_could_do_is_refused_before_anybody_is_asked(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job_of(asked(**more))


@pytest.mark.parametrize(
    ("manifest", "namespace"),
    [
        (MANIFEST, "ml"),
        ("s3://traces/ml/llama-7b/0/0197f3a2", "ml"),
        ("s3://traces/ml/llama-7b/0/0197f3a2/", "ml"),
        ("s3://traces/imported/manifest.json", None),
        ("s3://traces/ml/llama-7b/latest/0197f3a2/manifest.json", None),
        ("s3://traces/Not_A_Namespace/llama-7b/0/0197f3a2/manifest.json", None),
    ],
)
def test_its_namespace_is_that_of_the_captured_job_where_the_place_tells(manifest: str, namespace: str | None) -> None:
    assert namespace_of(manifest) == namespace


# --- how far it is


def a_job(*conditions: tuple[str, str, str]) -> JobSeen:
    told = [{"type": kind, "status": "True", "reason": reason, "message": text} for kind, reason, text in conditions]
    return msgspec.convert({"metadata": {"name": "j", "uid": "u"}, "status": {"conditions": told}}, JobSeen)


def a_pod(name: str = "j-1", phase: str = "Pending", *, at: str = "2026-01-01T00:00:00Z", **status: Any) -> PodSeen:
    state = status.pop("state", None)
    if state is not None:
        status["containerStatuses"] = [{"name": "sidecar"}, {"name": "analyze", "state": state}]
    return msgspec.convert(
        {"metadata": {"name": name, "creationTimestamp": at}, "status": {"phase": phase, **status}}, PodSeen
    )


def waiting(reason: str, message: str = "words of the kubelet") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


FORBIDDEN = 'Error creating: pods "j-1" is forbidden: '
NO_ACCOUNT = 'error looking up service account ml/sameshot-analysis: serviceaccount "sameshot-analysis" not found'
NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
}


@pytest.mark.parametrize(
    ("pods", "event", "kind", "said"),
    [
        ([a_pod(state=waiting("ImagePullBackOff"))], "", UsageError, "--image"),
        ([a_pod(state=waiting("ErrImagePull"))], "", UsageError, "--image"),
        ([a_pod(state=waiting("InvalidImageName"))], "", UsageError, "--image"),
        ([a_pod(state=waiting("CreateContainerConfigError", 'secret "x" not found'))], "", UsageError, "--secret"),
        ([a_pod(conditions=[NO_ROOM])], "", TryAgain, "Insufficient memory"),
        ([], "exceeded quota: q, requested: memory=2Gi", TryAgain, "quota"),
        ([], "failed quota: q: must specify limits.cpu", UsageError, "--limits"),
        ([], NO_ACCOUNT, UsageError, "--service-account"),
        ([], 'violates PodSecurity "restricted:latest": …', Denied, "Pod Security"),
    ],
    ids=["backoff", "pull", "image name", "secret", "no node", "quota", "quota wants", "account", "security"],
)
def test_what_keeps_its_pod_from_running_has_a_type_and_a_way_out(
    pods: list[PodSeen], event: str, kind: type[SameshotError], said: str
) -> None:
    told = [EventSeen("Warning", "FailedCreate", FORBIDDEN + event)]
    found = standing("ml", a_job(), pods, told)
    assert found.finished is None
    assert found.hindrance is not None
    assert found.hindrance.kind is kind
    assert said in found.hindrance.words


def test_nothing_hinders_a_pod_that_is_on_its_way() -> None:
    for pods in (
        [],
        [a_pod()],
        [a_pod(state=waiting("ContainerCreating"))],
        [a_pod(phase="Running", state={"running": {"startedAt": "2026-01-01T00:00:01Z"}})],
    ):
        assert standing("ml", a_job(), pods).hindrance is None


def test_the_newest_pod_counts_and_tries_are_counted() -> None:
    old = a_pod("j-b", "Failed", at="2026-01-01T00:00:00Z", state={"terminated": {"exitCode": 75}})
    new = a_pod("j-a", "Running", at="2026-01-01T00:01:00Z")
    found = standing("ml", a_job(), [new, old])
    assert found.logs_of == "j-a"
    assert "try 2 of 3" in found.words


RESULT = '{"step":"analyze","exit_code":3,"error":"PartialCapture","message":"2 of 4 ranks analysed."}'


@pytest.mark.parametrize(
    ("condition", "terminated", "code", "said"),
    [
        (("Complete", "", ""), {"exitCode": 0, "message": RESULT.replace("3", "0", 1)}, 0, "2 of 4"),
        (("Complete", "", ""), {"exitCode": 0}, 0, "left no result"),
        (("Failed", "PodFailurePolicy", ""), {"exitCode": 3, "message": RESULT}, 3, "2 of 4"),
        (("Failed", "PodFailurePolicy", ""), {"exitCode": 77, "message": "log\nerror: the bucket says no\n"}, 77,
         "the bucket says no"),
        (("Failed", "BackoffLimitExceeded", ""), {"exitCode": 75, "message": RESULT}, 75, "2 of 4"),
        (("Failed", "BackoffLimitExceeded", ""), {"exitCode": 137, "reason": "OOMKilled"}, 1, "memory"),
        (("Failed", "BackoffLimitExceeded", ""), {"exitCode": 139, "reason": "Error"}, 1, "139"),
        (("Failed", "DeadlineExceeded", "Job was active longer than specified deadline"), None, 75, "--timeout"),
        (("Failed", "Other", "words of the controller"), None, 1, "words of the controller"),
    ],
)  # fmt: skip
def test_it_ends_with_the_exit_code_of_its_pod(
    condition: tuple[str, str, str], terminated: dict[str, Any] | None, code: int, said: str
) -> None:
    pods = [] if terminated is None else [a_pod(phase="Failed", state={"terminated": terminated})]
    finished = standing("ml", a_job(condition), pods).finished
    assert finished is not None
    assert finished.exit_code == code
    assert said in finished.message


def test_a_log_that_is_read_again_and_again_gives_each_line_once() -> None:
    first = "2026-01-01T00:00:00.100000000Z one\n2026-01-01T00:00:00.200000000Z \n"
    lines, last = new_lines(first, "")
    assert lines == ["one", ""]
    again = first + "2026-01-01T00:00:00.300000000Z two words\nnot stamped\n"
    assert new_lines(again, last) == (["two words"], "2026-01-01T00:00:00.300000000Z")
    assert new_lines("", last) == ([], last)
