"""`sameshot status` and `sameshot jobs` against an API server that enforces rights: what is read, and what is only said
to be unread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import ClusterApi
from kube_api import a_pod

from sameshot.arm.hookmap import hook_configmap
from sameshot.cli.main import invoke

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UID = "0b6d4f6e-1c11-4a57-9d9c-0a7c5f1f5a11"
NAME = "c-0b6d4f6e-0"


@pytest.fixture(scope="module")
def api() -> Iterator[ClusterApi]:
    """A cluster in which one job of namespace ml has all that it needs."""
    with ClusterApi() as server:
        server.apply_folder(DEPLOY / "crds")
        server.apply_folder(DEPLOY / "access")
        labels = {"sameshot.dev/arm": "enabled"}
        server.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "labels": labels}})
        server.make(hook_configmap("ml"))
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "llama-7b", "namespace": "ml", "uid": UID},
        }
        server.make(a_pod("llama-7b-0", node="node-a", owner=owner))
        server.make(helper_pod("sameshot-agents", "sameshot-agent", "agent-1", node="node-a"))
        server.make(helper_pod("sameshot-system", "sameshot-operator", "operator-1", node="node-b"))
        server.make(coordinator())
        bound(server, "jane", "edit")
        yield server


def bound(server: ClusterApi, person: str, role: str) -> None:
    server.make(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": person, "namespace": "ml"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": person}],
        }
    )


def helper_pod(namespace: str, name: str, pod: str, *, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "namespace": namespace, "labels": {"app.kubernetes.io/name": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def coordinator() -> dict[str, Any]:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "llama-7b", "uid": UID, "attempt": 0}
    return {
        "apiVersion": "sameshot.dev/v1alpha1",
        "kind": "CaptureCoordinator",
        "metadata": {"name": NAME, "namespace": "ml"},
        "spec": {"job": job, "series": "llama", "labels": {"team": "nlp"}},
        "status": {"phase": "Ready", "endpoint": "10.0.0.9:7443", "registered": 2, "expected": 2},
    }


@pytest.fixture
def kubeconfig(api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("SAMESHOT_NAMESPACE", "SAMESHOT_ADDRESS", "KUBERNETES_SERVICE_HOST", "SAMESHOT_API_SERVER"):
        monkeypatch.delenv(name, raising=False)
    return str(api.kubeconfig(tmp_path / "admin", namespace="ml"))


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_cluster_in_which_all_is_in_place_is_said_to_be_sound(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["status", "--kubeconfig", kubeconfig]) == 0
    shown = capsys.readouterr().out
    assert "llama-7b" in shown
    assert "2/2" in shown
    assert "1 of 1 Ready" in shown
    assert "nothing is wrong" in shown
    assert invoke(["status", "--kubeconfig", kubeconfig, "-A", "-o", "json"]) == 0
    answer = told(capsys)
    assert answer["findings"] == []
    assert answer["unread"] == []
    assert [(row["namespace"], row["job"], row["uid"], row["pods"]) for row in answer["jobs"]] == [
        ("ml", "llama-7b", UID, 1)
    ]


def test_limits_are_those_of_all_policies_or_said_to_be_the_namespace_s_alone(
    api: ClusterApi, kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = {"apiVersion": "sameshot.dev/v1alpha1", "kind": "ClusterCapturePolicy"}
    api.make({**kind, "metadata": {"name": "default"}, "spec": {"maxDurationMs": 4321}})
    api.make({**kind, "metadata": {"name": "another"}, "spec": {"maxDurationMs": 17}})  # counts for nothing
    try:
        invoke(["status", "--kubeconfig", kubeconfig])
        shown = capsys.readouterr().out
        assert "namespace ml: windows up to 4321 ms" in shown
        assert "can be tighter" not in shown
        invoke(["status", "--kubeconfig", str(api.kubeconfig(tmp_path / "jane", "jane", namespace="ml"))])
        shown = capsys.readouterr().out
        assert "windows up to 10000 ms" in shown
        assert "the cluster's own policy, which you may not read, can be tighter" in shown
    finally:
        for name in ("default", "another"):
            api.delete("clustercapturepolicies.sameshot.dev", "", name)


def test_an_installation_with_namespaces_of_its_own_is_looked_at_there(
    api: ClusterApi, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.make(helper_pod("tools", "sameshot-agent", "agent-9", node="node-a"))
    there = ["--kubeconfig", kubeconfig, "--agents-namespace", "tools", "--system-namespace", "elsewhere"]
    try:
        assert invoke(["status", *there, "-o", "json"]) == 1
        answer = told(capsys)
        assert [each["name"] for each in answer["agents"]] == ["agent-9"]
        (finding,) = answer["findings"]
        assert finding["kind"] == "operator-away"
        assert "kubectl describe -n elsewhere deployment/" in finding["mend"]
    finally:
        api.delete("pods", "tools", "agent-9")


def test_reading_the_state_of_a_cluster_changes_nothing_in_it(api: ClusterApi, kubeconfig: str) -> None:
    before = len(api.log)
    invoke(["status", "--kubeconfig", kubeconfig, "-A"])
    assert len(api.log) > before
    assert api.writes(before) == []


def test_what_is_wrong_is_said_with_exit_code_1_and_of_one_job_where_one_is_named(
    api: ClusterApi, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = a_pod("notebook-0", node="node-a", armed=False)
    plain["metadata"]["annotations"] = {"sameshot.dev/not-armed": "The container has no command."}
    api.make(plain)
    api.set_status("capturecoordinators.sameshot.dev", "ml", NAME, {"phase": "Failed"})
    try:
        assert invoke(["status", "--kubeconfig", kubeconfig]) == 1
        shown = capsys.readouterr().out
        assert "The container has no command." in shown
        assert "can't be made" in shown
        assert invoke(["status", "--kubeconfig", kubeconfig, "--job", "llama-7b", "-o", "json"]) == 1
        assert [each["kind"] for each in told(capsys)["findings"]] == ["coordinator-failed"]
    finally:
        api.delete("pods", "ml", "notebook-0")
        api.set_status("capturecoordinators.sameshot.dev", "ml", NAME, {"phase": "Ready"})


def test_whoever_may_only_read_one_namespace_learns_of_that_and_is_told_what_was_not_looked_at(
    api: ClusterApi, kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = str(api.kubeconfig(tmp_path / "jane", "jane", namespace="ml"))
    assert invoke(["status", "--kubeconfig", mine, "-o", "json"]) == 0
    answer = told(capsys)
    assert [row["job"] for row in answer["jobs"]] == ["llama-7b"]
    unread = " ".join(each["what"] for each in answer["unread"])
    assert "sameshot-agents" in unread
    assert "sameshot-system" in unread
    assert "policy" not in unread  # of the cluster's nobody can have rights in a namespace; it is said where it matters
    assert [each["cluster_policy"] for each in answer["namespaces"]] == [False]
    assert answer["agents"] is None
    assert answer["findings"] == []  # of what was not seen nothing is claimed
    assert invoke(["status", "--kubeconfig", mine, "-A"]) == 77
    assert "name one with -n" in capsys.readouterr().err


def test_who_may_only_capture_is_told_what_status_takes_and_can_list_jobs(
    api: ClusterApi, kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bound(api, "carl", "sameshot-user")
    config = str(api.kubeconfig(tmp_path / "carl", "carl", namespace="ml"))
    assert invoke(["status", "-n", "ml", "--kubeconfig", config]) == 77
    said = capsys.readouterr().err
    assert "--clusterrole=view --user=<you>" in said
    assert "`sameshot jobs -n ml`" in said
    assert invoke(["jobs", "-n", "ml", "--kubeconfig", config]) == 0


def test_a_namespace_that_is_not_there_is_no_sound_one(
    api: ClusterApi, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["status", "-n", "nope", "--kubeconfig", kubeconfig]) == 6
    assert "There is no namespace nope in this cluster." in capsys.readouterr().err


def test_a_pod_whose_owners_may_not_be_read_is_laid_to_nobodys_charge(
    api: ClusterApi, kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It belongs to what is above its Job; who can't see that would miss a coordinator that is there."""
    rules = [
        {"apiGroups": ["", "sameshot.dev"], "resources": ["pods", "capturecoordinators"], "verbs": ["get", "list"]}
    ]
    group = "rbac.authorization.k8s.io"
    api.make(
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "pods", "namespace": "ml"}, "rules": rules}
    )
    api.make(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "joe", "namespace": "ml"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "pods"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "joe"}],
        }
    )
    middle = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "set-0", "namespace": "ml", "uid": "9f1a"}}
    api.make(a_pod("set-0-0", node="node-a", owner=middle))
    try:
        joes = str(api.kubeconfig(tmp_path / "joe", "joe", namespace="ml"))
        assert invoke(["status", "--kubeconfig", joes, "-o", "json"]) == 0
        answer = told(capsys)
        assert answer["findings"] == []
        assert "owners of pods in namespace ml" in [each["what"] for each in answer["unread"]]
        # The job of which the coordinator is known is still told by it.
        assert [(row["job"], row["pods"]) for row in answer["jobs"]] == [("llama-7b", 1)]
    finally:
        api.delete("pods", "ml", "set-0-0")


