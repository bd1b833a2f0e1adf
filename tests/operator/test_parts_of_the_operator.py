"""Small parts by themselves: policies, the queue, what was seen, ports, series, and when a job of a kind has ended."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sameshot.arm.ended import ENDINGS
from sameshot.kube import names
from sameshot.kube.api import ApiError, Listed
from sameshot.kube.coordinators import CaptureCoordinator, Spec
from sameshot.kube.coordinators import Job as JobPart
from sameshot.kube.inpod import Way
from sameshot.kube.pods import Owner
from sameshot.model import CapturePolicy, JobRef
from sameshot.operator import coordinatorpod, objects, run
from sameshot.operator.armed import ArmedPods
from sameshot.operator.config import OperatorConfig
from sameshot.operator.decide import End
from sameshot.operator.following import Following
from sameshot.operator.jobs import look, series_of
from sameshot.operator.known import Known
from sameshot.operator.policies import effective
from sameshot.operator.queue import Queue
from sameshot.operator.seen import Seen
from sameshot.operator.sources import Source
from sameshot.operator.worlds import Worlds

Json = dict[str, Any]


def policy(name: str = "default", **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": spec}


# ---- policies


@pytest.mark.parametrize(
    ("cluster", "namespaced", "holds"),
    [
        ([], [], CapturePolicy()),
        ([policy(maxDurationMs=30_000)], [], CapturePolicy(max_duration_ms=30_000)),
        ([], [policy("a", maxDurationMs=30_000)], CapturePolicy()),
        (
            [policy(maxDurationMs=30_000, minIntervalMs=10)],
            [policy("a", maxDurationMs=20_000, minIntervalMs=5), policy("b", maxDurationMs=25_000, minIntervalMs=60)],
            CapturePolicy(max_duration_ms=20_000, min_interval_ms=60),
        ),
        ([policy("other", maxDurationMs=1)], [], CapturePolicy()),
        ([], [policy("a", maxDurationMs=500)], CapturePolicy(max_duration_ms=500, max_duration_with_stack_ms=500)),
        ([policy(maxCapturesAtOnce=2)], [policy("a", maxCapturesAtOnce=9)], CapturePolicy(max_captures_at_once=2)),
    ],
    ids=[
        "none", "the cluster's is the default", "a namespace can't widen it", "the tightest of all", "only default",
        "with stacks never longer than without", "field by field",
    ],
)  # fmt: skip
def test_of_all_policies_the_tightest_value_holds(
    cluster: list[Json], namespaced: list[Json], holds: CapturePolicy
) -> None:
    assert effective(cluster, namespaced).policy == holds
    assert effective(cluster, namespaced).problems == ()


@pytest.mark.parametrize(
    "spec",
    [
        {"maxDurationMs": 0}, {"maxDurationMs": "long"}, {"maxDurationMs": True}, {"minIntervalMs": -1},
        {"maxCapturesAtOnce": 1.5}, {"maxWindow": 1}, {"maxDurationMs": 2**70},
    ],
    ids=["zero", "a text", "a bool", "negative", "a fraction", "an unknown field", "too large"],
)  # fmt: skip
def test_a_mistake_in_a_policy_counts_for_nothing_and_is_told(spec: Json) -> None:
    found = effective([], [policy("odd", **spec), policy("good", minIntervalMs=7)])
    assert found.policy == CapturePolicy(min_interval_ms=7)
    assert len(found.problems) == 1
    assert "CapturePolicy odd" in found.problems[0]


def test_a_policy_without_a_spec_is_told() -> None:
    assert len(effective([{"metadata": {"name": "default"}}], [{"metadata": {"name": "x"}, "spec": []}]).problems) == 2


# ---- when a job has ended


def conditions(*true: str, **more: str) -> Json:
    found = [{"type": each, "status": "True"} for each in true]
    return {"conditions": [*found, *({"type": kind, "status": value} for kind, value in more.items())]}


@pytest.mark.parametrize(
    ("kind", "status", "ended"),
    [
        ("batch/v1 Job", conditions("Complete"), True),
        ("batch/v1 Job", conditions("Failed"), True),
        ("batch/v1 Job", conditions("FailureTarget"), False),
        ("batch/v1 Job", conditions("Suspended", Complete="False"), False),
        ("batch/v1 Job", {}, False),
        ("jobset.x-k8s.io/v1alpha2 JobSet", {"terminalState": "Completed"}, True),
        ("jobset.x-k8s.io/v1alpha2 JobSet", {"terminalState": "Failed"}, True),
        ("jobset.x-k8s.io/v1alpha2 JobSet", conditions("Completed"), True),
        ("jobset.x-k8s.io/v1alpha2 JobSet", {"restarts": 3, **conditions("Suspended")}, False),
        ("kubeflow.org/v1 PyTorchJob", conditions("Succeeded"), True),
        ("kubeflow.org/v1 PyTorchJob", conditions("Failed"), True),
        ("kubeflow.org/v1 PyTorchJob", conditions("Restarting", Failed="False"), False),
        ("kubeflow.org/v1 PyTorchJob", conditions("Created", "Running"), False),
        ("batch.volcano.sh/v1alpha1 Job", {"state": {"phase": "Completed"}}, True),
        ("batch.volcano.sh/v1alpha1 Job", {"state": {"phase": "Terminated"}}, True),
        ("batch.volcano.sh/v1alpha1 Job", {"state": {"phase": "Failed"}}, True),
        ("batch.volcano.sh/v1alpha1 Job", {"state": {"phase": "Restarting"}}, False),
        ("batch.volcano.sh/v1alpha1 Job", {"state": {"phase": "Aborted"}}, False),
        ("trainer.kubeflow.org/v1alpha1 TrainJob", conditions("Complete"), True),
        ("trainer.kubeflow.org/v1alpha1 TrainJob", conditions("Suspended"), False),
        ("v1 Pod", {"phase": "Succeeded"}, True),
        ("v1 Pod", {"phase": "Failed"}, True),
        ("v1 Pod", {"phase": "Unknown"}, False),
        ("apps/v1 StatefulSet", {"replicas": 0}, False),
        ("apps/v1 Deployment", conditions("Available"), False),
        ("example.com/v1 Training", conditions("Complete"), None),
        ("batch/v1 Job", {"conditions": "odd"}, False),
        ("jobset.x-k8s.io/v1alpha2 JobSet", "odd", False),
    ],
    ids=str,
)
def test_a_job_has_ended_when_its_own_project_says_so(kind: str, status: Any, ended: bool | None) -> None:
    api_version, name = kind.split()
    ending = ENDINGS.get((api_version.rpartition("/")[0], name))
    assert (None if ending is None else ending.ended({"status": status})) is ended


class Answers:
    """An API with one object."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self.asked: list[str] = []

    def get(self, path: str, query: Any = None) -> bytes:
        import msgspec

        self.asked.append(path)
        if isinstance(self.thing, Exception):
            raise self.thing
        return msgspec.json.encode(self.thing)


