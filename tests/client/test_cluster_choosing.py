"""Which coordinator an address means, and what is said where none can be called."""

from __future__ import annotations

import base64
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from sameshot.client.cluster import parse
from sameshot.client.cluster.coordinators import (
    Armed,
    can_be_called,
    choose,
    forged,
    may_come,
    newest_of_each,
    why_not,
)
from sameshot.errors import JobEnded, NoSuchJob, OtherAttempt, SameshotError, Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator, Condition, Job, Meta, Phase, PodPlace, Spec, Status
from sameshot.model import JobRef

CRD = Path(__file__).resolve().parents[2] / "deploy/crds/capturecoordinators.yaml"
READY, PENDING, FINISHED, SUPERSEDED, FAILED = (
    Phase.READY, Phase.PENDING, Phase.FINISHED, Phase.SUPERSEDED, Phase.FAILED,
)  # fmt: skip
ENDPOINT = {
    "endpoint": "c.svc:7443",
    "ca_bundle": base64.b64encode(b"PEM").decode(),
    "pod": PodPlace("sameshot-coordinators", "c", 7443),
}


def cr(
    name: str, uid: str = "u1", attempt: int = 0, phase: Phase = READY, *, kind: str = "Job", made: int = 0, **more: Any
) -> CaptureCoordinator:
    gone = more.pop("deleted", False)
    group = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}[kind]
    stamp = f"2026-01-01T00:00:{made:02d}Z"
    return CaptureCoordinator(
        Meta(f"c-{uid}-{attempt}", "ml", creation_timestamp=stamp, deletion_timestamp=stamp if gone else None),
        Spec(Job(group, kind, name, uid, attempt)),
        Status(phase=phase, **more),
    )


@pytest.mark.parametrize(
    ("found", "address", "meant"),
    [
        ([], "kube:ml/a", None),
        ([cr("b")], "kube:ml/a", None),
        ([cr("a.1"), cr("a")], "kube:ml/a.1", ("u1", 0)),
        ([cr("a", attempt=1), cr("a", attempt=0, phase=SUPERSEDED)], "kube:ml/a", ("u1", 1)),
        ([cr("a", attempt=10), cr("a", attempt=9, phase=SUPERSEDED)], "kube:ml/a", ("u1", 10)),
        ([cr("a", attempt=1, phase=PENDING), cr("a", attempt=0)], "kube:ml/a", ("u1", 1)),
        ([cr("a", attempt=1), cr("a", attempt=0, phase=SUPERSEDED)], "kube:ml/a?attempt=0", ("u1", 0)),
        ([cr("a", attempt=0)], "kube:ml/a?attempt=1", None),
        ([cr("a", "u1", phase=FINISHED, made=1), cr("a", "u2", made=2)], "kube:ml/a", ("u2", 0)),
        ([cr("a", "u1", made=9), cr("a", "u2", phase=FINISHED, made=10)], "kube:ml/a", ("u1", 0)),
        ([cr("a", "u1", made=1), cr("a", "u2", made=2)], "kube:ml/a", ("u2", 0)),
        ([cr("a", "u1", made=2, deleted=True), cr("a", "u2", made=1)], "kube:ml/a", ("u2", 0)),
        ([cr("a", "u1", phase=FINISHED, made=1), cr("a", "u2", phase=FINISHED, made=2)], "kube:ml/a", ("u2", 0)),
        ([cr("a", "u1"), cr("a", "u2", kind="JobSet")], "kube:ml/a?kind=jobset", ("u2", 0)),
        ([cr("a", "u1"), cr("a", "u2", kind="JobSet")], "kube:ml/a?uid=u1", ("u1", 0)),
        ([cr("a", "u1", phase=FINISHED), cr("a", "u2", kind="JobSet")], "kube:ml/a", ("u2", 0)),
        ([cr("a", "u1"), cr("b", "u2", phase=FINISHED)], "kube:ml", ("u1", 0)),
        ([cr("b", "u2", phase=FINISHED)], "kube:ml", None),
    ],
)
def test_the_newest_attempt_of_the_job_that_lives_is_meant(
    found: list[CaptureCoordinator], address: str, meant: tuple[str, int] | None
) -> None:
    for order in (found, found[::-1]):
        chosen = choose(order, parse(address))
        assert (None if chosen is None else (chosen.spec.job.uid, chosen.spec.job.attempt)) == meant