def test_jobs_of_a_cluster_are_listed_by_label_and_with_the_rights_of_a_namespace(
    api: ClusterApi, kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = str(api.kubeconfig(tmp_path / "jane", "jane", namespace="ml"))
    assert invoke(["jobs", "-n", "ml", "--kubeconfig", mine, "--label", "team=nlp", "-o", "json"]) == 0
    assert [(row["job"], row["phase"], row["endpoint"], row["series"]) for row in told(capsys)] == [
        ("llama-7b", "Ready", "10.0.0.9:7443", "llama")
    ]
    assert invoke(["jobs", "-n", "ml", "--kubeconfig", mine, "--label", "team=vision", "-o", "json"]) == 0
    assert told(capsys) == []
    assert invoke(["jobs", "-A", "--kubeconfig", mine]) == 77
    assert invoke(["jobs", "-A", "-n", "ml", "--kubeconfig", mine]) == 2


def test_a_cluster_without_sameshot_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ClusterApi() as empty:
        config = str(empty.kubeconfig(tmp_path / "config"))
        assert invoke(["status", "--kubeconfig", config]) == 1
        assert "not installed" in capsys.readouterr().out
        assert invoke(["jobs", "--kubeconfig", config]) == 6
        empty.away()
        assert invoke(["jobs", "--kubeconfig", config]) == 75