def test_a_job_is_read_at_the_place_of_its_kind_and_only_believed_with_its_uid() -> None:
    thing = {"metadata": {"name": "a", "uid": "u"}, "status": {"terminalState": "Completed"}}
    top = Owner("jobset.x-k8s.io/v1alpha2", "JobSet", "a", "u")
    api = Answers(thing)
    assert look(api, JobRef("ml", "a", "u", 0), top).end is End.ENDED  # type: ignore[arg-type]
    assert api.asked == ["/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/a"]
    assert look(api, JobRef("ml", "a", "other", 0), top).end is End.GONE  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["../../secrets/x", "a%2fb", "", ".."], ids=["up", "escaped", "empty", "dots"])
def test_nothing_is_asked_for_under_a_name_that_none_can_have(name: str) -> None:
    api = Answers({})
    assert look(api, JobRef("ml", name, "u", 0), Owner("batch/v1", "Job", name, "u")).end is End.GONE  # type: ignore[arg-type]
    assert api.asked == []


def test_kinds_that_never_tell_are_known_as_such() -> None:
    assert {kind for (_, kind), each in ENDINGS.items() if not each.tells} == {"StatefulSet", "Deployment"}


@pytest.mark.parametrize(
    ("metadata", "series"),
    [
        ({"name": "llama-7b"}, "llama-7b"),
        ({"name": "llama-x7k2p", "generateName": "llama-"}, "llama"),
        ({"name": "llama-x7k2p", "generateName": "bert-"}, "llama-x7k2p"),
        (
            {"name": "a-2891", "ownerReferences": [{"kind": "CronJob", "name": "llama", "controller": True}]},
            "llama",
        ),
        ({"name": "llama-2891", "ownerReferences": [{"kind": "CronJob", "name": "llama"}]}, "llama-2891"),
        ({"name": "a", "annotations": {"sameshot.dev/series": "nightly"}, "generateName": "a"}, "nightly"),
    ],
    ids=["its name", "generated", "not of that", "of a CronJob", "not controlled by it", "said"],
)
def test_a_series_is_what_makes_runs_of_a_job_comparable(metadata: Json, series: str) -> None:
    assert series_of({"metadata": metadata}) == series


