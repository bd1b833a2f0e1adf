"""Needs an API server only, and the test data (`SAMESHOT_TEST_DATA`, argo-crds): it is given Argo's own kinds, with
their full schemas, where they are not installed, and every object that we ship or render. Nobody runs a workflow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Refused
from cluster_at_hand import DEPLOY, Cluster
from kubernetes_objects import documents_in

from sameshot_argo.render import objects
from sameshot_argo.settings import Kind, Settings

Json = dict[str, Any]
pytestmark = pytest.mark.full
PLURALS = ("workflows", "workflowtemplates", "clusterworkflowtemplates", "cronworkflows")
FILES = sorted(path.relative_to(DEPLOY).as_posix() for path in (DEPLOY / "argo").rglob("*.yaml"))
RENDERED = {
    "a schedule": lambda: objects(
        Kind.CRON_WORKFLOW, name="bert", timezone="Europe/Vienna", arguments={"threshold": "0.1"}
    ),
    "a run of the cluster's template": lambda: objects(
        Kind.WORKFLOW, cluster=True, arguments={"address": "kube:ml/bert"}
    ),
    "a small one": lambda: objects(
        Kind.WORKFLOW_TEMPLATE, Settings(artifacts=False, parallelism=1, retries=0, run_as_user=None)
    ),
    "rights under another name": lambda: objects(Kind.ROLE, Settings(service_account="runs")),
}


@pytest.fixture(scope="module")
def argo(sameshot: Cluster, shared_data: Path) -> Iterator[Cluster]:
    """Argo's kinds: the definitions, and nobody behind them. `sameshot` is there for the ClusterRole that is bound."""
    sameshot.not_too_slow("it reads Argo's schemas for seconds per object")
    with sameshot.scope() as inner:
        for plural in PLURALS:
            inner.define(definition(json.loads((shared_data / f"argo-crds/{plural}.json").read_text()), plural))
        yield inner


@pytest.fixture
def namespace(argo: Cluster) -> Iterator[str]:
    with argo.scope() as inner:
        yield inner.namespace()


def definition(stored: Json, plural: str) -> Json:
    group, kind = stored["group"], stored["kind"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster" if kind.startswith("Cluster") else "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": stored["version"],
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": stored["openAPIV3Schema"]},
                }
            ],
        },
    }


def placed(thing: Json, namespace: str) -> Json:
    """In the test's namespace; what is of the whole cluster stays, under a name of its own."""
    meta = {**thing["metadata"]}
    if thing["kind"] == "ClusterWorkflowTemplate":
        return {**thing, "metadata": {**meta, "name": f"{meta['name']}-{namespace}"}}
    found = {**thing, "metadata": {**meta, "namespace": namespace}}
    if "subjects" in thing:
        found["subjects"] = [{**each, "namespace": namespace} for each in thing["subjects"]]
    return found


def given_to(cluster: Cluster, things: list[Json], namespace: str) -> list[tuple[Json, Json]]:
    """(what was sent, what is stored): first as a dry run, then for good."""
    done = []
    with cluster.scope() as inner:
        for each in things:
            thing = placed(each, namespace)
            inner.create(thing, dryRun="All")
            done.append((thing, inner.create(thing)))
    return done


def lost(sent: Any, stored: Any, place: str = "") -> list[str]:
    """Whatever of `sent` is not in `stored`: pruned, or changed."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return [each for key, value in sent.items() for each in lost(value, stored.get(key), f"{place}/{key}")]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return [each for at, pair in enumerate(zip(sent, stored, strict=True)) for each in lost(*pair, f"{place}/{at}")]
    return [] if sent == stored or sent in ({}, None) else [f"{place}: {str(sent)[:60]!r} became {str(stored)[:60]!r}"]


@pytest.mark.parametrize("file", FILES)
def test_what_is_shipped_is_taken_and_nothing_of_it_is_lost(file: str, argo: Cluster, namespace: str) -> None:
    for sent, stored in given_to(argo, documents_in(DEPLOY / file), namespace):
        assert lost(sent, stored) == []


@pytest.mark.parametrize("name", RENDERED)
def test_what_is_rendered_otherwise_is_taken_too(name: str, argo: Cluster, namespace: str) -> None:
    for sent, stored in given_to(argo, RENDERED[name](), namespace):
        assert lost(sent, stored) == []


def test_these_kinds_do_refuse_what_argo_does_not_have(argo: Cluster, namespace: str) -> None:
    (template,) = objects(Kind.WORKFLOW_TEMPLATE)
    template["spec"]["entryPoint"] = template["spec"].pop("entrypoint")
    with pytest.raises(Refused, match="entryPoint") as refused:
        given_to(argo, [template], namespace)
    assert refused.value.status == 400


def test_what_differs_is_found() -> None:
    assert lost({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3}) == []
    assert lost({"a": [{"b": 1}]}, {"a": [{}]}) == ["/a/0/b: '1' became 'None'"]


@pytest.mark.parametrize("engine", ["kfp", "flyte", "airflow"])
def test_rights_of_the_other_engines_are_taken(engine: str, sameshot: Cluster, namespace: str) -> None:
    for sent, stored in given_to(sameshot, documents_in(DEPLOY / engine / "role.yaml"), namespace):
        assert lost(sent, stored) == []
