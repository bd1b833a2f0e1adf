"""Which pods of this node are served, whose they are, and what happens while the API server is away."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from kube_api import KubeApiServer, a_pod, an_object
from tls import Authority

from sameshot.agent import poddirs, silent
from sameshot.agent.discovery import WorkerDir
from sameshot.agent.poddirs import PodDirs
from sameshot.arm import labels
from sameshot.errors import UsageError
from sameshot.kube import api as kubeapi
from sameshot.kube import follow, owners, podlist
from sameshot.kube.api import ApiError, Change, KubeApi
from sameshot.kube.inpod import way
from sameshot.kube.owners import UNREAD_FOR_S, Owners, Whose
from sameshot.kube.pods import Pod, PodObject, pod_of
from sameshot.model import JobRef

PATIENCE_S = 30.0


def understood(thing: dict[str, Any]) -> Pod | None:
    return pod_of(msgspec.convert(thing, PodObject))


class Node:
    """A kubelet's root with the directories of pods, and the spool beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spool = root / "spool"
        self.spool.mkdir()

    def volume(self, pod: dict[str, Any]) -> Path:
        parts = ("pods", pod["metadata"]["uid"], "volumes", "kubernetes.io~empty-dir", "sameshot")
        return self.root.joinpath(*parts)

    def make(self, pod: dict[str, Any]) -> Path:
        volume = self.volume(pod)
        volume.mkdir(parents=True)
        return volume

    def remove(self, pod: dict[str, Any]) -> None:
        shutil.rmtree(self.root / "pods" / pod["metadata"]["uid"])

    def dirs(self, api: KubeApiServer, **more: Any) -> PodDirs:
        return PodDirs(
            KubeApi(api.url, part="test", watch_s=2), node="node-a", root=self.root, spool=self.spool, **more
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def api() -> Iterator[KubeApiServer]:
    with KubeApiServer() as server:
        yield server


@contextlib.asynccontextmanager
async def started(dirs: PodDirs) -> AsyncIterator[PodDirs]:
    await dirs.start()
    try:
        yield dirs
    finally:
        await dirs.close()


async def until(look: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < ends, f"not within {PATIENCE_S:.0f} s: {what}"
        await asyncio.sleep(0.02)


def names(dirs: PodDirs) -> set[str | None]:
    return {where.pod for where in dirs.current()}


def one(dirs: PodDirs) -> WorkerDir:
    [where] = dirs.current()
    return where


# --- what is read from a pod


def test_an_armed_pod_says_whose_it_is_and_what_it_may_store() -> None:
    job = an_object("Job", "bert", api_version="batch/v1")
    thing = a_pod(
        "bert-0-x7", node="node-a", owner=job, local_world_size=8, limits={"ephemeral-storage": "10Gi", "cpu": "4"}
    )
    pod = understood(thing)
    assert pod is not None
    assert pod.owner is not None
    assert (pod.namespace, pod.name, pod.uid, pod.node) == ("ml", "bert-0-x7", thing["metadata"]["uid"], "node-a")
    assert (pod.owner.kind, pod.owner.name, pod.owner.uid) == ("Job", "bert", job["metadata"]["uid"])
    assert (pod.container, pod.local_world_size, pod.attempt, pod.ended) == ("trainer", 8, 0, False)
    assert (pod.limit_bytes, pod.volume_limit_bytes) == (10 * 2**30, None)
    assert pod.started_at_s == pytest.approx(time.time(), abs=30)


def test_the_limit_is_that_for_which_the_kubelet_evicts() -> None:
    def limit(containers: list[Any], inits: list[Any] | None = None) -> int | None:
        thing = a_pod("p", node="n")
        thing["spec"]["containers"] = [_container(each) for each in containers]
        thing["spec"]["initContainers"] = [_container(*each) for each in inits or ()]
        pod = understood(thing)
        assert pod is not None
        return pod.limit_bytes

    assert limit([None]) is None
    assert limit(["1G", None, "500M"]) == 1_500_000_000  # one without a limit adds nothing
    assert limit(["1G"], [("3G", None)]) == 3_000_000_000  # ended before, and counts where it is larger
    assert limit(["1G"], [("3G", "Always"), ("2G", None)]) == 4_000_000_000  # a sidecar goes on beside the others


def _container(limit: str | None, policy: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "c", "resources": {"limits": {"ephemeral-storage": limit}} if limit else {}}
    return found | ({"restartPolicy": policy} if policy else {})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda pod: pod["metadata"].update(annotations={}), "asked for, but not armed"),
        (lambda pod: pod["metadata"].update(annotations={labels.NOT_ARMED: "no command"}), "refused by the webhook"),
        (lambda pod: pod["spec"].update(volumes=[{"name": "data", "emptyDir": {}}]), "without the volume"),
        (lambda pod: pod["spec"].update(volumes=[{"name": "sameshot", "hostPath": {"path": "/"}}]), "a host path"),
        (lambda pod: pod["spec"]["volumes"][0].update(emptyDir={"medium": "Memory"}), "a directory in memory"),
    ],
)
def test_a_pod_that_is_not_armed_is_not_ours(change: Callable[[dict[str, Any]], None], what: str) -> None:
    pod = a_pod("p", node="node-a")
    assert understood(pod) is not None
    change(pod)
    assert understood(pod) is None, what


