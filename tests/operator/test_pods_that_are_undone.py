"""Pods of coordinators that nodes reject, that admission changes, that lose their node: what is done and said."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from operator_lab import OPERATOR, QUICK, Lab, played

from sameshot.errors import UsageError
from sameshot.kube import names
from sameshot.model import CapturePolicy, JobRef
from sameshot.operator import coordinatorpod, objects
from sameshot.operator.armed import ArmedPods
from sameshot.operator.authority import Pair
from sameshot.operator.childpods import facts_of
from sameshot.operator.conditions import stamp
from sameshot.operator.config import OperatorConfig, Toleration
from sameshot.operator.known import Known
from sameshot.operator.mending import mark, to_mend
from sameshot.operator.notes import JobNotes
from sameshot.operator.objects import Kind
from sameshot.operator.seen import Seen
from sameshot.operator.sources import Source
from sameshot.operator.worlds import Worlds

Json = dict[str, Any]
JOB = JobRef("ml", "llama", "b2d7", 0)
MADE = coordinatorpod.pod(
    objects.Attempt(JOB, "llama", CapturePolicy(), b""), OperatorConfig(archive="s3://a", image="x:1")
)
SIDECAR: Json = {"name": "mesh", "image": "mesh", "ports": [{"name": "grpc", "containerPort": 15001}]}
RUNS: Json = {"name": "coordinator", "restartCount": 2, "state": {"running": {}}}


def pod(status: Json, metadata: Json | None = None, **spec: Any) -> Json:
    named = {**MADE["metadata"], "uid": "u1", **(metadata or {})}
    return {"metadata": named, "spec": {**MADE["spec"], "nodeName": "node-a", **spec}, "status": status}


def conditions(**given: str) -> list[Json]:
    return [{"type": key, "status": value} for key, value in given.items()]


def admitted(made: Json) -> Json:
    """A mirror with a digest in place of the tag, and a container of a mesh before ours."""
    own = {**made["spec"]["containers"][0], "image": "mirror.local/x@sha256:" + "0" * 64}
    return {**made, "spec": {**made["spec"], "containers": [SIDECAR, own]}}


# ---- what is read off a pod


def test_what_admission_made_of_a_pod_is_no_other_pod() -> None:
    assert coordinatorpod.is_current(admitted(MADE), MADE)
    config = OperatorConfig(archive="s3://a", image="x:2")
    later = coordinatorpod.pod(objects.Attempt(JOB, "llama", CapturePolicy(), b""), config)
    assert not coordinatorpod.is_current(admitted(MADE), later)


def test_the_coordinators_own_container_counts_whatever_stands_beside_it() -> None:
    mesh = {"name": "mesh", "restartCount": 9, "state": {"running": {}}}
    found = facts_of({**admitted(pod({})), "status": {"phase": "Running", "containerStatuses": [mesh, RUNS]}})
    assert (found.life, found.port, found.runs) == ("u1/2", names.COORDINATOR_PORT, True)
    waits = {"name": "coordinator", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    assert not facts_of(pod({"containerStatuses": [mesh, waits]})).runs
    config = OperatorConfig(archive="s3://a", host_network=True)
    service = {"spec": {"ports": [{"name": "more", "targetPort": 8000}, {"name": "grpc", "targetPort": 80}]}}
    assert objects.port_of(JOB, config, service, ()) == objects.port_of(JOB, config, None, ())
    inside = names.COORDINATOR_PORT + 1000 + 3
    service["spec"]["ports"][1]["targetPort"] = inside
    assert objects.port_of(JOB, config, service, ()) == inside


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            pod({"phase": "Failed", "reason": "OutOfcpu", "message": "needs 50m"}),
            "Its node node-a rejects its pod (OutOfcpu: needs 50m).",
        ),
        (
            pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory",
                 "containerStatuses": [{"name": "coordinator", "state": {"terminated": {"exitCode": 137}}}]}),
            "Its pod has ended (Evicted: low on memory).",
        ),
        (pod({"phase": "Running", "containerStatuses": [RUNS]}), "Its container runs, and does not answer yet."),
        (
            pod({"containerStatuses": [{"name": "mesh", "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            "A container beside it, mesh, waits: ErrImagePull",
        ),
        (pod({"phase": "Pending"}), "Its pod starts."),
    ],
    ids=["rejected", "evicted", "no answer yet", "another's image", "pending"],
)  # fmt: skip
def test_why_it_does_not_serve_is_said_as_it_is(found: Json, words: str) -> None:
    assert facts_of(found).note == words


def test_a_silent_node_is_told_from_a_coordinator_that_is_not_ready() -> None:
    running = {"phase": "Running", "containerStatuses": [RUNS]}
    silent = facts_of(pod({**running, "conditions": conditions(Ready="False", ContainersReady="True")}))
    assert silent.cut_off
    assert "node node-a tells nothing" in silent.note
    assert f"--force --grace-period=0 -n {names.COORDINATORS_NAMESPACE} {names.coordinator_of(JOB)}" in silent.note
    both = conditions(Ready="False", ContainersReady="False")
    assert not facts_of(pod({**running, "conditions": both})).cut_off
    gates = [{"conditionType": "lb.example.com/ready"}]
    waiting = pod({**running, "conditions": conditions(Ready="False", ContainersReady="True")}, readinessGates=gates)
    assert not facts_of(waiting).cut_off, "it waits for what somebody put there at admission"


def test_when_a_deleted_pod_is_to_be_gone_is_read_and_what_holds_it_is_named() -> None:
    deleted = {"deletionTimestamp": "2026-03-01T12:00:30Z", "finalizers": ["example.com/hold"]}
    found = facts_of(pod({"phase": "Running", "containerStatuses": [RUNS]}, deleted))
    assert (found.deleting, found.grace_s) == (True, 150.0)
    assert "example.com/hold" in found.note
    sooner = facts_of(pod({}, {**deleted, "deletionGracePeriodSeconds": 30}))
    assert (sooner.deleting, sooner.grace_s) == (True, 30.0)
    assert not facts_of(pod({})).deleting


def test_a_lost_node_is_told_by_our_own_clock_whatever_the_api_servers_says() -> None:
    """It is seven minutes behind ours: a pod that was deleted just now seems to have been late for ever."""
    now, config = 1772366400.0, OperatorConfig(archive="s3://a")
    seen = Seen(lambda *_: None)
    armed = ArmedPods(None, None, lambda _: None, again_s=1.0)  # type: ignore[arg-type]
    worlds = Worlds(config, seen, armed, Known(config, seen, armed, lambda *_: None), lambda: now)
    deleted = {"deletionTimestamp": stamp(now - 420 + 30), "deletionGracePeriodSeconds": 30, "uid": "u1"}
    seen.put(Source.PODS, pod({"phase": "Running", "containerStatuses": [RUNS]}, deleted))
    notes = JobNotes()
    for _ in range(2):
        world = worlds.world(JOB, notes)
        assert world.pod is not None
        assert world.pod.gone_by == 1772366400.0 + 30, "since it was first seen"
        now += 5


def test_coordinators_are_scraped_where_they_serve_metrics() -> None:
    def marks(**more: Any) -> Json:
        config = OperatorConfig(archive="s3://a", image="x", **more)
        made = coordinatorpod.pod(objects.Attempt(JOB, "llama", CapturePolicy(), b""), config)
        return {key: value for key, value in made["metadata"]["annotations"].items() if "prometheus" in key}

    assert marks(coordinator_metrics="0.0.0.0:9464") == {
        "prometheus.io/scrape": "true", "prometheus.io/port": "9464", "prometheus.io/path": "/metrics",
    }  # fmt: skip
    assert marks() == {}
    assert marks(coordinator_metrics="0.0.0.0:9464", host_network=True) == {}, "their ports would meet"


def test_coordinators_may_be_kept_to_chosen_nodes() -> None:
    given = [Toleration.parse(each) for each in ("dedicated=infra:NoSchedule", "spot", "gpu:NoExecute")]
    config = OperatorConfig(archive="s3://a", image="x:1", node_selector=(("pool", "infra"),), tolerations=tuple(given))
    made = coordinatorpod.pod(objects.Attempt(JOB, "llama", CapturePolicy(), b""), config)
    assert made["spec"]["nodeSelector"] == {"pool": "infra"}
    assert made["spec"]["tolerations"] == [
        {"key": "dedicated", "value": "infra", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert not coordinatorpod.is_current(MADE, made)
    assert {"nodeSelector", "tolerations"}.isdisjoint(MADE["spec"])


@pytest.mark.parametrize("text", ["", "=x", ":NoExecute", "a:Never"], ids=["empty", "no key", "effect only", "effect"])
def test_a_toleration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="key"):
        Toleration.parse(text)


@pytest.mark.parametrize("kind", [Kind.SECRET, Kind.CONFIG], ids=["secret", "configmap"])
def test_what_somebody_made_immutable_is_made_anew_as_it_can_not_be_mended(kind: Kind) -> None:
    want: Json = {"kind": kind.value, "metadata": {"labels": {}}, "data": {"a": "1"}, "type": "kubernetes.io/tls"}
    assert to_mend(kind, want, want) is None
    assert to_mend(kind, want, {**want, "immutable": True}) == {}
    assert to_mend(kind, want, {**want, "immutable": False, "data": {"a": "2"}}) not in (None, {})


def test_what_is_wanted_otherwise_counts_for_nothing_changed_back() -> None:
    def config(**policy: int) -> Json:
        attempt = objects.Attempt(JOB, "llama", CapturePolicy(**policy), b"")
        return objects.config_map(attempt, OperatorConfig(archive="s3://a"))

    assert mark(Kind.CONFIG, config()) == mark(Kind.CONFIG, config())
    assert mark(Kind.CONFIG, config()) != mark(Kind.CONFIG, config(max_duration_ms=2000))
    secret = objects.secret(JOB, OperatorConfig(archive="s3://a"), Pair(b"1", b"2"))
    assert mark(Kind.SECRET, secret) == mark(Kind.SECRET, {**secret, "data": {}})


# ---- the operator


def made_and_deleted(lab: Lab) -> tuple[int, int]:
    calls = [each for each in lab.asked() if each.resource == "pods" and each.namespace == names.COORDINATORS_NAMESPACE]
    return sum(each.verb == "create" for each in calls), sum(each.verb == "delete" for each in calls)


@contextlib.asynccontextmanager
async def happening(lab: Lab, job: JobRef, what: Any) -> Any:
    """Each pod that is made is dealt with at once."""

    async def deal() -> None:
        dealt: set[str] = set()
        while True:
            found = lab.own("pods", job)
            if found is not None and (uid := found["metadata"]["uid"]) not in dealt:
                dealt.add(uid)
                what(found)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(deal())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@played()
async def test_a_node_that_rejects_each_pod_is_not_asked_in_a_loop_and_the_status_says_it(lab: Lab) -> None:
    job = lab.job("llama")
    lab.starts = False

    def reject(found: Json) -> None:
        status = {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}
        lab.api.set_status("pods", names.COORDINATORS_NAMESPACE, lab.name(job), status)

    async with happening(lab, job, reject):
        await lab.operate()
        await lab.until(lambda: made_and_deleted(lab)[0] == 3)
        await asyncio.sleep(1.0)
        assert made_and_deleted(lab)[0] <= 5, "after 0.2, 0.4, 0.8, 1.0 s"
        await lab.until(lambda: "times in a row" in lab.condition(job, "Ready").get("message", ""))
        message = lab.condition(job, "Ready")["message"]
        assert "rejects its pod (OutOfcpu: Node didn't have enough resource: cpu)" in message
    lab.api.delete("pods", names.COORDINATORS_NAMESPACE, lab.name(job), gracePeriodSeconds=0)
    lab.starts = True
    await lab.until(lambda: lab.phase(job) == "Ready")


@played()
async def test_an_image_that_admission_rewrites_is_left_as_it_is(lab: Lab) -> None:
    job = lab.job("llama")

    def rewrite(found: Json) -> None:
        (own,) = found["spec"]["containers"]
        changed = {"spec": {"containers": [{**own, "image": "mirror.local/sameshot@sha256:" + "0" * 64}]}}
        lab.api.change("pods", names.COORDINATORS_NAMESPACE, lab.name(job), changed)

    async with happening(lab, job, rewrite):
        await lab.operate()
        await lab.until(lambda: lab.phase(job) == "Ready")
        await lab.quiet(0.4)
        assert made_and_deleted(lab) == (1, 0)
        assert lab.of(job).retired == []


@played()
async def test_who_takes_our_mark_off_each_pod_is_named_and_the_coordinator_serves_on(lab: Lab) -> None:
    job = lab.job("llama")

    def strip(found: Json) -> None:
        patch = {"metadata": {"annotations": {coordinatorpod.TEMPLATE: "other"}}}
        lab.api.change("pods", names.COORDINATORS_NAMESPACE, lab.name(job), patch)

    slow = msgspec.structs.replace(QUICK, remake_longest_s=30.0)
    async with happening(lab, job, strip):
        await lab.operate(timings=slow)
        await lab.until(lambda: lab.condition(job, "Reconciled").get("reason") == "Disputed")
        assert coordinatorpod.TEMPLATE in lab.condition(job, "Reconciled")["message"]
        assert lab.phase(job) == "Ready"
        assert made_and_deleted(lab)[0] <= 6


@played()
async def test_a_pod_whose_node_is_lost_is_made_anew_and_the_status_says_so(lab: Lab) -> None:
    job = lab.job("llama")
    await lab.operate(timings=msgspec.structs.replace(QUICK, lost_s=1.0))
    await lab.until(lambda: lab.phase(job) == "Ready")
    where, name = names.COORDINATORS_NAMESPACE, lab.name(job)
    first = (lab.own("pods", job) or {})["metadata"]["uid"]
    lab.kubelet, lab.api.store.graceful_pods = False, True
    lab.api.change("pods", where, name, {"spec": {"nodeName": "node-b"}})
    silent = {"conditions": conditions(Ready="False", ContainersReady="True")}
    lab.api.set_status("pods", where, name, silent)
    await lab.until(lambda: lab.condition(job, "Reachable").get("status") == "False")
    assert "kubectl delete pod --force" in lab.condition(job, "Reachable")["message"]

    lab.api.delete("pods", where, name, gracePeriodSeconds=1)  # as the cluster does after some minutes
    await lab.until(lambda: "node node-b is lost" in lab.condition(job, "Ready").get("message", ""))
    assert (lab.own("pods", job) or {})["metadata"]["uid"] == first
    await lab.until(lambda: (lab.own("pods", job) or {"metadata": {"uid": first}})["metadata"]["uid"] != first)
    (forced,) = [each for each in lab.api.writes(user=OPERATOR) if each.verb == "delete"]
    assert (forced.resource, forced.name) == ("pods", name)
    await lab.until(lambda: "node node-b seems to be lost" in lab.condition(job, "Ready").get("message", ""))
    lab.kubelet = True
    await lab.until(lambda: lab.phase(job) == "Ready")