def test_living_jobs_of_one_name_and_several_kinds_are_named_and_not_guessed() -> None:
    found = [cr("a", "u1"), cr("a", "u2", kind="JobSet")]
    with pytest.raises(UsageError) as refused:
        choose(found, msgspec.structs.replace(parse("kube:ml/a?context=prod"), wait_ms=0))  # as a dialer asks
    said = str(refused.value).partition("(--address): ")[2]
    addresses = [f"kube:ml/a?uid={uid}&context=prod" for uid in ("u1", "u2")]
    assert shlex.split(said.replace(",", "")) == addresses  # as a shell takes them
    for uid, address in zip(("u1", "u2"), addresses, strict=True):
        chosen = choose(found, parse(address))
        assert chosen is not None
        assert chosen.spec.job.uid == uid


def test_a_namespace_with_several_jobs_is_no_job() -> None:
    with pytest.raises(UsageError, match=r"'kube:ml/a\?uid=u1', 'kube:ml/b\?uid=u2'"):
        choose([cr("b", "u2"), cr("a", "u1")], parse("kube:ml"))


@pytest.mark.parametrize(
    ("found", "address", "said"),
    [
        ([cr("a", "u2")], "kube:ml/a?uid=u1", r"uid u1 .* Job a \(uid u2, attempt 0, Ready\)"),
        ([cr("a", "u1")], "kube:ml/a?kind=JobSet", "kind JobSet"),
        ([cr("a", attempt=2)], "kube:ml/a?attempt=1", r"Attempt 1 .* attempt 2, Ready"),
    ],
)
def test_another_run_than_the_one_that_is_asked_for_is_not_taken(
    found: list[CaptureCoordinator], address: str, said: str
) -> None:
    with pytest.raises(OtherAttempt, match=said):
        choose(found, parse(address))


@pytest.mark.parametrize(
    ("phase", "status", "direct", "forward"),
    [
        (READY, ENDPOINT, True, True),
        (FINISHED, ENDPOINT, True, True),  # what it captured is still to be had
        (SUPERSEDED, ENDPOINT, True, True),
        (PENDING, ENDPOINT, False, False),
        (FAILED, ENDPOINT, False, False),
        (READY, {}, False, False),
        (READY, ENDPOINT | {"pod": None}, True, False),
        (READY, ENDPOINT | {"endpoint": ""}, False, True),
        (READY, ENDPOINT | {"ca_bundle": ""}, False, False),  # never without TLS
        (READY, ENDPOINT | {"ca_bundle": "?"}, False, False),
    ],
)
def test_who_can_be_called(phase: Phase, status: dict[str, Any], direct: bool, forward: bool) -> None:
    found = cr("a", phase=phase, **status)
    assert can_be_called(found, through_pod=False) is direct
    assert can_be_called(found, through_pod=True) is forward


NAME = names.coordinator_of(JobRef("ml", "a", "u1", 3))
WRITTEN = ENDPOINT | {"server_name": f"{NAME}.elsewhere.svc", "pod": PodPlace("elsewhere", NAME, 7443)}


@pytest.mark.parametrize(
    "status",
    [
        {},  # namespaces of coordinators are each installation's own
        {"pod": None},
        {"endpoint": ""},
        {"endpoint": "10.0.0.9:30000"},
        {"endpoint": "[fd00::9]:7443"},
    ],
)
def test_a_status_as_the_operator_writes_it_is_believed(status: dict[str, Any]) -> None:
    assert forged(cr("a", attempt=3, **WRITTEN | status)) is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"pod": PodPlace("elsewhere", "../../../secrets/x", 7443)}, r"the pod's name is '../../../secrets/x'"),
        ({"pod": PodPlace("elsewhere", "c-1", 7443)}, f"'c-1', and not {NAME}"),
        ({"pod": PodPlace("elsewhere", NAME[:-1] + "2", 7443)}, "the pod's name"),  # another attempt's
        ({"pod": PodPlace("a/pods/b", NAME, 7443)}, "the pod's namespace is 'a/pods/b'"),
        ({"pod": PodPlace("", NAME, 7443)}, "namespace"),
        ({"pod": PodPlace("elsewhere", NAME, 0)}, "port is 0"),
        ({"server_name": "mallory.example"}, "serverName is 'mallory.example'"),
        ({"server_name": NAME}, "serverName"),
        ({"server_name": f"{NAME}.svc/x"}, "serverName"),
        ({"server_name": ""}, "serverName"),
        ({"endpoint": "unix:/run/other.sock"}, "endpoint is 'unix:/run/other.sock'"),
        ({"endpoint": "10.0.0.9"}, "endpoint"),
        ({"endpoint": "10.0.0.9:70000"}, "endpoint"),
    ],
)
def test_a_status_that_sends_callers_elsewhere_is_refused_and_says_what_of_it(
    status: dict[str, Any], said: str
) -> None:
    refused = forged(cr("a", attempt=3, **WRITTEN | status))
    assert refused is not None
    assert re.search(rf"CaptureCoordinator ml/c-u1-3 .*{said}.* Nobody was called", str(refused))
    assert not isinstance(refused, Unreachable)  # waiting does not mend it