def test_a_uid_that_leads_elsewhere_is_no_uid() -> None:
    for uid in ("../../etc", "a/b", "", ".", "x" * 200):
        pod = a_pod("p", node="node-a")
        pod["metadata"]["uid"] = uid
        with pytest.raises(ValueError, match="pod uid"):
            understood(pod)


# --- which pods are served


def test_pods_come_and_go_with_the_list_and_with_their_directories(api: KubeApiServer, node: Node) -> None:
    first, second = a_pod("first", node="node-a"), a_pod("second", node="node-a")
    elsewhere, unarmed = a_pod("elsewhere", node="node-b"), a_pod("unarmed", node="node-a", armed=False)
    for pod in (first, elsewhere, unarmed):
        api.put(pod)
        node.make(pod)

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            assert names(dirs) == {"first"}
            where = one(dirs)
            assert (where.path, where.worker_path) == (node.volume(first), "/sameshot")
            assert (where.node, where.pod, where.pod_uid) == ("node-a", "first", first["metadata"]["uid"])
            assert where.owner_uid is None
            assert where.limit_bytes is None
            api.put(second)
            node.make(second)
            await until(lambda: names(dirs) == {"first", "second"}, "the second one appears")
            node.remove(first)
            await until(lambda: names(dirs) == {"second"}, "its directory is gone")
            api.delete(second)
            await until(lambda: names(dirs) == set(), "the server says that it is gone")
        assert {path for path, _, _ in api.requests} == {"/api/v1/pods"}

    asyncio.run(go())


def test_only_pods_of_this_node_are_asked_for_and_nothing_is_ever_written(api: KubeApiServer, node: Node) -> None:
    async def go() -> None:
        async with started(node.dirs(api)):
            await until(lambda: api.count(watch="true") > 1, "a second watch")

    asyncio.run(go())
    assert all(
        (query["fieldSelector"], query["labelSelector"]) == ("spec.nodeName=node-a", "sameshot.dev/arm=enabled")
        for _, query, _ in api.requests
    )
    assert not [path for path, _, _ in api.requests if " " in path]


