"""A cluster to try all of sameshot on: its parts' objects from deploy/, their accounts' tokens, armed jobs.

The parts themselves are processes beside the cluster, each with the token of its own account, so no image of ours is
needed. Pods of jobs stay Pending: they ask for a node that there is not. Without `KUBECONFIG` the cluster is the
emulated API server of tests/support: then nothing is proven of a real one, but that the parts and these tests hold
together.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from api_server import PHANTOM, ApiServer, Namespace, Refused
from cluster_api import ClusterApi
from kubernetes_objects import documents_in, kustomized

from sameshot.arm.kinds import arm_object
from sameshot.kube.api import KubeApi

Json = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
# Run as processes here, or not at all.
WORKLOADS = {"Deployment", "DaemonSet", "CronJob"}
FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role")
KUBECONFIG = "kubeconfig"
PATIENCE_S = 60.0
GONE_WITHIN_S = 180.0  # a namespace with all that is in it


@dataclass
class Cluster:
    """`emulated` None: a real one."""

    api: ApiServer
    folder: Path
    emulated: ClusterApi | None = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @contextlib.contextmanager
    def scope(self) -> Iterator[Cluster]:
        """What is created within goes at its end."""
        inner = Cluster(self.api, self.folder, self.emulated)
        with inner.stack:
            yield inner

    def real_only(self, why: str) -> None:
        """Skip here where the server is the emulated one."""
        if self.emulated is not None:
            pytest.skip(f"the emulated API server can't show this: {why}")

    def not_too_slow(self, why: str) -> None:
        """Skip here where the server is the emulated one, and nobody asked for what takes it long."""
        if self.emulated is not None and os.environ.get("SAMESHOT_TEST_EMULATED_API") != "1":
            pytest.skip(f"with an emulated API server only if SAMESHOT_TEST_EMULATED_API=1: {why}")

    @classmethod
    @contextlib.contextmanager
    def emulating(cls, folder: Path) -> Iterator[Cluster]:
        """The emulated server; `kubeconfig` in that folder is its administrator's."""
        with ClusterApi(collects=True) as server:
            found = cls(ApiServer.of_kubeconfig(server.kubeconfig(folder / KUBECONFIG)), folder, server)
            with found.stack:
                yield found

    # ---- objects

    def create(self, thing: Json, **query: str) -> Json:
        """Strictly validated; it is removed at the end. Raises Refused."""
        path = self.api.path_of(thing, one=False)
        made = self.api.call("POST", path, thing, fieldValidation="Strict", **query).thing
        if query.get("dryRun") is None:
            self.stack.callback(self.remove, {**thing, "metadata": {**made["metadata"]}})
            if thing["kind"] == "Namespace":  # pods need it, and a controller makes it a little later, if one runs
                Namespace(self.api, made["metadata"]["name"]).ensure_account()
        return made

    def remove(self, thing: Json) -> None:
        """A pod at once, as nobody confirms the end of one whose node is none; a Job's pods with it: by itself the
        server would leave them, for the sake of old clients."""
        options = {"Pod": {"gracePeriodSeconds": 0}, "Job": {"propagationPolicy": "Background"}}.get(thing["kind"])
        body = None if options is None else {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        with contextlib.suppress(Refused):
            self.api.call("DELETE", self.api.path_of(thing), body)

    def get(self, path: str, **query: str) -> Json | None:
        """None: there is none."""
        try:
            return self.api.call("GET", path, **query).thing
        except Refused as error:
            if error.status != 404:
                raise
            return None

    def items(self, path: str, **query: str) -> list[Json]:
        return list(self.api.call("GET", path, **query).thing["items"])

    def until(self, holds: Callable[[], Any], why: str, within_s: float = PATIENCE_S) -> Any:
        """What `holds` gives once it is true."""
        ends = time.monotonic() + within_s
        while not (found := holds()):
            assert time.monotonic() < ends, f"not within {within_s:.0f} s: {why}"
            time.sleep(0.1)
        return found

    def namespace(self, prefix: str = "sameshot-test", **labels: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        return name

    def define(self, definition: Json) -> None:
        """A CRD, until it is served. One that is there already stays what it is, and stays."""
        try:
            self.create(definition)
        except Refused as error:
            if error.status != 409:
                raise
        group, names = definition["spec"]["group"], definition["spec"]["names"]
        for version in definition["spec"]["versions"]:
            served = f"/apis/{group}/{version['name']}/{names['plural']}"
            # With a limit: a server answers 429 to others until what it remembers of a new kind is filled.
            self.until(lambda path=served: self.get(path, limit="1") is not None, f"{served} is served")
            thing = {"apiVersion": f"{group}/{version['name']}", "kind": names["kind"]}
            self.until(lambda thing=thing: self.api.resource(thing), f"{served} is discovered")

    # ---- who asks

    def account(self, namespace: str, name: str) -> str:
        """Made where it is missing; how the API server names it."""
        with contextlib.suppress(Refused):
            self.create(
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
            )
        return f"system:serviceaccount:{namespace}:{name}"

    def token(self, namespace: str, account: str, *audiences: str) -> str:
        """By TokenRequest; without an audience it is for the API server itself."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"expirationSeconds": 3600, **({"audiences": list(audiences)} if audiences else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.api.call("POST", path, body).thing["status"]["token"])

    def token_file(self, namespace: str, account: str, *audiences: str) -> Path:
        path = self.folder / f"token-{uuid.uuid4().hex[:8]}"
        path.write_text(self.token(namespace, account, *audiences))
        return path

    def kube(self, namespace: str, account: str) -> KubeApi:
        """The product's own client, as that account."""
        return KubeApi(self.api.url, part="test", token_file=self.token_file(namespace, account), ca_file=self.ca_file)

    def as_pod(self, namespace: str, account: str) -> dict[str, str]:
        """What a process is told that has no more than a pod's account: where the API server is, and its token."""
        ca = {} if self.ca_file is None else {"SAMESHOT_API_CA_FILE": str(self.ca_file)}
        token = str(self.token_file(namespace, account))
        return {"SAMESHOT_API_SERVER": self.api.url, "SAMESHOT_API_TOKEN_FILE": token, **ca}

    def kubeconfig_of(self, namespace: str, account: str) -> Path:
        """Of somebody who is not the cluster's administrator: an account stands for a person."""
        ca = {} if self.ca_file is None else {"certificate-authority": str(self.ca_file)}
        cluster = {"name": "c", "cluster": {"server": self.api.url, **ca}}
        user = {"name": "u", "user": {"token": self.token(namespace, account)}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
        path = self.folder / f"kubeconfig-{uuid.uuid4().hex[:8]}"
        path.write_text(json.dumps({**config, "clusters": [cluster], "users": [user], "contexts": [context]}))
        return path

    @property
    def ca_file(self) -> Path | None:
        return None if self.api.ca_file is None else Path(self.api.ca_file)

    def may(self, user: str, verb: str, what: str, *, namespace: str = "", name: str = "") -> bool:
        """SubjectAccessReview. `what` is `pods`, `pods/log`, `jobs.batch` or `jobs/status.batch`."""
        resource, _, group = what.partition(".")
        resource, _, sub = resource.partition("/")
        groups = ["system:authenticated"]
        if user.startswith("system:serviceaccount:"):
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
        about = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
        spec = {
            "user": user,
            "groups": groups,
            "resourceAttributes": {**about, **({"subresource": sub} if sub else {})},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(
            self.api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body).thing["status"]["allowed"]
        )

    def bind(self, namespace: str, role: str, *users: str, kind: str = "ClusterRole") -> None:
        """A ClusterRole (or a Role there) to users or ServiceAccounts (`system:serviceaccount:…`) in one namespace."""
        group = "rbac.authorization.k8s.io"
        subjects: list[Json] = []
        for user in users:
            if user.startswith("system:serviceaccount:"):
                _, _, where, name = user.split(":")
                subjects.append({"kind": "ServiceAccount", "name": name, "namespace": where})
            else:
                subjects.append({"kind": "User", "apiGroup": group, "name": user})
        self.create(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"test-{uuid.uuid4().hex[:8]}", "namespace": namespace},
                "roleRef": {"apiGroup": group, "kind": kind, "name": role},
                "subjects": subjects,
            }
        )

    def until_captures(self, namespace: str, account: str = "sameshot", *, who: str = "") -> None:
        """A right is in force a moment after it was given. `who`: other than an account of that namespace."""
        who = who or f"system:serviceaccount:{namespace}:{account}"
        about = {"namespace": namespace, "name": "any"}
        self.until(lambda: self.may(who, "get", "captures.sameshot.dev", **about), f"{who} may look at captures")

    # ---- jobs

    def phantom_node(self) -> str:
        """Its name. It is only an object: no kubelet ever looks at it."""
        name = f"{PHANTOM}{uuid.uuid4().hex[:8]}"
        self.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        return name

    def armed_job(self, namespace: str, name: str, *, pods: int = 1) -> Json:
        """A batch Job whose pods are armed and have a node, and never start.

        The Job controller makes them, or we do where none runs; no scheduler is needed. Where no node is, one is made:
        pods of a node that there is not are collected.
        """
        node = next((each["metadata"]["name"] for each in self.api.nodes()), None) or self.phantom_node()
        job = arm_object(_job(namespace, name, pods, node)).thing
        made = self.create(job)
        if self.emulated is not None:
            for index in range(pods):
                self.create(_pod_of(made, index))
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.until(
            lambda: len(self.items(path, labelSelector=f"batch.kubernetes.io/job-name={name}")) == pods,
            f"the pods of {name} are made",
        )
        return made


def _job(namespace: str, name: str, pods: int, node: str) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"team": "nlp"}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 0,
                    "nodeName": node,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [
                        {
                            "name": "main",
                            "image": "sameshot.invalid/never-pulled",
                            "imagePullPolicy": "Never",
                            "command": ["python", "train.py"],
                            "env": [{"name": "LOCAL_WORLD_SIZE", "value": "1"}],
                        }
                    ],
                }
            },
        },
    }