def test_the_kind_takes_no_status_that_sends_callers_elsewhere() -> None:
    properties = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    status = properties["status"]["properties"]
    pod = status["pod"]["properties"]
    for schema, takes, refuses in (
        (pod["namespace"], "sameshot-coordinators", "a/pods/b"),
        (pod["name"], NAME, "../../../secrets/x"),
        (status["serverName"], WRITTEN["server_name"], "mallory.example"),
        (status["serverName"], "", "c-1"),
        (status["endpoint"], f"{NAME}.sameshot-coordinators.svc:7443", "unix:/run/other.sock"),
        (status["endpoint"], "[fd00::9]:7443", "10.0.0.9"),
        (status["endpoint"], "", "/"),
    ):
        assert re.search(schema["pattern"], takes)
        assert len(takes) <= schema["maxLength"]
        assert not re.search(schema["pattern"], refuses)
    longest = names.coordinator_of(JobRef("ml", "a", "f" * 36, names.MAX_ATTEMPT))
    assert re.search(pod["name"]["pattern"], longest)


IMAGE = Condition("PodReady", "False", "ImagePullBackOff", "no such image")
FINE = Condition("CertificateReady", "True", "Issued", "")


@pytest.mark.parametrize(
    ("found", "armed", "kind", "comes", "said"),
    [
        (cr("a", phase=FINISHED), Armed.UNKNOWN, JobEnded, False, "Job ml/a has ended"),
        (cr("a", deleted=True), Armed.UNKNOWN, JobEnded, False, "has ended"),
        (cr("a", phase=SUPERSEDED), Armed.UNKNOWN, OtherAttempt, False, "a later one runs"),
        (
            cr("a", phase=PENDING, conditions=(FINE, IMAGE)),
            Armed.UNKNOWN, Unreachable, True, r"Pending\): PodReady is False \(ImagePullBackOff\) no such image",
        ),
        (cr("a", phase=PENDING), Armed.UNKNOWN, Unreachable, True, "describe capturecoordinator c-u1-0"),
        (cr("a", phase=FAILED, conditions=(IMAGE,)), Armed.UNKNOWN, Unreachable, False, "can't be made .*such image"),
        (None, Armed.YES, Unreachable, True, "the operator does not run"),
        (None, Armed.NO, NoSuchJob, False, "sameshot arm.*sameshot status -n ml"),
        (None, Armed.UNKNOWN, NoSuchJob, True, "may not be listed"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_said_in_words(
    found: CaptureCoordinator | None, armed: Armed, kind: type[SameshotError], comes: bool, said: str
) -> None:
    error = why_not(found, parse("kube:ml/a"), armed)
    assert type(error) is kind
    with pytest.raises(kind, match=said):
        raise error
    assert may_come(error, found, armed, parse("kube:ml/a")) is comes
    if found is None:
        assert not may_come(error, found, armed, parse("kube:ml/a?attempt=0"))  # that was there, and is gone
    if found is not None and FINE in found.status.conditions:
        assert "CertificateReady" not in str(error)  # what is well is no reason


def test_a_phase_of_a_newer_operator_is_one_that_does_not_serve_and_hides_no_job() -> None:
    text = msgspec.json.encode(cr("a", **ENDPOINT)).replace(b'"Ready"', b'"Migrating"')
    found = msgspec.json.decode(text, type=CaptureCoordinator)
    assert found.status.phase is PENDING
    assert choose([found], parse("kube:ml/a")) == found
    assert not can_be_called(found, through_pod=False)


def test_a_list_has_each_job_once_the_newest_first() -> None:
    listed = newest_of_each(
        [cr("a", "u1", 0, SUPERSEDED, made=1), cr("b", "u2", made=3), cr("a", "u1", 1, made=5), cr("c", "u3", made=4)]
    )
    assert [(each.spec.job.name, each.spec.job.attempt) for each in listed] == [("a", 1), ("c", 0), ("b", 0)]
