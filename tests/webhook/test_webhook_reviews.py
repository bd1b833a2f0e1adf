"""What becomes of a pod: armed, warned about, or left alone; never refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from webhook_lab import Json, applied, armed, patch_in, pod, response_in, review_of

from sameshot.arm.values import ArmOptions
from sameshot.webhook import review
from sameshot.webhook.review import Malformed, Outcome, Verdict

ARMED, NOT_ARMED = "sameshot.dev/armed", "sameshot.dev/not-armed"


def reviewed(thing: Json, **request: Any) -> tuple[Json, Outcome]:
    """The response, and what the verdict calls it."""
    body = review_of(thing, **request)
    answer, _, verdict = review.answer(body)
    response = response_in(answer, body)
    assert response["allowed"] is True
    return response, verdict.outcome


def left_alone(response: Json) -> bool:
    return "patch" not in response and "warnings" not in response


def test_a_pod_that_asks_for_it_is_armed_as_the_command_line_would_arm_it() -> None:
    thing = pod()
    response, outcome = reviewed(thing)
    assert outcome is Outcome.ARMED
    patched = applied(thing, response)
    assert patched == armed(thing)
    assert patched["spec"]["containers"][0]["command"][-4:] == thing["spec"]["containers"][0]["command"]
    assert {"name": "sameshot", "emptyDir": {}} in patched["spec"]["volumes"]


JOB = {
    "job-name": "bert", "batch.kubernetes.io/job-name": "bert", "batch.kubernetes.io/controller-uid": "c0ffee"
}  # fmt: skip


@pytest.mark.parametrize(
    ("marks", "name"),
    [
        (JOB, "batch.kubernetes.io/job-name"),
        (JOB | {"jobset.sigs.k8s.io/jobset-name": "bert"}, "jobset.sigs.k8s.io/jobset-name"),
        ({"training.kubeflow.org/job-name": "bert"}, "training.kubeflow.org/job-name"),
        ({"volcano.sh/job-name": "bert"}, "volcano.sh/job-name"),
    ],
)
def test_a_pod_learns_its_job_from_the_labels_of_whatever_made_it(marks: dict[str, str], name: str) -> None:
    thing = pod(labels=marks, metadata={"ownerReferences": [{"kind": "Job", "name": "bert", "controller": True}]})
    patched = applied(thing, reviewed(thing)[0])
    (entry,) = [each for each in patched["spec"]["containers"][0]["env"] if each["name"] == "SAMESHOT_JOB_NAME"]
    assert entry["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{name}']"


def test_a_dry_run_and_a_generated_name_are_answered_like_any_other() -> None:
    generated = pod()
    named = pod(metadata={"generateName": None, "name": "bert-x1"})
    assert "name" not in generated["metadata"]
    really, _ = reviewed(generated)
    dry, _ = reviewed(generated, dryRun=True)
    of_named, _ = reviewed(named, name="bert-x1")
    assert patch_in(really) == patch_in(dry) == patch_in(of_named) != []


@pytest.mark.parametrize(
    ("options", "annotation"),
    [
        (ArmOptions(container="other"), {"sameshot.dev/container": "other"}),
        (ArmOptions(local_world_size=8), {"sameshot.dev/local-world-size": "8"}),
        (ArmOptions(single=True), {"sameshot.dev/single": "true"}),
        (ArmOptions(arm_spawned=True), {"sameshot.dev/arm-spawned": "true"}),
        (ArmOptions(pythonpath="/opt/lib"), {"sameshot.dev/pythonpath": "/opt/lib"}),
    ],
)
def test_annotations_say_what_options_say_on_the_command_line(options: ArmOptions, annotation: dict[str, str]) -> None:
    thing = pod(annotations=annotation)
    thing["spec"]["containers"].append({"name": "other", "image": "x", "command": ["python", "other.py"]})
    response, outcome = reviewed(thing)
    assert outcome is Outcome.ARMED
    assert applied(thing, response) == armed(thing, options) != armed(thing)


@pytest.mark.parametrize(
    "thing",
    [
        pod(labels={"sameshot.dev/arm": None}),
        pod(labels={"sameshot.dev/arm": "disabled"}),
        pod(labels={"sameshot.dev/arm": "true"}),
        pod(metadata={"labels": {}}),
    ],
)
def test_without_the_label_a_pod_is_left_alone_whatever_selector_let_it_through(thing: Json) -> None:
    response, outcome = reviewed(thing)
    assert left_alone(response)
    assert outcome is Outcome.NOT_OURS


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None, "oldObject": pod()},
        {"operation": "CONNECT"},
        {"subResource": "ephemeralcontainers"},
        {"subResource": "binding"},
        {"resource": {"group": "", "version": "v1", "resource": "configmaps"}},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        {"resource": {"group": "example.org", "version": "v1", "resource": "pods"}},
        {"object": None},
        {"object": []},
        {"object": "pod"},
    ],
)
def test_what_is_not_the_creation_of_a_pod_is_left_alone(request_: Json) -> None:
    response, outcome = reviewed(pod(), **request_)
    assert left_alone(response)
    assert outcome is Outcome.NOT_OURS


def test_the_mirror_of_a_static_pod_is_left_alone() -> None:
    """What it shows runs already: armed, or said not to be, it would only be its object."""
    annotations = {"kubernetes.io/config.mirror": "0f3a", "kubernetes.io/config.source": "file"}
    for asked in (pod(annotations=annotations), pod(annotations=annotations, container={"command": None})):
        verdict = review.judge(review.request_in(review_of(asked)))
        assert (verdict.outcome, verdict.pod, verdict.warnings) == (Outcome.NOT_OURS, None, ())


def test_a_pod_that_was_armed_before_is_not_patched() -> None:
    response, outcome = reviewed(armed(pod()))
    assert left_alone(response)
    assert outcome is Outcome.UNCHANGED


def test_a_pod_that_comes_back_after_another_webhook_replaced_its_command_is_armed_anew() -> None:
    thing = armed(pod())
    thing["spec"]["containers"][0]["command"] = ["torchrun", "--nproc-per-node", "4", "train.py"]
    response, outcome = reviewed(thing)
    assert outcome is Outcome.ARMED
    patched = applied(thing, response)
    assert patched["spec"]["containers"][0]["command"][0] == "/bin/sh"
    assert reviewed(patched)[1] is Outcome.UNCHANGED


def test_a_sidecar_that_another_webhook_puts_in_changes_nothing() -> None:
    thing = armed(pod())
    thing["spec"]["containers"].insert(0, {"name": "mesh", "image": "mesh"})
    assert left_alone(reviewed(thing)[0])


def test_a_pod_that_can_t_be_armed_says_why_and_warns() -> None:
    thing = pod(annotations={"team": "nlp"}, container={"command": None})
    response, outcome = reviewed(thing)
    assert outcome is Outcome.REFUSED
    patched = applied(thing, response)
    why = patched["metadata"]["annotations"].pop(NOT_ARMED)
    assert patched == thing  # and nothing else was touched
    assert "trainer" in why
    assert "`command`" in why
    assert response["warnings"][0].startswith("sameshot: not armed for captures: Container trainer has no `command`")


def test_the_way_out_is_told_in_annotations_since_a_pod_has_no_options() -> None:
    response, _ = reviewed(thing := pod(container={"command": None}))
    why = applied(thing, response)["metadata"]["annotations"][NOT_ARMED]
    assert "the annotation sameshot.dev/pythonpath" in why
    assert "--" not in why


def test_a_refused_pod_that_comes_back_needs_no_second_patch() -> None:
    thing = pod(container={"command": None})
    response, _ = reviewed(thing)
    again, outcome = reviewed(applied(thing, response))
    assert outcome is Outcome.REFUSED
    assert "patch" not in again
    assert again["warnings"] == response["warnings"]


def test_a_refused_pod_that_comes_back_with_what_was_missing_is_armed_and_no_longer_says_otherwise() -> None:
    thing = pod(container={"command": None})
    refused = applied(thing, reviewed(thing)[0])
    refused["spec"]["containers"][0]["command"] = ["torchrun", "train.py"]
    response, outcome = reviewed(refused)
    assert outcome is Outcome.ARMED
    annotations = applied(refused, response)["metadata"]["annotations"]
    assert ARMED in annotations
    assert NOT_ARMED not in annotations


def test_a_stale_refusal_is_taken_off_a_pod_that_was_armed_before() -> None:
    thing = armed(pod())
    thing["metadata"]["annotations"][NOT_ARMED] = "copied from elsewhere"
    response, _ = reviewed(thing)
    assert patch_in(response) == [{"op": "remove", "path": "/metadata/annotations/sameshot.dev~1not-armed"}]


@pytest.mark.parametrize("record", ['{"v":99}', "{", "[]"])
def test_a_pod_that_another_version_armed_is_never_called_unarmed(record: str) -> None:
    response, outcome = reviewed(pod(annotations={ARMED: record}))
    assert outcome is Outcome.REFUSED
    assert "patch" not in response
    assert len(response["warnings"]) == 1


def annotation_bytes(thing: Json) -> int:
    annotations = thing["metadata"]["annotations"]
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


@pytest.mark.parametrize(
    ("room", "outcome", "says"),
    [(20_000, Outcome.ARMED, ARMED), (700, Outcome.REFUSED, NOT_ARMED), (50, Outcome.REFUSED, None)],
)
def test_a_pods_annotations_never_grow_beyond_what_a_server_takes(room: int, outcome: Outcome, says: str) -> None:
    """256 KiB in all, as bytes: a pod above it would not be created, and the failure policy would not help."""
    size = 262_144 - room
    thing = pod(annotations={"big": "é" * ((size - 3) // 2) + "x" * ((size - 3) % 2)})
    assert annotation_bytes(thing) == size
    response, found = reviewed(thing)
    assert found is outcome
    patched = applied(thing, response)
    assert annotation_bytes(patched) <= 262_144
    assert set(patched["metadata"]["annotations"]) == {"big", says} - {None}
    if outcome is Outcome.REFUSED:
        assert "262144 bytes" in response["warnings"][0]
        assert patched["spec"] == thing["spec"]


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "a.b", "value": "1"}]},
        {"volumeDevices": [{"name": "data", "devicePath": "/sameshot"}]},
        {"volumeMounts": [{"name": "data", "mountPath": "//sameshot"}]},
    ],
)
def test_what_would_break_an_armed_pod_keeps_it_unarmed(container: Json) -> None:
    response, outcome = reviewed(thing := pod(container=container))
    assert outcome is Outcome.REFUSED
    assert applied(thing, response)["spec"] == thing["spec"]


def test_an_image_without_a_shell_says_so_in_an_annotation() -> None:
    response, outcome = reviewed(thing := pod(annotations={"sameshot.dev/pythonpath": ""}))
    assert outcome is Outcome.ARMED
    (trainer,) = applied(thing, response)["spec"]["containers"]
    assert trainer["command"] == thing["spec"]["containers"][0]["command"]
    assert {"name": "PYTHONPATH", "value": "/sameshot-hook"} in trainer["env"]


def test_an_annotation_that_means_nothing_is_a_refusal_with_its_name() -> None:
    response, outcome = reviewed(pod(annotations={"sameshot.dev/local-world-size": "many"}))
    assert outcome is Outcome.REFUSED
    assert "sameshot.dev/local-world-size" in response["warnings"][0]


def test_a_warning_is_one_printable_line_of_bounded_length() -> None:
    odd = 'a\nb\t\x07"\\' + "é" * 1000
    response, _ = reviewed(pod(annotations={"sameshot.dev/container": odd}))
    (warning,) = response["warnings"]
    assert len(warning) == 600
    assert warning.endswith("...")


def test_many_warnings_stay_below_what_a_server_passes_on() -> None:
    request = review.request_in(review_of(pod()))
    verdict = Verdict(Outcome.ARMED, warnings=tuple(f"{index} " + "x" * 1000 for index in range(50)))
    response_in(review._answer(request, verdict), review_of(pod(), uid=request.uid))


def test_what_of_a_pod_is_not_ours_is_not_mentioned_in_the_patch() -> None:
    """Fields of a later version, and numbers that a float can't hold, stay the bytes that the server has."""
    thing = pod(spec={"fromTheFuture": {"big": 2**63 + 1, "list": [1, 2.5, None]}, "priority": 2_000_001_000})
    response, _ = reviewed(thing)
    text = json.dumps(patch_in(response))
    assert "fromTheFuture" not in text
    assert "priority" not in text
    assert "registry.local" not in text


