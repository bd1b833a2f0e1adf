"""The emulated API server that other tests lean on is as strict as the real one where they rely on it.

Expectations are the API's documentation, not what this server happens to do
(https://kubernetes.io/docs/reference/using-api/api-concepts/, …/access-authn-authz/rbac/, …/service-accounts-admin/).
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import ClusterApi
from cluster_kinds import JOBSET
from cluster_store import JSON_PATCH, MERGE, STRATEGIC
from cluster_tokens import AUDIENCE

from sameshot.kube.api import ApiError, KubeApi
from sameshot.kube.reviews import expires_in

Json = dict[str, Any]
MAPS = "/api/v1/namespaces/ml/configmaps"
PODS = "/api/v1/namespaces/ml/pods"
JOBS = "/apis/batch/v1/namespaces/ml/jobs"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
THINGS = "/apis/toys.example.com/v1/namespaces/ml/things"
ACCOUNT = "system:serviceaccount:ml:runner"

THING = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.toys.example.com"},
    "spec": {
        "group": "toys.example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "singular": "thing", "shortNames": ["th"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "x-kubernetes-validations": [{"rule": "self.size < 100", "message": "too large"}],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1},
                                    "owner": {
                                        "type": "string",
                                        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}],
                                    },
                                    "colour": {"type": "string", "default": "blue"},
                                    "note": {"type": "string", "nullable": True},
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[ClusterApi]:
    with ClusterApi(kinds=[JOBSET]) as api:
        api.make(THING)
        yield api


@pytest.fixture
def api(server: ClusterApi) -> Iterator[ClusterApi]:
    server.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    server.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "runner", "namespace": "ml"}})
    before = {(kind.plural, one["metadata"]["name"]) for kind, one in server.store.everything() if not kind.namespaced}
    yield server
    server.slow(0)
    server.fail(0)
    for kind, one in server.store.everything():
        if not kind.namespaced and (kind.plural, one["metadata"]["name"]) not in before:
            server.store.delete(kind, "", one["metadata"]["name"])
    server.delete("namespaces", "", "ml")
    server.collect()
    assert server.find("namespaces", "", "ml") is None


@pytest.fixture
def admin(api: ClusterApi) -> KubeApi:
    return api.kube()


def a_map(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


def a_pod(name: str, **more: Any) -> Json:
    return {"metadata": {"name": name, **more}, "spec": {"containers": [{"name": "main", "image": "x"}]}}


def post(api: KubeApi, path: str, body: Json) -> Json:
    return json.loads(api.send("POST", path, body))


def got(api: KubeApi, path: str) -> Json:
    return json.loads(api.get(path))


def names(api: KubeApi, path: str, **query: str) -> list[str]:
    return [json.loads(bytes(one))["metadata"]["name"] for page in api.list(path, query) for one in page.items]


@contextlib.contextmanager
def refused(status: int, *words: str) -> Iterator[None]:
    with pytest.raises(ApiError) as caught:
        yield
    assert caught.value.status == status, caught.value
    for word in words:
        assert word in str(caught.value)


# --- objects and versions


def test_a_made_object_has_an_identity_and_a_version_and_a_second_of_its_name_is_refused(admin: KubeApi) -> None:
    made = post(admin, MAPS, a_map("one"))
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert got(admin, f"{MAPS}/one") == made
    with refused(409, "already exists"):
        post(admin, MAPS, a_map("one"))
    with refused(404, 'namespaces "nowhere" not found'):
        post(admin, "/api/v1/namespaces/nowhere/configmaps", a_map("one"))
    with refused(422):
        post(admin, MAPS, a_map("Not_A_Name"))


def test_names_are_generated(admin: KubeApi) -> None:
    made = [post(admin, MAPS, {"metadata": {"generateName": "run-"}})["metadata"]["name"] for _ in range(2)]
    assert made[0] != made[1]
    assert all(name.startswith("run-") and len(name) == 9 for name in made)


def test_a_put_of_a_stale_version_is_a_conflict_and_one_without_is_not(admin: KubeApi) -> None:
    first = post(admin, MAPS, a_map("one"))
    second = json.loads(admin.send("PUT", f"{MAPS}/one", {**first, "data": {"a": "2"}}))
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    with refused(409, "modified"):
        admin.send("PUT", f"{MAPS}/one", {**first, "data": {"a": "3"}})
    admin.send("PUT", f"{MAPS}/one", a_map("one"))
    assert got(admin, f"{MAPS}/one")["data"] == {"a": "1"}
    with refused(404):
        admin.send("PUT", f"{MAPS}/two", a_map("two"))


def test_a_patch_with_a_stale_version_is_a_conflict(admin: KubeApi) -> None:
    first = post(admin, MAPS, a_map("one"))
    admin.send("PATCH", f"{MAPS}/one", {"data": {"a": "2", "b": "3"}}, content_type=MERGE)
    stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"a": "4"}}
    with refused(409):
        admin.send("PATCH", f"{MAPS}/one", stale, content_type=MERGE)
    admin.send("PATCH", f"{MAPS}/one", {"data": {"a": None}}, content_type=MERGE)
    assert got(admin, f"{MAPS}/one")["data"] == {"b": "3"}
    operations = [{"op": "test", "path": "/data/b", "value": "3"}, {"op": "replace", "path": "/data/b", "value": "5"}]
    admin.send("PATCH", f"{MAPS}/one", operations, content_type=JSON_PATCH)
    with refused(422):
        admin.send("PATCH", f"{MAPS}/one", operations, content_type=JSON_PATCH)
    assert got(admin, f"{MAPS}/one")["data"] == {"b": "5"}


def test_a_write_that_changes_nothing_makes_no_version(admin: KubeApi) -> None:
    first = post(admin, MAPS, a_map("one"))
    same = json.loads(admin.send("PATCH", f"{MAPS}/one", {"data": {"a": "1"}}, content_type=MERGE))
    assert same["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_a_dry_run_stores_nothing(admin: KubeApi) -> None:
    admin.send("POST", f"{MAPS}?dryRun=All", a_map("one"))
    with refused(404):
        admin.get(f"{MAPS}/one")


def test_status_and_spec_are_written_apart(admin: KubeApi, api: ClusterApi) -> None:
    body = {"apiVersion": "toys.example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": 1}}
    made = post(admin, THINGS, {**body, "status": {"phase": "Mine"}})
    assert "status" not in made
    assert made["metadata"]["generation"] == 1
    told = json.loads(
        admin.send("PATCH", f"{THINGS}/t/status", {"spec": {"size": 9}, "status": {"phase": "A"}}, content_type=MERGE)
    )
    assert (told["spec"]["size"], told["status"], told["metadata"]["generation"]) == (1, {"phase": "A"}, 1)
    spec = json.loads(
        admin.send("PATCH", f"{THINGS}/t", {"spec": {"size": 2}, "status": {"phase": "B"}}, content_type=MERGE)
    )
    assert (spec["spec"]["size"], spec["status"], spec["metadata"]["generation"]) == (2, {"phase": "A"}, 2)
    put = json.loads(admin.send("PUT", f"{THINGS}/t", {**spec, "spec": {"size": 3}, "status": {"phase": "C"}}))
    assert (put["spec"]["size"], put["status"]) == (3, {"phase": "A"})
    with refused(404):  # a kind without that subresource
        admin.send("PATCH", f"{MAPS}/one/status", {}, content_type=MERGE)
    with refused(404, "could not find the requested resource"):
        admin.get("/apis/toys.example.com/v1/namespaces/ml/others")


def test_objects_of_a_crd_are_pruned_defaulted_and_validated(admin: KubeApi, api: ClusterApi) -> None:
    body = {"metadata": {"name": "t"}, "spec": {"size": 1, "odd": 5, "free": {"any": 1}, "owner": "me"}}
    made = post(admin, THINGS, body)
    assert made["spec"] == {"size": 1, "free": {"any": 1}, "owner": "me", "colour": "blue"}
    for wrong, words in (({"size": 0}, "minimum"), ({"size": "1"}, "integer"), ({}, "size"), ({"size": None}, "size")):
        with refused(422, words):
            post(admin, THINGS, {"metadata": {"name": "u"}, "spec": wrong})
    with refused(400, "odd"):
        post(admin, f"{THINGS}?fieldValidation=Strict", {**body, "metadata": {"name": "u"}})
    with refused(422, "fixed"):
        admin.send("PATCH", f"{THINGS}/t", {"spec": {"owner": "you"}}, content_type=MERGE)
    with refused(422, "resourceVersion"):
        admin.send("PUT", f"{THINGS}/t", body)
    with refused(415):
        admin.send("PATCH", f"{THINGS}/t", {}, content_type=STRATEGIC)
    assert any("self.size < 100" in one for one in api.unevaluated_cel)  # said, not passed off as checked


def test_a_crd_that_goes_takes_its_objects_along(admin: KubeApi, api: ClusterApi) -> None:
    other = json.loads(json.dumps(THING).replace("things", "stuffs").replace("Thing", "Stuff"))
    path = THINGS.replace("things", "stuffs")
    post(admin, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", other)
    assert '"stuffs"' in admin.get("/apis/toys.example.com/v1").decode()
    post(admin, path, {"metadata": {"name": "t"}, "spec": {"size": 1}})
    api.delete("customresourcedefinitions.apiextensions.k8s.io", "", "stuffs.toys.example.com")
    with refused(404):
        admin.get(f"{path}/t")
    assert '"stuffs"' not in admin.get("/apis/toys.example.com/v1").decode()


def test_what_may_not_change_does_not(admin: KubeApi) -> None:
    post(admin, PODS, a_pod("p"))
    with refused(422, "may not change"):
        admin.send("PATCH", f"{PODS}/p", {"spec": {"hostNetwork": True}}, content_type=MERGE)
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [],
    }
    post(admin, f"{RBAC}/namespaces/ml/rolebindings", binding)
    with refused(422, "roleRef"):
        admin.send("PATCH", f"{RBAC}/namespaces/ml/rolebindings/b", {"roleRef": {"name": "edit"}}, content_type=MERGE)
    with refused(403, "service account"):  # a pod of an account that is not there
        post(admin, PODS, {**a_pod("q"), "spec": {**a_pod("q")["spec"], "serviceAccountName": "nobody"}})


# --- selecting


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("team=a", ["one", "three"]),
        ("team==a", ["one", "three"]),
        ("team!=a", ["two", "zero"]),  # also where the label is not there
        ("team in (a, b)", ["one", "three", "two"]),
        ("team notin (a)", ["two", "zero"]),
        ("team", ["one", "three", "two"]),
        ("!team", ["zero"]),
        ("team=a,size=l", ["three"]),
        ("team in (a,b),size", ["three"]),
        ("team=", []),
    ],
)
def test_labels_select(admin: KubeApi, selector: str, found: list[str]) -> None:
    for name, labels in (
        ("zero", {}),
        ("one", {"team": "a"}),
        ("two", {"team": "b"}),
        ("three", {"team": "a", "size": "l"}),
    ):
        post(admin, MAPS, a_map(name, **labels))
    others = ["kube-root-ca.crt"] if selector in ("team!=a", "team notin (a)", "!team") else []
    assert names(admin, MAPS, labelSelector=selector) == sorted(found + others)


def test_a_selector_that_says_nothing_sensible_is_refused(admin: KubeApi) -> None:
    for query in ({"labelSelector": "a b"}, {"fieldSelector": "spec.nodeName=x"}, {"fieldSelector": "nonsense"}):
        with refused(400):
            names(admin, MAPS, **query)


def test_fields_select(admin: KubeApi, api: ClusterApi) -> None:
    for name, node, phase in (("p0", "n1", "Running"), ("p1", "n1", "Failed"), ("p2", "", "Pending")):
        pod = a_pod(name, namespace="ml")
        pod["spec"] |= {"nodeName": node} if node else {}
        api.make({"apiVersion": "v1", "kind": "Pod", **pod, "status": {"phase": phase}})
    assert names(admin, "/api/v1/pods", fieldSelector="spec.nodeName=n1") == ["p0", "p1"]
    assert names(admin, "/api/v1/pods", fieldSelector="spec.nodeName=") == ["p2"]
    assert names(admin, PODS, fieldSelector="spec.nodeName=n1,status.phase!=Failed") == ["p0"]
    assert names(admin, "/api/v1/pods", fieldSelector="metadata.namespace=ml,metadata.name=p2") == ["p2"]
    assert names(admin, "/api/v1/pods", fieldSelector="metadata.namespace=default") == []


def test_lists_come_in_pages_of_one_moment(admin: KubeApi, api: ClusterApi) -> None:
    for at in range(5):
        post(admin, MAPS, a_map(f"m{at}", page="yes"))
    first = got(admin, f"{MAPS}?limit=2&labelSelector=page")
    post(admin, MAPS, a_map("m00", page="yes"))  # after the first page: not in this list
    rest = got(admin, f"{MAPS}?labelSelector=page&limit=9&continue={first['metadata']['continue']}")
    assert [one["metadata"]["name"] for one in first["items"] + rest["items"]] == [f"m{at}" for at in range(5)]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "kind" not in first["items"][0]  # as in lists of builtin kinds
    assert len(got(admin, f"{MAPS}?limit=2&resourceVersion=0&labelSelector=page")["items"]) == 6
    with refused(400):
        admin.get(f"{MAPS}?limit=2&resourceVersion=5&continue={first['metadata']['continue']}")
    api.forget_before()
    with refused(410):
        admin.get(f"{MAPS}?limit=2&continue={first['metadata']['continue']}")


# --- watching


def test_a_watch_tells_what_changed_since_a_version_and_what_ceases_to_match(admin: KubeApi) -> None:
    post(admin, MAPS, a_map("before", team="a"))
    since = got(admin, MAPS)["metadata"]["resourceVersion"]
    heard: list[tuple[str, str]] = []
    post(admin, MAPS, a_map("one", team="a"))
    post(admin, MAPS, a_map("two", team="b"))
    admin.send("PATCH", f"{MAPS}/two", {"metadata": {"labels": {"team": "a"}}}, content_type=MERGE)
    admin.send("PATCH", f"{MAPS}/one", {"data": {"a": "2"}}, content_type=MERGE)
    admin.send("PATCH", f"{MAPS}/one", {"metadata": {"labels": {"team": "b"}}}, content_type=MERGE)
    admin.send("DELETE", f"{MAPS}/one")
    admin.send("DELETE", f"{MAPS}/two")
    bookmark = ""
    for change in admin.watch(MAPS, {"labelSelector": "team=a"}, since):
        thing = json.loads(bytes(change.object))
        if change.kind == "BOOKMARK":
            bookmark = thing["metadata"]["resourceVersion"]
            break
        heard.append((change.kind, thing["metadata"]["name"]))
    assert heard == [("ADDED", "one"), ("ADDED", "two"), ("MODIFIED", "one"), ("DELETED", "one"), ("DELETED", "two")]
    assert int(bookmark) >= int(since) + 7


def test_a_watch_ends_in_time_and_one_from_nothing_begins_with_all(api: ClusterApi) -> None:
    admin = api.kube(watch_s=1)
    post(admin, MAPS, a_map("one", w="1"))
    began = time.monotonic()
    heard = [change.kind for change in admin.watch(MAPS, {"labelSelector": "w"}, "0")]
    assert heard[0] == "ADDED"
    assert set(heard[1:]) == {"BOOKMARK"}
    assert 0.5 < time.monotonic() - began < 10


def test_too_old_a_version_is_told_so(admin: KubeApi, api: ClusterApi) -> None:
    since = got(admin, MAPS)["metadata"]["resourceVersion"]
    api.forget_before()
    with pytest.raises(ApiError) as caught:
        list(admin.watch(MAPS, {}, since))
    assert caught.value.expired


def test_away_cuts_watches_and_refuses_and_all_goes_on_afterwards(admin: KubeApi, api: ClusterApi) -> None:
    ended, before = threading.Event(), api.count(verb="watch", resource="configmaps")

    def follow() -> None:
        with contextlib.suppress(OSError, Exception):
            list(admin.watch(MAPS, {}, got(admin, MAPS)["metadata"]["resourceVersion"]))
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    api.wait_for(lambda: api.count(verb="watch", resource="configmaps") > before, "a watch")
    api.away()
    try:
        assert ended.wait(10)
        with pytest.raises(ConnectionRefusedError):
            api.kube().get(MAPS)
    finally:
        api.come_back()
    assert got(api.kube(), MAPS)["items"]


def test_trouble_can_be_made(admin: KubeApi, api: ClusterApi) -> None:
    api.fail(503, verb="list", resource="configmaps", times=1)
    with refused(503):
        admin.get(MAPS)
    admin.get(MAPS)
    api.slow(0.3, verb="list")
    began = time.monotonic()
    admin.get(MAPS)
    assert time.monotonic() - began >= 0.3


# --- owners


def test_what_has_no_living_owner_is_collected(admin: KubeApi, api: ClusterApi) -> None:
    job = api.make(a_job("j"))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job["metadata"]["uid"]}
    node = api.make({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    of_node = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node["metadata"]["uid"]}
    for name, owners in (
        ("kept", [owner]),
        ("of-a-node", [of_node]),
        ("dangling", [{**owner, "uid": "0-0"}]),
        ("one-of-two", [{**owner, "uid": "0-0"}, owner]),
        ("unknown-kind", [{"apiVersion": "odd.example.com/v1", "kind": "Odd", "name": "o", "uid": "1"}]),
    ):
        post(admin, MAPS, {"metadata": {"name": name, "ownerReferences": owners}})
    api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    post(admin, MAPS.replace("/ml/", "/other/"), {"metadata": {"name": "elsewhere", "ownerReferences": [owner]}})
    assert sorted(api.collect()) == ["ml/ConfigMap/dangling", "other/ConfigMap/elsewhere"]
    api.delete("jobs.batch", "ml", "j")
    assert sorted(api.collect()) == ["ml/ConfigMap/kept", "ml/ConfigMap/one-of-two"]
    api.delete("nodes", "", "n")
    assert api.collect() == ["ml/ConfigMap/of-a-node"]
    assert "unknown-kind" in names(admin, MAPS)


def a_job(name: str) -> Json:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"template": template},
    }


def test_a_deleted_namespace_takes_no_more_and_goes_with_all_that_is_in_it(api: ClusterApi, admin: KubeApi) -> None:
    api.make({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "brief"}})
    admin.send("DELETE", "/api/v1/namespaces/brief")
    assert got(admin, "/api/v1/namespaces/brief")["status"]["phase"] == "Terminating"
    with refused(403, "being terminated"):
        post(admin, MAPS.replace("/ml/", "/brief/"), a_map("b"))
    api.collect()
    with refused(404):
        admin.get("/api/v1/namespaces/brief")


def test_a_finalizer_holds_an_object_and_preconditions_are_held(admin: KubeApi) -> None:
    made = post(admin, MAPS, {"metadata": {"name": "f", "finalizers": ["x.example.com/y"]}})
    with refused(409):
        admin.send("DELETE", f"{MAPS}/f", {"preconditions": {"uid": "another"}})
    admin.send("DELETE", f"{MAPS}/f", {"preconditions": {"uid": made["metadata"]["uid"]}})
    assert got(admin, f"{MAPS}/f")["metadata"]["deletionTimestamp"]
    admin.send("PATCH", f"{MAPS}/f", {"metadata": {"finalizers": []}}, content_type=MERGE)
    with refused(404):
        admin.get(f"{MAPS}/f")


# --- who


def review(admin: KubeApi, token: str, audience: str) -> Json:
    spec = {"token": token, "audiences": [audience]}
    return post(admin, "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": spec})["status"]


def ask_token(api: KubeApi, name: str = "runner", **spec: Any) -> Json:
    return post(api, f"/api/v1/namespaces/ml/serviceaccounts/{name}/token", {"spec": spec})["status"]


def test_a_requested_token_is_for_its_audience_only_and_for_its_time(admin: KubeApi, api: ClusterApi) -> None:
    status = ask_token(admin, audiences=["sameshot/abc"], expirationSeconds=600)
    assert 590 < expires_in(status["token"]) <= 600
    good = review(admin, status["token"], "sameshot/abc")
    assert good["authenticated"]
    assert good["audiences"] == ["sameshot/abc"]
    assert good["user"]["username"] == ACCOUNT
    assert set(good["user"]["groups"]) == {
        "system:serviceaccounts", "system:serviceaccounts:ml", "system:authenticated"
    }  # fmt: skip
    for token, audience in (
        (status["token"], "sameshot/other"),
        (status["token"], AUDIENCE),
        (status["token"] + "x", "sameshot/abc"),
        (api.token_for(ACCOUNT, audience="sameshot/abc", lasts_s=-1), "sameshot/abc"),
    ):
        bad = review(admin, token, audience)
        assert not bad.get("authenticated")
        assert bad["error"]
    with refused(404):
        ask_token(admin, "nobody")
    with refused(422):
        ask_token(admin, expirationSeconds=60)
    with refused(401):  # not for the API server itself
        _as(api, status["token"]).get(MAPS)


def test_a_token_ends_with_its_account_and_with_its_pod(admin: KubeApi, api: ClusterApi) -> None:
    pod = api.make({"apiVersion": "v1", "kind": "Pod", **a_pod("p", namespace="ml")})
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]}
    of_pod = ask_token(admin, boundObjectRef=bound)["token"]
    free = ask_token(admin)["token"]
    assert review(admin, of_pod, AUDIENCE)["authenticated"]
    api.delete("pods", "ml", "p")
    assert not review(admin, of_pod, AUDIENCE).get("authenticated")
    assert review(admin, free, AUDIENCE)["authenticated"]
    api.delete("serviceaccounts", "ml", "runner")
    api.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "runner", "namespace": "ml"}})
    assert not review(admin, free, AUDIENCE).get("authenticated")  # another one of the same name


def _as(api: ClusterApi, token: str) -> KubeApi:
    path = api.folder / "as-token"
    path.write_text(token)
    return KubeApi(api.url, part="test", token_file=path, ca_file=api.ca_file)


# --- and may they


def grant(api: ClusterApi, rules: list[Json], subject: Json, *, everywhere: bool = False) -> None:
    kind = "Cluster" * everywhere
    meta = {"name": "granted", **({} if everywhere else {"namespace": "ml"})}
    group = "rbac.authorization.k8s.io"
    api.put({"apiVersion": f"{group}/v1", "kind": f"{kind}Role", "metadata": meta, "rules": rules})
    reference = {"apiGroup": group, "kind": f"{kind}Role", "name": "granted"}
    api.put(
        {"apiVersion": f"{group}/v1", "kind": f"{kind}RoleBinding", "metadata": meta, "roleRef": reference,
         "subjects": [subject]}
    )  # fmt: skip


JANE = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
RUNNER = {"kind": "ServiceAccount", "name": "runner", "namespace": "ml"}


def rule(group: str, resources: str, verbs: str, *those: str) -> Json:
    made: Json = {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
    return made | ({"resourceNames": list(those)} if those else {})


@pytest.mark.parametrize(
    ("rules", "allowed", "denied"),
    [
        ([], "", "get configmaps/one|list configmaps|create configmaps"),
        (
            [rule("", "configmaps", "get list")],
            "get configmaps/one|list configmaps",
            "watch configmaps|create configmaps|delete configmaps/one|get secrets/one",
        ),
        ([rule("", "configmaps", "get", "one")], "get configmaps/one", "get configmaps/two|list configmaps"),
        ([rule("", "configmaps", "list watch", "one")], "list configmaps?one|watch configmaps?one", "list configmaps"),
        ([rule("", "pods", "*")], "get pods/p|delete pods/p", "get pods/p/log|update pods/p/status"),
        ([rule("", "pods/log", "get")], "get pods/p/log", "get pods/p"),
        ([rule("", "*/log", "get")], "get pods/p/log", "get pods/p|update pods/p/status"),
        ([rule("", "*", "get")], "get pods/p/log|get secrets/one", "delete pods/p"),
        ([rule("apps", "*", "*")], "", "get pods/p"),
        ([rule("", "configmaps", "create", "one")], "", "create configmaps"),  # a new one has no name yet
        ([rule("", "serviceaccounts/token", "create", "runner")], "create serviceaccounts/runner/token",
         "create serviceaccounts/default/token|get serviceaccounts/runner"),
    ],
    ids=["nothing", "verbs", "one-name", "list-one-name", "no-subresource", "only-subresource", "any-log", "star",
         "other-group", "create-by-name", "tokens"],
)  # fmt: skip
def test_rights_are_enforced_on_each_request_and_told_alike_by_reviews(
    api: ClusterApi, admin: KubeApi, rules: list[Json], allowed: str, denied: str
) -> None:
    grant(api, rules, JANE)
    jane = api.kube("jane", "devs")
    for text, wanted in ((allowed, True), (denied, False)):
        for one in filter(None, text.split("|")):
            verb, _, what = one.partition(" ")
            what, _, field = what.partition("?")
            resource, name, sub = (*what.split("/"), "", "")[:3]
            assert may(jane, verb, resource, field or name, sub, field) is wanted, one
            about = {"verb": verb, "resource": resource, "subresource": sub, "name": field or name, "namespace": "ml"}
            spec = {"user": "jane", "resourceAttributes": about}
            answer = post(admin, "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
            assert answer["status"]["allowed"] is wanted, one
            mine = post(
                jane, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {"resourceAttributes": about}}
            )
            assert mine["status"]["allowed"] is wanted, one
    assert not may(api.kube("jack"), "get", "configmaps", "one", "", "")


def may(api: KubeApi, verb: str, resource: str, name: str, sub: str, field: str) -> bool:
    """Whether the server lets it pass; that there is nothing of that name does not matter."""
    path = f"/api/v1/namespaces/ml/{resource}"
    if verb in ("list", "watch"):
        more = {"watch": "&watch=true&timeoutSeconds=0", "list": ""}[verb]
        path += f"?{f'fieldSelector=metadata.name={field}' if field else 'a=b'}{more}"
    elif name:
        path += f"/{name}" + (f"/{sub}" if sub else "")
    method = {"create": "POST", "update": "PUT", "delete": "DELETE"}.get(verb, "GET")
    try:
        api.send(method, path, {} if method in ("POST", "PUT") else None)
    except ApiError as error:
        return error.status != 403
    return True


@pytest.mark.parametrize(
    ("subject", "groups", "passes"),
    [
        ({"kind": "Group", "name": "system:serviceaccounts:ml"}, (), True),
        ({"kind": "Group", "name": "system:serviceaccounts:default"}, (), False),
        ({"kind": "Group", "name": "system:serviceaccounts"}, (), True),
        ({"kind": "Group", "name": "system:authenticated"}, (), True),
        (RUNNER, (), True),
        ({**RUNNER, "namespace": "default"}, (), False),
        ({"kind": "User", "name": ACCOUNT}, (), True),
    ],
    ids=["namespace's", "another-namespace's", "all-accounts", "all", "itself", "same-name-elsewhere", "as-user"],
)
def test_accounts_are_in_their_groups(api: ClusterApi, subject: Json, groups: tuple[str, ...], passes: bool) -> None:
    grant(api, [rule("", "nodes", "list")], subject, everywhere=True)
    if passes:
        api.kube(ACCOUNT).get("/api/v1/nodes")
    else:
        with refused(403):
            api.kube(ACCOUNT).get("/api/v1/nodes")


def test_a_namespaces_role_reaches_no_further(api: ClusterApi) -> None:
    grant(api, [rule("", "configmaps", "list get")], JANE)
    jane = api.kube("jane")
    jane.get(MAPS)
    for path in ("/api/v1/configmaps", MAPS.replace("/ml/", "/default/")):
        with refused(403):
            jane.get(path)


def test_roles_aggregate(api: ClusterApi) -> None:
    api.put(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "edits", "namespace": "ml"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [JANE],
        }
    )
    jane = api.kube("jane")
    jane.get(MAPS)  # from view, through edit
    with refused(403):  # a cluster's role, but bound in one namespace
        jane.get(MAPS.replace("/ml/", "/default/"))
    with refused(403):
        jane.get(THINGS)
    api.put(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {
                "name": "things-viewer",
                "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"},
            },
            "rules": [rule("toys.example.com", "things", "get list")],
        }
    )
    jane.get(THINGS)
    with refused(403):
        post(jane, THINGS, {"metadata": {"name": "t"}, "spec": {"size": 1}})


def test_paths_that_are_no_resources_have_rights_of_their_own(api: ClusterApi) -> None:
    jane = api.kube("jane")
    jane.get("/version")
    jane.get("/apis")
    with refused(403):
        jane.get("/metrics")
    grant(api, [{"nonResourceURLs": ["/metr*"], "verbs": ["get"]}], JANE, everywhere=True)
    with refused(404):
        jane.get("/metrics")
    nobody = KubeApi(api.url, part="test", ca_file=api.ca_file)
    nobody.get("/version")
    with refused(403, "system:anonymous"):
        nobody.get(MAPS)


@pytest.mark.parametrize("more", [None, "hold", "bind", "escalate"])
def test_nobody_hands_on_rights_that_he_lacks(api: ClusterApi, more: str | None) -> None:
    roles = [rule("rbac.authorization.k8s.io", "roles rolebindings", "create update patch get")]
    if more == "hold":
        roles.append(rule("", "pods", "*"))
    if more == "bind":
        roles.append(rule("rbac.authorization.k8s.io", "roles", "bind", "reads-pods"))
    if more == "escalate":
        roles.append(rule("rbac.authorization.k8s.io", "roles", "escalate"))
    grant(api, roles, JANE)
    jane = api.kube("jane")
    group = "rbac.authorization.k8s.io"
    wanted = {"metadata": {"name": "reads-pods"}, "rules": [rule("", "pods", "get list")]}
    if more in ("hold", "escalate"):
        post(jane, f"{RBAC}/namespaces/ml/roles", wanted)
    else:
        with refused(403, "not currently held"):
            post(jane, f"{RBAC}/namespaces/ml/roles", wanted)
        api.put(
            {
                "apiVersion": f"{group}/v1",
                "kind": "Role",
                **wanted,
                "metadata": {"name": "reads-pods", "namespace": "ml"},
            }
        )
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "reads-pods"},
        "subjects": [JANE],
    }
    if more in ("hold", "bind"):
        post(jane, f"{RBAC}/namespaces/ml/rolebindings", binding)
    else:
        with refused(403, "not currently held"):
            post(jane, f"{RBAC}/namespaces/ml/rolebindings", binding)
    if more in ("hold", "bind", None):
        more_rules = {"rules": [rule("", "secrets", "get")]}
        with refused(403):
            jane.send("PATCH", f"{RBAC}/namespaces/ml/roles/reads-pods", more_rules, content_type=MERGE)


def test_the_log_tells_writes_from_reviews(api: ClusterApi) -> None:
    since = len(api.log)
    admin = api.kube()
    review(admin, api.token_for(ACCOUNT), AUDIENCE)
    ask_token(admin)
    admin.get(MAPS)
    assert [(one.verb, one.resource) for one in api.log[since:]] == [
        ("create", "tokenreviews"), ("create", "serviceaccounts"), ("list", "configmaps")
    ]  # fmt: skip
    assert api.writes(since) == []
    post(admin, MAPS, a_map("one"))
    assert [(one.user, one.verb, one.name, one.status) for one in api.writes(since)] == [
        ("kubernetes-admin", "create", "", 201)
    ]


# --- as the official client sees it


@pytest.fixture
def official(api: ClusterApi, tmp_path: Path) -> Any:
    from kubernetes import client, config

    made = client.Configuration()
    config.load_kube_config(str(api.kubeconfig(tmp_path / "config", ACCOUNT)), client_configuration=made)
    made.proxy = None
    return client.CoreV1Api(client.ApiClient(made))


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            if data == b"bye":
                return
            self.request.sendall(data.upper())


def test_the_official_client_forwards_ports_through_it(api: ClusterApi, official: Any) -> None:
    from kubernetes.client.exceptions import ApiException
    from kubernetes.stream import portforward

    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        **a_pod("p", namespace="ml"),
        "status": {"phase": "Running", "podIP": "127.0.0.1"},
    }
    api.make(pod)
    call = official.connect_get_namespaced_pod_portforward
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as echo:
        echo.daemon_threads = True
        threading.Thread(target=echo.serve_forever, args=(0.05,), daemon=True).start()
        port = echo.server_address[1]
        for verbs in ("get", "create"):  # a websocket begins with a GET, and needs the right to create since 1.35
            grant(api, [rule("", "pods/portforward", verbs)], RUNNER)
            with pytest.raises(ApiException, match="403"):
                portforward(call, "p", "ml", ports=str(port))
        grant(api, [rule("", "pods/portforward", "get create")], RUNNER)
        forward = portforward(call, "p", "ml", ports=str(port))
        through: socket.socket = forward.socket(port)
        through.settimeout(10)
        through.sendall(b"hello")
        assert through.recv(100) == b"HELLO"
        big = b"x" * 300_000
        threading.Thread(target=through.sendall, args=(big,), daemon=True).start()
        read = b""
        while len(read) < len(big):
            read += through.recv(65536)
        assert read == big.upper()
        through.sendall(b"bye")
        assert through.recv(100) == b""
        echo.shutdown()
    forward = portforward(call, "p", "ml", ports=str(port))  # nobody listens there any more
    through = forward.socket(port)
    through.settimeout(10)
    assert through.recv(100) == b""
    assert f"port {port}" in forward.error(port)
    api.set_status("pods", "ml", "p", {"phase": "Succeeded"})
    with pytest.raises(ApiException, match="not running"):
        portforward(call, "p", "ml", ports=str(port))


def test_the_official_client_follows(api: ClusterApi, official: Any) -> None:
    from kubernetes import watch

    grant(api, [rule("", "configmaps", "list watch")], RUNNER)
    api.make({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "ml"}})
    events = watch.Watch().stream(official.list_namespaced_config_map, "ml", timeout_seconds=1)
    assert {event["object"].metadata.name for event in events} == {"one", "kube-root-ca.crt"}
