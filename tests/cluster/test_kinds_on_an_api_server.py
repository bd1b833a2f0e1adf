"""Needs an API server only. CaptureCoordinators and policies as it has them: rules, bounds, status, columns; and
whether it takes every other object that is shipped, of each overlay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from api_server import Refused
from cluster_at_hand import DEPLOY, Cluster
from kubernetes_objects import documents_in, kustomized

from sameshot.kube import names

Json = dict[str, Any]
pytestmark = pytest.mark.full
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


@pytest.fixture
def namespace(sameshot: Cluster) -> Iterator[str]:
    with sameshot.scope() as inner:
        yield inner.namespace()


def coordinator(namespace: str, **job: Any) -> Json:
    about = {"apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": "0b1c2d3e", "attempt": 0, **job}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "CaptureCoordinator",
        "metadata": {"name": "c-1", "namespace": namespace},
        "spec": {"job": about, "series": "llama", "labels": {"team": "nlp"}},
    }


def policy(namespace: str, **spec: int) -> Json:
    meta = {"name": "limits", "namespace": namespace}
    return {"apiVersion": names.API_VERSION, "kind": "CapturePolicy", "metadata": meta, "spec": spec}


def cluster_policy(name: str) -> Json:
    meta = {"name": name}
    return {"apiVersion": names.API_VERSION, "kind": "ClusterCapturePolicy", "metadata": meta, "spec": {}}


@pytest.mark.parametrize("plural", [names.COORDINATORS, names.POLICIES, names.CLUSTER_POLICIES])
def test_each_kind_is_established_with_a_schema_that_is_fully_understood(plural: str, sameshot: Cluster) -> None:
    sameshot.real_only("it states no conditions")
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{names.GROUP}"
    found = sameshot.api.call("GET", path).thing
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert conditions.get("NonStructuralSchema", "False") == "False"
    (shipped,) = documents_in(DEPLOY / f"crds/{plural}.yaml")
    assert found["spec"]["versions"][0]["schema"] == shipped["spec"]["versions"][0]["schema"], "nothing was dropped"


def test_the_short_name_and_the_category_lead_to_it(sameshot: Cluster) -> None:
    listed = sameshot.api.call("GET", f"/apis/{names.API_VERSION}").thing["resources"]
    found = {each["name"]: each for each in listed}
    assert found[names.COORDINATORS]["shortNames"] == ["ssc"]
    assert f"{names.COORDINATORS}/status" in found
    sameshot.real_only("it knows no categories")
    assert found[names.COORDINATORS]["categories"] == ["sameshot"]


@pytest.mark.parametrize(
    "change",
    [{"series": "other"}, {"job": {"attempt": 1}}, {"labels": {"team": "vision"}}, {"series": None}],
    ids=["series", "attempt", "labels", "left out"],
)
def test_whose_coordinator_it_is_never_changes(change: Json, sameshot: Cluster, namespace: str) -> None:
    path = sameshot.api.path_of(sameshot.create(coordinator(namespace)))
    with pytest.raises(Refused, match="never changes") as refused:
        sameshot.api.patch(path, {"spec": change})
    assert refused.value.status == 422
    sameshot.api.patch(path, {"metadata": {"labels": {"is": "fine"}}})


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"attempt": -1}, "attempt"),
        ({"attempt": 100_000_000}, "attempt"),
        ({"uid": "UPPER"}, "uid"),
        ({"uid": "a" * 37}, "uid"),
        ({"uid": "a/../b"}, "uid"),
        ({"name": ""}, "name"),
        ({"name": "x" * 254}, "name"),
        ({"kind": "K" * 64}, "kind"),
    ],
    ids=str,
)
def test_a_job_that_can_be_none_is_refused(job: Json, says: str, sameshot: Cluster, namespace: str) -> None:
    with pytest.raises(Refused, match=f"spec.job.{says}") as refused:
        sameshot.create(coordinator(namespace, **job))
    assert refused.value.status == 422


def test_a_field_that_nobody_knows_is_refused_where_that_is_asked_for(sameshot: Cluster, namespace: str) -> None:
    thing = coordinator(namespace)
    thing["spec"]["jobs"] = []
    with pytest.raises(Refused, match="jobs") as refused:
        sameshot.create(thing)
    assert refused.value.status == 400


def test_status_is_written_apart_from_the_rest_and_counts_no_generation(sameshot: Cluster, namespace: str) -> None:
    made = sameshot.create({**coordinator(namespace), "status": {"phase": "Ready"}})
    assert "status" not in made
    path = sameshot.api.path_of(made)
    told = {"phase": "Ready", "endpoint": "10.0.0.1:7443", "registered": None, "expected": 8}
    done = sameshot.api.patch(f"{path}/status", {"status": told, "metadata": {"labels": {"no": "way"}}})
    assert done["metadata"]["generation"] == made["metadata"]["generation"]
    assert done["status"] == {key: value for key, value in told.items() if value is not None}
    assert sameshot.api.patch(path, {"status": {"phase": "Failed"}})["status"]["phase"] == "Ready"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"pod": {"namespace": "a", "name": "b", "port": 70000}},
        {"registered": -1},
        {"conditions": [{"type": "Ready", "status": "Maybe", "reason": "x"}]},
        {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}] * 2},
    ],
    ids=["phase", "port", "registered", "condition", "a type twice"],
)
def test_a_status_that_means_nothing_is_refused(status: Json, sameshot: Cluster, namespace: str) -> None:
    if len(status.get("conditions", ())) == 2:
        sameshot.real_only("it does not look at list-map keys")
    path = sameshot.api.path_of(sameshot.create(coordinator(namespace)))
    with pytest.raises(Refused) as refused:
        sameshot.api.patch(f"{path}/status", {"status": status})
    assert refused.value.status == 422


def test_a_person_sees_job_attempt_phase_and_ranks_in_a_list(sameshot: Cluster, namespace: str) -> None:
    sameshot.real_only("it makes no tables")
    path = sameshot.api.path_of(sameshot.create(coordinator(namespace)))
    sameshot.api.patch(f"{path}/status", {"status": {"phase": "Ready", "registered": 3, "expected": 8}})
    table = sameshot.api.call("GET", path.rpartition("/")[0], headers=TABLE).thing
    columns = [each["name"] for each in table["columnDefinitions"] if each["priority"] == 0]
    assert columns == ["Name", "Job", "Attempt", "Phase", "Registered", "Expected", "Age"]
    (row,) = table["rows"]
    assert row["cells"][1:6] == ["llama", 0, "Ready", 3, 8]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"maxDurationMs": 0}, "maxDurationMs"),
        ({"maxDurationMs": 3_600_001}, "maxDurationMs"),
        ({"minIntervalMs": -1}, "minIntervalMs"),
        ({"maxCapturesAtOnce": 65}, "maxCapturesAtOnce"),
    ],
    ids=str,
)
def test_a_policy_out_of_bounds_is_refused(spec: Json, says: str, sameshot: Cluster, namespace: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        sameshot.create(policy(namespace, **spec))
    assert refused.value.status == 422


def test_a_policy_is_taken_and_may_be_changed(sameshot: Cluster, namespace: str) -> None:
    path = sameshot.api.path_of(sameshot.create(policy(namespace, maxDurationMs=5000, maxDurationWithStackMs=1000)))
    assert sameshot.api.patch(path, {"spec": {"maxDurationMs": 4000}})["spec"]["maxDurationMs"] == 4000


def test_a_window_with_stacks_is_never_allowed_longer_than_one_without(sameshot: Cluster, namespace: str) -> None:
    sameshot.real_only("it evaluates no such rule")
    with pytest.raises(Refused, match="a window with stacks may not be longer") as refused:
        sameshot.create(policy(namespace, maxDurationMs=1000, maxDurationWithStackMs=2000))
    assert refused.value.status == 422


def test_the_cluster_s_policy_has_one_name(sameshot: Cluster) -> None:
    made = sameshot.create(cluster_policy("default"), dryRun="All")
    assert made["metadata"]["name"] == "default"
    sameshot.real_only("it evaluates no such rule")
    with pytest.raises(Refused, match="its name is default"):
        sameshot.create(cluster_policy("other"), dryRun="All")


@pytest.mark.parametrize("overlay", sorted(each.name for each in (DEPLOY / "overlays").iterdir()))
def test_the_server_takes_what_an_overlay_holds(overlay: str, sameshot: Cluster, namespace: str) -> None:
    """Strictly validated, as a dry run: above all the workloads, of which none is started here. Pod templates are only
    looked at as far as a server does that before there are pods."""
    looked_at = []
    for thing in kustomized(DEPLOY / "overlays" / overlay):
        if sameshot.api.resource(thing) is None:
            continue  # cert-manager's, where it is not installed
        if thing["metadata"].get("namespace") == "ml":  # stands for the namespaces of whoever installs it
            thing = {**thing, "metadata": {**thing["metadata"], "namespace": namespace}}
        try:
            sameshot.create(thing, dryRun="All")
        except Refused as error:
            if error.status != 409:  # it is there already, of the overlay that these tests install
                raise
        looked_at.append(thing["kind"])
    assert {"Deployment", "DaemonSet", "CronJob", "NetworkPolicy"} <= set(looked_at)