# ---- the queue


async def _until(holds: Any) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


def test_a_key_is_worked_on_by_one_at_a_time_and_once_more_when_it_came_again_meanwhile() -> None:
    async def play() -> None:
        begun, going, free = [], set(), asyncio.Event()

        async def work(key: str) -> float:
            assert key not in going
            going.add(key)
            begun.append(key)
            await free.wait()
            going.discard(key)
            return math.inf

        queue: Queue[str] = Queue(work, at_once=4, first_s=0.01, longest_s=0.1)
        running = asyncio.create_task(queue.run())
        for key in "aab":
            queue.add(key)
        await _until(lambda: begun == ["a", "b"])
        for key in "aaa":
            queue.add(key)
        free.set()
        await _until(lambda: queue.quiet)
        assert begun == ["a", "b", "a"]
        running.cancel()

    asyncio.run(play())


def test_a_key_that_failed_rests_whatever_touches_it_and_its_pauses_grow() -> None:
    async def play() -> None:
        at: list[float] = []
        loop = asyncio.get_running_loop()

        async def work(key: str) -> float:
            at.append(loop.time())
            if len(at) < 5:
                raise OSError("no")
            return math.inf

        queue: Queue[str] = Queue(work, at_once=1, first_s=0.02, longest_s=0.08)
        running = asyncio.create_task(queue.run())
        queue.add("a")
        async with asyncio.timeout(5):
            while len(at) < 5 or not queue.quiet:
                queue.add("a") if len(at) < 5 else None
                await asyncio.sleep(0.001)
        pauses = [later - sooner for sooner, later in itertools.pairwise(at)]
        assert [pause >= least for pause, least in zip(pauses, (0.016, 0.032, 0.064, 0.064), strict=True)] == [True] * 4
        assert queue.failures == 4
        assert queue.resting == 0
        running.cancel()

    asyncio.run(play())


def test_a_key_is_worked_on_again_when_it_said_so_and_sooner_when_it_is_added() -> None:
    async def play() -> None:
        count = 0
        now = 1000.0

        async def work(key: str) -> float:
            nonlocal count
            count += 1
            return now + (0.02 if count == 1 else 3600)

        queue: Queue[str] = Queue(work, at_once=1, first_s=1, longest_s=1, clock=lambda: now)
        running = asyncio.create_task(queue.run())
        queue.add("a")
        await _until(lambda: count == 2)
        queue.add("a")
        await _until(lambda: count == 3)
        running.cancel()

    asyncio.run(play())