def test_a_server_that_forgot_is_listed_again_without_a_complaint(
    api: KubeApiServer, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            lists = api.count(limit="250")
            api.forget_before()
            await until(lambda: api.count(limit="250") > lists, "another list")
            told = [query.get("resourceVersion") for _, query, _ in api.requests if "limit" in query]
            assert told == ["0", None]  # from the server's memory first, and after that was too old the newest there is
            pod = api.put(a_pod("late", node="node-a"))
            node.make(pod)
            await until(lambda: names(dirs) == {"late"}, "what came meanwhile")
        assert not caplog.records

    asyncio.run(go())


@pytest.mark.parametrize("status", [403, 410])
def test_a_server_that_lists_and_refuses_to_be_watched_is_asked_ever_more_rarely(
    api: KubeApiServer, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    class Unwatched(KubeApi):
        def watch(self, path: str, query: Mapping[str, str], version: str) -> Iterator[Change]:
            if refuses:
                raise ApiError(status, "not for you")
            return super().watch(path, query, version)

    refuses = [True]
    monkeypatch.setattr(follow, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(follow, "LONGEST_PAUSE_S", 0.4)

    def pauses() -> list[object]:
        return [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]

    async def go() -> None:
        dirs = PodDirs(Unwatched(api.url, part="test", watch_s=1), node="node-a", root=node.root, spool=node.spool)
        async with started(dirs):
            await until(lambda: len(pauses()) == 5, "it has failed five times")
            assert pauses() == [0.05, 0.1, 0.2, 0.4, 0.4]
            assert 5 <= api.count(limit="250") <= 7  # the first 410 is answered by a list at once, and not said
            refuses.clear()
            await until(lambda: api.count(watch="true") > 1, "it watches, and again")
            refuses.append(True)
            await until(lambda: len(pauses()) == 6, "refused again")
            assert pauses()[5] == 0.05

    asyncio.run(go())


def test_many_pods_come_page_by_page(node: Node) -> None:
    with KubeApiServer(page=2) as api:
        for number in range(5):
            node.make(api.put(a_pod(f"p{number}", node="node-a")))

        async def go() -> None:
            async with started(node.dirs(api)) as dirs:
                assert len(dirs.current()) == 5

        asyncio.run(go())


def test_while_the_server_is_away_the_last_list_holds_even_for_a_new_agent(
    api: KubeApiServer, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(poddirs, "FIRST_LIST_WITHIN_S", 0.3)
    job = api.put(an_object("Job", "bert", api_version="batch/v1"))
    pod = api.put(a_pod("kept", node="node-a", owner=job))
    node.make(pod)

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            before = one(dirs)
            api.go_away()
            await until(lambda: "the last list is kept" in caplog.text, "it is said")
            assert dirs.current() == (before,)
        async with started(node.dirs(api)) as dirs:  # a restart during the outage
            assert dirs.current() == (before,)
            api.come_back()
            later = api.put(a_pod("later", node="node-a"))
            node.make(later)
            await until(lambda: names(dirs) == {"kept", "later"}, "the server is back")

    asyncio.run(go())


def test_a_few_pods_as_large_as_can_be_hide_no_other(
    api: KubeApiServer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server gives all at once what it has at hand; what is too much together comes in smaller pages."""
    monkeypatch.setattr(kubeapi, "MAX_ANSWER", 100_000)
    for number in range(40):
        thing = a_pod(f"p{number}", node="node-a")
        if number < 3:
            thing["metadata"]["annotations"]["noise"] = "\1" * 10_000  # 60 kB as JSON
        node.make(api.put(thing))

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            await until(lambda: names(dirs) == {f"p{number}" for number in range(40)}, "all are served")

    asyncio.run(go())
    assert [query["limit"] for _, query, _ in api.requests if "limit" in query][:4] == ["250", "250", "31", "3"]


def test_a_quantity_is_never_computed_for_hours() -> None:
    pod = understood(a_pod("p", node="n", limits={"ephemeral-storage": "1e999999999"}, empty_dir={"sizeLimit": "2e3"}))
    assert pod is not None
    assert (pod.limit_bytes, pod.volume_limit_bytes) == (None, 2000)


def test_a_number_that_no_record_holds_is_no_number_of_workers(api: KubeApiServer, node: Node) -> None:
    """What an agent knows must always fit on its disk."""
    for number in (10**30, 2**63, -1, 0):
        thing = a_pod(f"of-{number}", node="node-a", limits={"ephemeral-storage": "9E30"})
        thing["metadata"]["annotations"][labels.ARMED] = f'{{"v":1,"container":"x","local_world_size":{number}}}'
        pod = understood(thing)
        assert pod is not None
        assert pod.local_world_size is None
        node.make(api.put(thing))

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            assert len(dirs.current()) == 4
            assert (node.spool / "pods.json").exists()
            assert [where.limit_bytes for where in dirs.current()] == [2**62] * 4  # half of the most

    asyncio.run(go())


def test_a_look_that_fails_for_a_moment_takes_no_pod_away(
    api: KubeApiServer, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pods = {name: api.put(a_pod(name, node="node-a")) for name in ("first", "second")}
    for pod in pods.values():
        node.make(pod)
    looked_at, fails = poddirs.podfs.problem_with, set[Path]()

    def look(volume: Path, spool: Path) -> str | None:
        if volume in fails:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return looked_at(volume, spool)

    monkeypatch.setattr(poddirs.podfs, "problem_with", look)

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            assert names(dirs) == {"first", "second"}
            fails.add(node.volume(pods["first"]))
            node.remove(pods["second"])
            dirs.look()
            assert names(dirs) == {"first"}  # what is not there is not there
            assert caplog.text.count("Too many open files") == 1
            fails.clear()
            node.remove(pods["first"])
            dirs.look()
            assert names(dirs) == set()

    asyncio.run(go())


def test_a_spool_that_is_removed_takes_no_pod_away_and_is_told(
    api: KubeApiServer, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    pods = {name: api.put(a_pod(name, node="node-a")) for name in ("first", "second")}
    for pod in pods.values():
        node.make(pod)

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            before = dirs.current()
            assert names(dirs) == {"first", "second"}
            shutil.rmtree(node.spool)
            for _ in range(2):
                dirs.look()
            assert dirs.current() == before
            assert caplog.text.count(f"the agent's spool {node.spool} was removed") == 2  # once for each pod
            node.remove(pods["second"])
            dirs.look()
            assert names(dirs) == {"first"}

    asyncio.run(go())


# --- whose they are


def test_a_pod_belongs_to_the_topmost_owner_that_can_be_read(api: KubeApiServer, node: Node) -> None:
    jobset = api.put(an_object("JobSet", "llama", api_version="jobset.x-k8s.io/v1alpha2"))
    job = api.put(an_object("Job", "llama-workers-0", api_version="batch/v1", owner=jobset))
    cron = an_object("CronJob", "nightly", api_version="batch/v1")
    nightly = api.put(an_object("Job", "nightly-2901", api_version="batch/v1", owner=cron))
    deployment = an_object("Deployment", "web", api_version="apps/v1")
    replicas = api.put(an_object("ReplicaSet", "web-5d9", api_version="apps/v1", owner=deployment))
    torchjob = an_object("PyTorchJob", "gpt", api_version="kubeflow.org/v1")
    owners = {"of-jobset": job, "of-cron": nightly, "of-deployment": replicas, "of-torchjob": torchjob, "alone": None}
    pods = {
        name: api.put(
            a_pod(
                name,
                node="node-a",
                owner=owner,
                more_labels={"jobset.sigs.k8s.io/restart-attempt": "3"} if owner is job else {},
            )
        )
        for name, owner in owners.items()
    }
    for pod in pods.values():
        node.make(pod)

    async def go() -> dict[str | None, JobRef | None]:
        async with started(node.dirs(api)) as dirs:
            await until(lambda: len(dirs.current()) == len(pods), "all jobs are known")
            return {where.pod: where.job for where in dirs.current()}

    assert asyncio.run(go()) == {
        "of-jobset": ref(jobset, 3),
        "of-cron": ref(nightly),
        "of-deployment": ref(deployment),
        "of-torchjob": ref(torchjob),
        "alone": ref(pods["alone"]),
    }


ODD_OWNERS = [
    "jöb",
    "../../../../../api/v1/secrets?x=",
    "a/../b",
    "x%2F..%2Fy",
    "",
    ".",
    "..",
    "a b\r\nX: 1",
    "n" * 100_000,
]


@pytest.mark.parametrize("of_version", [False, True])
def test_an_owner_of_any_name_hides_no_other_pod_and_leads_nowhere(
    api: KubeApiServer, node: Node, of_version: bool
) -> None:
    """A pod's maker may write any name there. It never becomes a path of its own."""
    for number, name in enumerate(ODD_OWNERS):
        odd = an_object("Job", "job" if of_version else name, api_version=f"batch/{name if of_version else 'v1'}")
        node.make(api.put(a_pod(f"odd-{number}", node="node-a", owner=odd)))
    job = api.put(an_object("Job", "bert", api_version="batch/v1"))
    node.make(api.put(a_pod("train-0", node="node-a", owner=job)))
    everybody = {f"odd-{number}" for number in range(len(ODD_OWNERS))} | {"train-0"}

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            await until(lambda: names(dirs) == everybody, "all pods are served")
            jobs = {where.pod: where.job for where in dirs.current()}
            assert jobs["train-0"] == JobRef("ml", "bert", job["metadata"]["uid"])
            if not of_version:
                assert {job.name for job in jobs.values() if job is not None} == {*ODD_OWNERS, "bert"}

    asyncio.run(go())
    asked = [path for path, _, _ in api.requests if path != "/api/v1/pods"]
    assert f"/apis/batch/v1/namespaces/ml/jobs/{quote('jöb') if not of_version else 'bert'}" in asked
    assert all(path.startswith("/apis/batch/") and len(path.split("/")) == 8 for path in asked), asked


def test_a_pod_with_an_annotation_that_can_not_be_read_hides_no_other(api: KubeApiServer, node: Node) -> None:
    """Not in the list, and not as a change."""
    node.make(api.put(nested := a_pod("nested", node="node-a")))
    nested["metadata"]["annotations"][labels.ARMED] = '{"v":1,"volumes":' + "[" * 100_000
    api.put(nested)
    node.make(api.put(a_pod("train-0", node="node-a")))

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            await until(lambda: names(dirs) == {"nested", "train-0"}, "both are served")
            later = a_pod("later", node="node-a")
            later["metadata"]["annotations"][labels.ARMED] = '{"v":1,"options":' + '{"a":' * 20_000 + "1" + "}" * 20_001
            node.make(api.put(later))
            node.make(api.put(a_pod("train-1", node="node-a")))
            await until(lambda: names(dirs) == {"nested", "train-0", "later", "train-1"}, "all are served")
            assert api.count(watch="true") == 1  # it never had to begin anew

    asyncio.run(go())


def test_a_pod_that_nobody_foresaw_hides_no_other(
    api: KubeApiServer, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with one pod, in reading it or in telling its job, stays with it."""
    foreseen, job_of = podlist.pod_of, Owners.job_of

    def reads(found: PodObject) -> Pod | None:
        if found.metadata.name == "unread":
            raise RuntimeError("a pod like that")
        return foreseen(found)

    def tells(owners: Owners, pod: Pod) -> Whose:
        if pod.name == "jobless":
            raise RuntimeError("an owner like that")
        return job_of(owners, pod)

    monkeypatch.setattr(podlist, "pod_of", reads)
    monkeypatch.setattr(Owners, "job_of", tells)
    for name in ("unread", "jobless", "train-0"):
        node.make(api.put(a_pod(name, node="node-a")))

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            await until(lambda: "train-0" in names(dirs), "the sound one is served")
            assert "unread" not in names(dirs)
            assert "RuntimeError: a pod like that" in caplog.text
            assert "RuntimeError: an owner like that" in caplog.text

    asyncio.run(go())


def a_job_of_a_jobset(api: KubeApiServer) -> tuple[dict[str, Any], dict[str, Any]]:
    jobset = api.put(an_object("JobSet", "llama", api_version="jobset.x-k8s.io/v1alpha2"))
    return jobset, api.put(an_object("Job", "llama-0", api_version="batch/v1", owner=jobset))


def ref(thing: dict[str, Any], attempt: int = 0) -> JobRef:
    meta = thing["metadata"]
    return JobRef(meta["namespace"], meta["name"], meta["uid"], attempt)


@pytest.mark.parametrize("forbidden", ["jobs", "jobsets"])
def test_an_owner_that_may_not_be_read_ends_the_climb_until_it_may(
    api: KubeApiServer, node: Node, monkeypatch: pytest.MonkeyPatch, forbidden: str
) -> None:
    monkeypatch.setattr(owners, "UNREAD_FOR_S", 0.2)
    monkeypatch.setattr(podlist, "ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(poddirs, "LOOK_S", 0.05)
    jobset, job = a_job_of_a_jobset(api)
    if forbidden == "jobsets":
        api.put(jobset | {"metadata": jobset["metadata"] | {"ownerReferences": []}})
    node.make(api.put(a_pod("p", node="node-a", owner=job)))
    api.forbidden.add(forbidden)

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            readable = {"jobs": job, "jobsets": jobset}[forbidden]
            assert one(dirs).job == ref(readable)
            await until(lambda: len([1 for path, _, _ in api.requests if f"/{forbidden}/" in path]) > 2, "asked again")
            assert one(dirs).job == ref(readable)
            api.forbidden.clear()
            await until(lambda: one(dirs).job == ref(jobset), "the job is known")
            await until(lambda: dirs._pods.armed()[0].final, "for good")

    asyncio.run(go())


def test_an_owner_that_was_unread_is_asked_for_every_half_minute_whatever_number_of_pods_it_has(
    api: KubeApiServer,
) -> None:
    jobset, job = a_job_of_a_jobset(api)
    pods = [understood(a_pod(f"p{number}", node="node-a", owner=job)) for number in range(3)]
    now = 1000.0
    known = Owners(KubeApi(api.url, part="test"), clock=lambda: now)

    def asked() -> tuple[set[Whose], int]:
        before = len(api.requests)
        return {known.job_of(pod) for pod in pods if pod is not None}, len(api.requests) - before

    api.forbidden.add("jobs")
    assert asked() == ({Whose(ref(job), final=False)}, 1)
    now += UNREAD_FOR_S - 1
    assert asked() == ({Whose(ref(job), final=False)}, 0)
    now += 2
    assert asked() == ({Whose(ref(job), final=False)}, 1)
    api.forbidden.clear()
    now += UNREAD_FOR_S + 1
    assert asked() == ({Whose(ref(jobset), final=True)}, 2)
    now += 10 * UNREAD_FOR_S
    assert asked() == ({Whose(ref(jobset), final=True)}, 0)


def test_a_job_that_is_not_final_is_not_taken_from_disk_by_the_next_agent(
    api: KubeApiServer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poddirs, "FIRST_LIST_WITHIN_S", 0.3)
    jobset, job = a_job_of_a_jobset(api)
    node.make(api.put(a_pod("unsure", node="node-a", owner=job)))
    alone = api.put(a_pod("sure", node="node-a"))
    node.make(alone)
    api.forbidden.add("jobs")

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            await until(lambda: {where.job for where in dirs.current()} == {ref(job), ref(alone)}, "both are served")
            api.go_away()
        async with started(node.dirs(api)) as dirs:
            assert [where.job for where in dirs.current()] == [ref(alone)]
            api.forbidden.clear()
            api.come_back()
            await until(lambda: {where.job for where in dirs.current()} == {ref(jobset), ref(alone)}, "known anew")

    asyncio.run(go())


def test_an_owner_that_was_forged_changes_nothing_for_its_victim(api: KubeApiServer) -> None:
    """The uid of another namespace's Job, under a name of one's own, and under that Job's own name."""
    jobset, job = a_job_of_a_jobset(api)
    mine = api.put(an_object("Job", "mine", api_version="batch/v1", namespace="theirs"))
    stolen = [
        {**job, "metadata": job["metadata"] | {"name": name, "namespace": "theirs"}} for name in ("mine", "llama-0")
    ]
    known = Owners(KubeApi(api.url, part="test"))
    for number, owner in enumerate([*stolen, {**job, "kind": "CronJob"}, {**job, "apiVersion": "batch/v2"}]):
        namespace = "theirs" if number < 2 else "ml"
        forged = understood(a_pod("forged", node="node-a", namespace=namespace, owner=owner))
        assert forged is not None
        assert known.job_of(forged).job.namespace == namespace
    victim = understood(a_pod("victim", node="node-a", owner=job))
    assert victim is not None
    assert known.job_of(victim) == Whose(ref(jobset), final=True)
    honest = understood(a_pod("honest", node="node-a", namespace="theirs", owner=mine))
    assert honest is not None
    assert known.job_of(honest) == Whose(ref(mine), final=True)


# --- what can't be served, and who never came


def test_a_directory_on_another_file_system_than_the_spool_is_refused_in_words(
    api: KubeApiServer, node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(node.root).st_dev:
        pytest.skip("no second file system: /dev/shm can't be written, or is the same one")
    node.make(api.put(a_pod("p", node="node-a")))
    elsewhere = Path("/dev/shm") / f"sameshot-{os.getpid()}"
    elsewhere.mkdir()
    try:

        async def go() -> None:
            dirs = PodDirs(KubeApi(api.url, part="test"), node="node-a", root=node.root, spool=elsewhere)
            async with started(dirs):
                assert dirs.current() == ()

        asyncio.run(go())
    finally:
        shutil.rmtree(elsewhere)
    assert "pod ml/p can't be captured: it is on another file system than the spool" in caplog.text


def test_a_volume_that_is_a_link_is_not_followed(api: KubeApiServer, node: Node) -> None:
    pod = api.put(a_pod("p", node="node-a"))
    volume = node.make(pod)
    volume.rmdir()
    (node.root / "elsewhere").mkdir()
    volume.symlink_to(node.root / "elsewhere")

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            assert dirs.current() == ()

    asyncio.run(go())


def test_half_of_a_pods_own_limit_is_for_traces_less_what_lies_there(api: KubeApiServer, node: Node) -> None:
    pod = api.put(a_pod("p", node="node-a", limits={"ephemeral-storage": "100M"}, empty_dir={"sizeLimit": "70M"}))
    volume = node.make(pod)
    (volume / "captures").mkdir()
    (volume / "captures" / "old").write_bytes(b"x" * 8_000_000)
    (volume / "way-out").symlink_to("/")

    async def go() -> int | None:
        async with started(node.dirs(api)) as dirs:
            return one(dirs).limit_bytes

    assert asyncio.run(go()) == pytest.approx(42_000_000, abs=100_000)


def test_a_pod_in_which_nobody_registers_is_reported_once_with_the_likely_causes(
    api: KubeApiServer, node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poddirs, "LOOK_S", 0.02)
    long_ago = time.time() - silent.REPORT_AFTER_S - 60
    pods = {
        name: api.put(a_pod(name, node="node-a", started_at=began, local_world_size=2))
        for name, began in (("mute", long_ago), ("halfway", long_ago), ("fine", long_ago), ("young", time.time()))
    }
    volumes = {name: node.make(pod) for name, pod in pods.items()}
    (volumes["halfway"] / "kineto.conf").write_text("ENABLE_IPC_FABRIC=true\n")
    (volumes["fine"] / "workers").mkdir()
    (volumes["fine"] / "workers" / "0f.json").write_text("{}")

    async def go() -> None:
        async with started(node.dirs(api)) as dirs:
            await until(lambda: len(dirs._silent) == 2, "two are reported")
            mute, halfway = (dirs._silent[pods[name]["metadata"]["uid"]] for name in ("mute", "halfway"))
            assert "Pod ml/mute is armed and its container trainer has been running for" in mute
            assert "none of its 2 workers ever registered" in mute
            for cause in ("torch was not imported", "ConfigMap", "PYTHONPATH", "-S, -I or -E", "launcher"):
                assert cause in mute
            assert "begins with 'sameshot:'" in halfway
            uid = pods["mute"]["metadata"]["uid"]
            assert dirs.unregistered(JobRef("ml", "mute", uid)) == [mute]  # its coordinator is told, and no other
            assert dirs.unregistered(JobRef("ml", "fine", pods["fine"]["metadata"]["uid"])) == []
            pods["mute"]["status"]["phase"] = "Failed"
            api.put(pods["mute"])
            await until(
                lambda: not dirs.unregistered(JobRef("ml", "mute", uid)), "nobody is missed in a pod that ended"
            )
            pods["mute"]["status"]["phase"] = "Running"
            api.put(pods["mute"])
            await until(lambda: dirs.unregistered(JobRef("ml", "mute", uid)) == [mute], "it runs again")
            (volumes["mute"] / "workers").mkdir()
            (volumes["mute"] / "workers" / "0a.json").write_text("{}")
            await until(lambda: len(dirs._silent) == 1, "it came after all")

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert caplog.text.count("ever registered") == 2


# --- the client of the API


def test_the_token_is_read_anew_for_every_request(api: KubeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    client = KubeApi(api.url, part="test", token_file=token)
    for text in ("first", "second"):
        token.write_text(f"{text}\n")
        list(client.list("/api/v1/pods", {}))
    assert [asked for _, _, asked in api.requests] == ["first", "second"]


def test_in_a_pod_it_trusts_the_clusters_ca_and_nobody_else(tmp_path: Path, node: Node) -> None:
    ours, another = Authority(), Authority()
    ours.issue(tmp_path, "127.0.0.1")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("secret")
    with KubeApiServer(tls=served) as api:
        api.put(a_pod("p", node="node-a"))
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
        (account / "ca.crt").write_bytes(another.pem)
        with pytest.raises(ssl.SSLCertVerificationError):
            list(way(environment=environment, account=account).api("agent").list("/api/v1/pods", {}))
        assert not api.requests  # nor has it seen the token
        (account / "ca.crt").write_bytes(ours.pem)
        client = way(environment=environment, account=account).api("agent")
        assert [len(page.items) for page in client.list("/api/v1/pods", {})] == [1]
        [(_, _, token)] = api.requests
        assert token == "secret"
        node.make(api.put(a_pod("q", node="node-a")))

        async def go() -> None:
            dirs = PodDirs(client, node="node-a", root=node.root, spool=node.spool)
            async with started(dirs):
                await until(lambda: api.count(watch="true"), "it watches")
                api.put(a_pod("r", node="node-a"))
                await until(lambda: len(dirs._pods.armed()) == 3, "changes come, encrypted")

        began = time.monotonic()
        asyncio.run(go())
        assert time.monotonic() - began < 20  # a watch that is under way is ended, not waited for


def test_what_the_server_refuses_is_an_error_with_its_words(api: KubeApiServer) -> None:
    with pytest.raises(ApiError, match=r"answered 404.*not found") as caught:
        KubeApi(api.url, part="test").get("/apis/batch/v1/namespaces/ml/jobs/nobody")
    assert caught.value.status == 404


def test_a_token_never_travels_without_encryption() -> None:
    with pytest.raises(UsageError, match="https only"):
        KubeApi("http://10.0.0.1:6443", part="test")
    with pytest.raises(UsageError, match="not in a pod"):
        way(environment={}, account=Path("/nowhere"))