def test_the_review_itself_is_not_changed_by_being_looked_at() -> None:
    thing = pod()
    body = review_of(thing)
    before = copy.deepcopy(thing)
    first, second = review.answer(body)[0], review.answer(body)[0]
    assert first == second
    assert thing == before


def good(**changes: Any) -> bytes:
    return json.dumps(json.loads(review_of(pod())) | changes).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"review"',
        b"\xff\xfe",
        b"<html>",
        review_of(pod())[:-1],
        b"[" * 100_000,
        b'{"a":' * 100_000,
        good(apiVersion="admission.k8s.io/v1beta1"),
        good(kind="Pod"),
        good(request=None),
        good(request={}),
        good(request={"uid": ""}),
        good(request={"uid": 7}),
        json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}).encode(),
        json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {"uid": "x"}}).encode(),
    ],
)
def test_what_is_no_review_is_malformed_and_no_defect(body: bytes) -> None:
    with pytest.raises(Malformed):
        review.answer(body)
    with pytest.raises(Malformed):
        review.unchanged(body, "why")


def test_an_annotation_that_can_not_be_read_leaves_the_pod_as_it_is() -> None:
    thing = pod(annotations={ARMED: '{"v":1,"volumes":' + "[" * 100_000})
    response, outcome = reviewed(thing)
    assert outcome is Outcome.REFUSED
    assert "patch" not in response
    assert "left as it is: The annotation sameshot.dev/armed is not what arming writes" in response["warnings"][0]


def test_a_deeply_nested_pod_is_no_danger() -> None:
    body = review_of(pod()).replace(b'"status": {}', b'"status": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000)
    with pytest.raises((Malformed, RecursionError)):  # the server admits the pod in either case
        review.answer(body)