# ---- what was seen


def thing(name: str, version: int, uid: str = "u", **more: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "ml", "uid": uid, "resourceVersion": str(version)}, **more}


def names_of(seen: Seen) -> list[tuple[str, str]]:
    return sorted((one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in seen.all(Source.SERVICES))


def test_an_older_version_never_replaces_a_younger_one_and_another_object_does() -> None:
    told: list[Any] = []
    seen = Seen(lambda *change: told.append(change))
    seen.put(Source.SERVICES, thing("a", 9))
    seen.put(Source.SERVICES, thing("a", 8))
    seen.put(Source.SERVICES, thing("a", 9))
    assert names_of(seen) == [("a", "9")]
    assert len(told) == 1
    seen.put(Source.SERVICES, thing("a", 7, uid="other"))
    assert names_of(seen) == [("a", "7")]
    seen.drop(Source.SERVICES, ("ml", "a"), "u")
    assert names_of(seen) == [("a", "7")], "the one before was deleted, not this one"


def test_a_list_takes_away_what_is_not_in_it_but_nothing_that_was_seen_since_it_began() -> None:
    seen = Seen(lambda *_: None)
    for name in "abc":
        seen.put(Source.SERVICES, thing(name, 1))
    mark = seen.begin()
    seen.put(Source.SERVICES, thing("new", 5))
    seen.drop(Source.SERVICES, ("ml", "b"))
    seen.listed(Source.SERVICES, [thing("b", 1), thing("c", 1), thing("d", 2)], mark)
    assert names_of(seen) == [("c", "1"), ("d", "2"), ("new", "5")]
    seen.listed(Source.SERVICES, None, seen.begin())
    assert len(names_of(seen)) == 3, "a list that failed tells nothing"


def test_what_is_gone_does_not_come_back_in_a_late_answer_and_comes_back_when_it_is_there_again() -> None:
    seen = Seen(lambda *_: None)
    seen.put(Source.SERVICES, thing("a", 4, uid="a"))
    seen.drop(Source.SERVICES, ("ml", "a"), "a", "6")
    seen.put(Source.SERVICES, thing("a", 5, uid="a"))
    assert names_of(seen) == [], "an answer to what was written before its end"
    seen.put(Source.SERVICES, thing("a", 7, uid="a"))
    assert names_of(seen) == [("a", "7")], "it had only lost its labels"
    seen.listed(Source.SERVICES, [], seen.begin(), "9")
    seen.put(Source.SERVICES, thing("a", 8, uid="a"))
    assert names_of(seen) == [], "a list of version 9 has none"
    seen.put(Source.SERVICES, thing("a", 5, uid="another"))
    assert names_of(seen) == [("a", "5")]


class NothingThere:
    """An API server that has no objects, and ends each watch with what it did not keep."""

    def list(self, path: str, query: Any) -> Iterator[Listed]:
        yield Listed((), "1")

    def watch(self, path: str, query: Any, version: str) -> Iterator[Any]:
        raise ApiError(410, "too old")

    def close(self) -> None:
        pass


def test_a_list_made_anew_is_told_and_has_all_looked_at_even_if_nothing_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "RELIST_S", 0.0)
    config, told = OperatorConfig(archive="s3://a", image="i"), queue.SimpleQueue[Any]()
    operator = run.Operator(config, Way("http://127.0.0.1:1", None, None))
    following = Following(config, NothingThere(), lambda *each: told.put(each))  # type: ignore[arg-type]
    following.start()
    try:
        while not operator._sweep_soon.is_set():
            source, kind, found = told.get(timeout=10)
            assert (kind, found) == (None, None)
            operator._take(source, kind, found)
    finally:
        following.close()


# ---- ports