def _pod_of(job: Json, index: int) -> Json:
    """As the Job controller makes them, as far as it matters here."""
    meta, template = job["metadata"], job["spec"]["template"]
    own = template.get("metadata", {})
    marks = {"batch.kubernetes.io/job-name": meta["name"], "batch.kubernetes.io/controller-uid": meta["uid"]}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-{index}",
            "namespace": meta["namespace"],
            "labels": {**own.get("labels", {}), **marks},
            "annotations": own.get("annotations", {}),
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
        },
        "spec": template["spec"],
    }


# ---- all of sameshot's objects


def shipped() -> list[Json]:
    """deploy/overlays/dev without its workloads, in an order that works."""
    found = [each for each in kustomized(DEPLOY / "overlays/dev") if each["kind"] not in WORKLOADS]
    return sorted(found, key=lambda each: FIRST.index(each["kind"]) if each["kind"] in FIRST else len(FIRST))


def accounts_of(namespace: str) -> list[Json]:
    """deploy/namespace for this one."""
    found = documents_in(DEPLOY / "namespace/accounts.yaml")
    for each in found:
        for place in (each["metadata"], *each.get("subjects", [])):
            place["namespace"] = namespace
    return found


@contextlib.contextmanager
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """All of it, removed at the end. Skips where sameshot is on this cluster already: its objects are not ours."""
    objects = shipped()
    there = [each for each in objects if each["kind"] in ("Namespace", "CustomResourceDefinition")]
    for each in there:
        cluster.until(
            lambda thing=each: not _ending(cluster, thing), f"{each['metadata']['name']} is gone", GONE_WITHIN_S
        )
        if cluster.get(cluster.api.path_of(each)) is not None:
            pytest.skip(
                f"sameshot is installed on this cluster ({each['kind']} {each['metadata']['name']}): use another"
            )
    with cluster.scope() as inner:
        apply(inner, objects)
        yield inner


def apply(cluster: Cluster, objects: Iterable[Json]) -> None:
    for each in objects:
        if each["kind"] == "CustomResourceDefinition":
            cluster.define(each)
        else:
            cluster.create(each)


def _ending(cluster: Cluster, thing: Json) -> bool:
    found = cluster.get(cluster.api.path_of(thing))
    return found is not None and "deletionTimestamp" in found["metadata"]
