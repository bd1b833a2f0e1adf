"""Reads what `rules` judges. Whatever the caller may not read is named and left out: a person with rights in one
namespace still learns what is wrong there."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

import sameshot
from sameshot.arm import labels
from sameshot.arm.hookmap import HOOK_DIGEST, digest_of, hook_digest
from sameshot.client.cluster.access import Api
from sameshot.errors import Denied, NoSuchJob, Unreachable
from sameshot.kube import coordinators, names
from sameshot.kube.api import TROUBLES, ApiError
from sameshot.kube.coordinators import CaptureCoordinator
from sameshot.kube.owners import Owners
from sameshot.kube.pods import Pod, PodObject, Status, pod_of, why_of
from sameshot.model import JobRef
from sameshot.operator.policies import CLUSTER_POLICY, effective
from sameshot.steps.health.seen import (
    Hook,
    Seen,
    SeenAgent,
    SeenCoordinator,
    SeenNamespace,
    SeenOperator,
    SeenPod,
    Unread,
)

T = TypeVar("T")


def look(
    api: Api,
    namespace: str | None,
    *,
    job: str | None = None,
    agents_namespace: str = names.AGENTS_NAMESPACE,
    system_namespace: str = names.SYSTEM_NAMESPACE,
) -> Seen:
    """`namespace` None: all of them; `job`: only pods and coordinators of jobs of that name.

    Raises Denied where pods of the namespace may not be listed, NoSuchJob where there is no such namespace, Unreachable
    where the server does not answer.
    """
    try:
        return _Look(api).look(namespace, job, agents_namespace, system_namespace)
    except ApiError as error:
        if error.status in (401, 403):
            raise _denied("pods", namespace, error, "view") from None
        raise Unreachable(f"The API server does not answer as it should: {error}.") from None
    except TROUBLES as error:
        raise Unreachable(f"The API server does not answer: {error}.") from None


def look_at_jobs(api: Api, namespace: str | None, wanted: Mapping[str, str] = {}) -> Seen:
    """Only what lists of jobs need: CaptureCoordinators of jobs with all of these labels. Raises as `look` does, and
    NoSuchJob where the cluster does not know such objects."""
    try:
        found, installed = _Look(api).coordinators(namespace)
    except ApiError as error:
        if error.status in (401, 403):
            raise _denied("CaptureCoordinators", namespace, error, "sameshot-viewer") from None
        raise Unreachable(f"The API server does not answer as it should: {error}.") from None
    except TROUBLES as error:
        raise Unreachable(f"The API server does not answer: {error}.") from None
    if not installed:
        raise NoSuchJob("This cluster does not know CaptureCoordinators: sameshot is not installed in it.")
    matching = [each for each in found if dict(wanted).items() <= each.object.spec.labels.items()]
    return Seen(namespace=namespace, coordinators=tuple(matching))


class _Look:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._unread: list[Unread] = []

        self._now = datetime.datetime.now(datetime.UTC)

    def look(self, namespace: str | None, job: str | None, agents_namespace: str, system_namespace: str) -> Seen:
        nothing: tuple[list[SeenCoordinator], bool] = ([], True)
        found, installed = self._allowed("CaptureCoordinators", partial(self.coordinators, namespace), nothing)
        pods = list(self._pods(namespace, kept={each.object.job for each in found}))
        if job is not None:
            pods = [pod for pod in pods if pod.job is not None and pod.job.name == job]
            found = [each for each in found if each.object.spec.job.name == job]
        where = {each.namespace for each in pods} | {each.object.metadata.namespace for each in found}
        if namespace is not None:
            where.add(namespace)
        return Seen(
            namespace=namespace,
            installed=installed,
            pods=tuple(pods),
            coordinators=tuple(found),
            namespaces=tuple(self._namespaces(sorted(where), hooks={each.namespace for each in pods}, asked=namespace)),
            agents=self._agents(agents_namespace),
            operators=self._operators(system_namespace),
            unread=tuple(self._unread),
            version=sameshot.__version__,
            system_namespace=system_namespace,
            agents_namespace=agents_namespace,
        )

    def _pods(self, namespace: str | None, kept: set[JobRef]) -> Iterator[SeenPod]:
        """`kept`: jobs that have a coordinator."""
        owners = Owners(self._api)
        for raw in self._list(names.pods_path(namespace), {"labelSelector": names.ARMED_SELECTOR}):
            try:
                whole, found = msgspec.json.decode(raw, type=PodObject), msgspec.json.decode(raw, type=_Pod)
                pod = pod_of(whole)
            except (msgspec.MsgspecError, ValueError):
                continue  # no API server gives such a pod
            job = None if pod is None else self._job_of(owners, pod, kept)
            meta = found.metadata
            yield SeenPod(
                namespace=meta.namespace,
                name=meta.name,
                age_s=self._age(meta.creation_timestamp),
                node=found.spec.node_name or "",
                phase=found.status.phase,
                ended=meta.deletion_timestamp is not None or found.status.phase in names.POD_OVER,
                armed=pod is not None,
                not_armed=(meta.annotations or {}).get(labels.NOT_ARMED, ""),
                job=job,
                local_world_size=None if pod is None else pod.local_world_size,
                why=why_of(whole.status),
            )

    def _job_of(self, owners: Owners, pod: Pod, kept: set[JobRef]) -> JobRef | None:
        """None: an owner on the way up may not be read, and what is below it is no job that is known."""
        whose = owners.job_of(pod)
        if whose.final or whose.job in kept:
            return whose.job
        unread = Unread(f"owners of pods in namespace {pod.namespace}", "they may not be read, or have gone")
        if unread not in self._unread:
            self._unread.append(unread)
        return None

    def coordinators(self, namespace: str | None) -> tuple[list[SeenCoordinator], bool]:
        """And whether the cluster knows such objects."""
        try:
            found = [
                msgspec.json.decode(raw, type=CaptureCoordinator) for raw in self._list(coordinators.path_of(namespace))
            ]
        except ApiError as error:
            if error.status != 404:
                raise
            return [], False
        return [SeenCoordinator(one, self._age(one.metadata.creation_timestamp)) for one in found], True

    def _namespaces(self, found: Iterable[str], hooks: set[str], asked: str | None) -> Iterator[SeenNamespace]:
        none: list[Any] = []
        known = len(self._unread)
        cluster = self._allowed("the cluster's policy", self._clusters_policy, None)
        if asked is not None:  # rights in a namespace never reach it: whoever asks about theirs misses none
            del self._unread[known:]
        for name in found:
            own = self._allowed(f"policies in namespace {name}", partial(self._plain, _policies(name)), none)
            policy = effective(cluster or none, own)
            labelled = self._allowed(f"namespace {name}", partial(self._labelled, name, name == asked), None)
            hook = self._allowed(f"ConfigMaps in namespace {name}", partial(self._hook, name), None)
            yield SeenNamespace(
                name=name,
                labelled=labelled,
                hook=hook if name in hooks or labelled else None,
                policy=policy.policy,
                cluster_policy=cluster is not None,
                policy_problems=policy.problems,
            )

    def _clusters_policy(self) -> list[Any]:
        """The one that counts, by its name: that much can be allowed by itself."""
        try:
            return [msgspec.json.decode(self._api.get(f"{_policies(None)}/{CLUSTER_POLICY}"))]
        except ApiError as error:
            if error.status == 404:
                return []
            raise

    def _hook(self, namespace: str) -> Hook:
        try:
            data = self._api.get(f"/api/v1/namespaces/{namespace}/configmaps/{labels.HOOK_CONFIGMAP}")
        except ApiError as error:
            if error.status == 404:
                return Hook.MISSING
            raise
        return hook_of(msgspec.json.decode(data))

    def _agents(self, namespace: str) -> tuple[SeenAgent, ...] | None:
        def read() -> tuple[SeenAgent, ...]:
            found = self._pods_of(namespace, names.AGENT_SELECTOR)
            return tuple(SeenAgent(each.metadata.name, each.spec.node_name or "", *_ready(each)) for each in found)

        return self._allowed(f"agents (pods in namespace {namespace})", read, None)

    def _operators(self, namespace: str) -> tuple[SeenOperator, ...] | None:
        def read() -> tuple[SeenOperator, ...]:
            found = self._pods_of(namespace, names.OPERATOR_SELECTOR)
            return tuple(SeenOperator(each.metadata.name, *_ready(each)) for each in found)

        return self._allowed(f"the operator (pods in namespace {namespace})", read, None)

    # --- how it is read ---------------------------------------------------------------------------------------

    def _allowed(self, what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except ApiError as error:
            if error.status not in (401, 403):
                raise
            self._unread.append(Unread(what, _short(error)))
            return otherwise

    def _list(self, path: str, query: Mapping[str, str] = {}) -> Iterator[msgspec.Raw]:
        for page in self._api.list(path, query):
            yield from page.items

    def _plain(self, path: str) -> list[Any]:
        try:
            return [msgspec.json.decode(raw) for raw in self._list(path)]
        except ApiError as error:
            if error.status == 404:
                return []
            raise

    def _labelled(self, namespace: str, asked: bool) -> bool | None:
        """None: it went meanwhile. `asked`: it is the one that is meant, so that is an error."""
        try:
            found = msgspec.json.decode(self._api.get(f"/api/v1/namespaces/{namespace}"), type=_Labelled)
        except ApiError as error:
            if error.status != 404:
                raise
            if asked:
                raise NoSuchJob(f"There is no namespace {namespace} in this cluster.") from None
            return None
        return (found.metadata.labels or {}).get(labels.ARM_LABEL) == labels.ENABLED

    def _pods_of(self, namespace: str, selector: str) -> list[_Pod]:
        pods = self._list(names.pods_path(namespace), {"labelSelector": selector})
        found = [msgspec.json.decode(raw, type=_Pod) for raw in pods]
        return [each for each in found if each.metadata.deletion_timestamp is None]

    def _age(self, stamp: str) -> float:
        try:
            return max((self._now - datetime.datetime.fromisoformat(stamp)).total_seconds(), 0.0)
        except (ValueError, TypeError):
            return 0.0


def _denied(what: str, namespace: str | None, error: ApiError, role: str) -> Denied:
    """`role`: a ClusterRole that is enough."""
    if error.status == 401:
        return Denied(f"The API server does not know who asks; log in again ({_short(error)}).")
    if namespace is None:
        return Denied(f"You may not list {what} of all namespaces; name one with -n ({_short(error)}).")
    less = f" Lists of jobs take less: `sameshot jobs -n {namespace}`." if role == "view" else ""
    return Denied(
        f"You may not list {what} in namespace {namespace} ({_short(error)}). The role {role} is enough: kubectl "
        f"create rolebinding <you>-{role} -n {namespace} --clusterrole={role} --user=<you>.{less}"
    )


def hook_of(thing: Mapping[str, Any]) -> Hook:
    """Which hook a ConfigMap of its name holds. Pure."""
    metadata, data = thing.get("metadata"), thing.get("data")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    said = annotations.get(HOOK_DIGEST) if isinstance(annotations, dict) else None
    if not isinstance(said, str):
        return Hook.FOREIGN
    if digest_of(data if isinstance(data, dict) else {}) != said:
        return Hook.EDITED
    return Hook.CURRENT if said == hook_digest() else Hook.OTHER_VERSION


def _policies(namespace: str | None) -> str:
    if namespace is None:
        return f"/apis/{names.API_VERSION}/{names.CLUSTER_POLICIES}"
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.POLICIES}"


def _ready(pod: _Pod) -> tuple[bool, str]:
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())
    return ready, "" if ready else why_of(pod.status)


def _short(error: ApiError) -> str:
    return f"{error.status}" if len(str(error)) > 200 else str(error)


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    annotations: dict[str, str] | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec
    status: Status = msgspec.field(default_factory=Status)


class _Labels(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Labels