@pytest.mark.parametrize("host_network", [False, True], ids=["its own network", "its node's"])
@pytest.mark.parametrize("port", [8443, 9442], ids=["first", "last"])
def test_a_coordinator_is_probed_where_it_says_how_its_loop_is_and_meets_nobody(host_network: bool, port: int) -> None:
    config = OperatorConfig(archive="s3://a", image="i", host_network=host_network, coordinator_metrics="0.0.0.0:9464")
    at = port if host_network else names.COORDINATOR_PORT
    attempt = objects.Attempt(JobRef("ml", "a", "u", 0), "a", CapturePolicy(), b"", at)
    container = coordinatorpod.pod(attempt, config)["spec"]["containers"][0]
    probed = 2000 + port if host_network else 7445
    assert objects.cluster_config(attempt, config).probe == f"0.0.0.0:{probed}"
    paths = {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    for kind, path in paths.items():
        assert container[f"{kind}Probe"]["httpGet"] == {"port": probed, "path": path, "scheme": "HTTP"}
    taken = {each["name"]: each["containerPort"] for each in container["ports"]}
    own = {"grpc": at, "probe": probed}
    assert taken == (own if host_network else {**own, "metrics": 9464})
    assert [each.get("hostPort") for each in container["ports"]] == ([at, probed] if host_network else [None] * 3)
    of_others = {*range(8443, 9443), names.AGENT_PORT, 9464, 9465, 9466, *range(10_248, 10_260), *range(30_000, 32_768)}
    assert probed not in of_others


class Looked(Seen):
    """Knows of what everything was looked at."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.whole: list[Source] = []

    def all(self, source: Source) -> Iterator[Json]:
        self.whole.append(source)
        return super().all(source)


def test_what_is_made_for_a_job_costs_no_look_at_all_services_and_policies() -> None:
    config, seen = OperatorConfig(archive="s3://a", image="i", host_network=True), Looked()
    armed = ArmedPods(None, None, lambda _: None, again_s=1)  # type: ignore[arg-type]
    known = Known(config, seen, armed, lambda *_: None)
    worlds = Worlds(config, seen, armed, known, lambda: 0.0)
    worlds.authority = SimpleNamespace(bundle=b"")  # type: ignore[assignment]
    job = JobRef("ml", "llama", "u-1", 0)
    spec = Spec(JobPart("batch/v1", "Job", job.name, job.uid, job.attempt), "llama")
    made = {"metadata": {"name": names.coordinator_of(job), "namespace": "ml"}, "spec": msgspec.to_builtins(spec)}
    read = msgspec.convert(made, CaptureCoordinator)
    for namespace, longest in (("ml", 5_000), ("other", 3_000)):
        tight = {"metadata": {"name": "tight", "namespace": namespace}, "spec": {"maxDurationMs": longest}}
        seen.put(Source.POLICIES, tight)
    first = worlds.wants(read, renewed=False)
    seen.put(Source.SERVICES, first[objects.Kind.SERVICE])
    seen.whole.clear()
    assert worlds.wants(read, renewed=False) == first
    assert not {Source.SERVICES, Source.POLICIES} & set(seen.whole)
    assert json.loads(first[objects.Kind.CONFIG]["data"]["policy.json"])["max_duration_ms"] == 5_000


def test_ports_on_the_nodes_network_are_stable_and_no_two_are_the_same() -> None:
    config = OperatorConfig(archive="s3://a", host_network=True, ports=8)
    taken: set[int] = set()
    for i in range(8):
        job = JobRef("ml", "a", f"u{i}", 0)
        port = objects.port_of(job, config, None, taken)
        assert port == objects.port_of(job, config, None, taken)
        taken.add(port)
        service = {"spec": {"ports": [{"name": "grpc", "targetPort": port}]}}
        assert objects.port_of(job, config, service, taken) == port, "what its Service says stays"
    assert len(taken) == 8
    assert objects.port_of(JobRef("ml", "a", "one-more", 0), config, None, taken) in taken
    assert objects.port_of(job, OperatorConfig(archive="x"), None, taken) == names.COORDINATOR_PORT
