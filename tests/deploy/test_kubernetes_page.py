"""docs/kubernetes.md is held to what is deployed: names, objects, commands, tables."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
import yaml
from cluster_kinds import kinds_of, problems_of, pruned
from kubernetes_objects import kustomized, pod_templates

from sameshot.cli.main import application
from sameshot.coordinator.configfile import ClusterConfig
from sameshot.gc import choose
from sameshot.kube import names, reviews
from sameshot.model import CapturePolicy
from sameshot.operator.config import OperatorConfig

REPO = Path(__file__).parents[2]
DEPLOY = REPO / "deploy"
PAGE = REPO / "docs/kubernetes.md"
TEXT = PAGE.read_text()
WHOLE = kustomized(DEPLOY / "overlays/cluster-wide")
KUBECTL = shutil.which("kubectl")
Json = dict[str, Any]


def commands() -> list[str]:
    """What stands behind each `$ `, without the remark at its end."""
    blocks = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines()]
    return [re.sub(r"\s{2,}# .*", "", line) for line in lines]


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in found if not set(row[0]) <= {"-"}]


def test_every_command_of_ours_is_one() -> None:
    seen = set()
    for line in commands():
        if not line.startswith("sameshot "):
            continue
        words = shlex.split(line)[1:]
        group = typer.main.get_command(application(words))
        command = getattr(group, "commands", {}).get(words[0], group)
        command.make_context(words[0], words[1:] if command is not group else words)
        seen.add(words[0])
    assert seen == {"status", "gc", "captures"}


def test_every_object_that_a_command_names_is_deployed() -> None:
    objects = WHOLE + kustomized(DEPLOY / "namespace")
    there = {
        (each["kind"].lower(), each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in objects
    }
    there.add(("namespace", "", "ml"))  # the user's own
    for line in commands():
        words = shlex.split(line.split(" | ")[0])
        if words[:1] != ["kubectl"]:
            continue
        namespace = words[words.index("-n") + 1] if "-n" in words else ""
        if namespace:
            assert ("namespace", "", namespace) in there, line
        if {"delete", "patch", "restart"} & set(words) and not {"-k", "--all", "--selector", "node"} & set(words):
            at = next(i for i, word in enumerate(words) if word in ("delete", "patch", "restart"))
            assert (words[at + 1], namespace, words[at + 2]) in there, line
        for label in re.findall(r"--selector (\S+)=", line):
            assert label == names.JOB_NAMESPACE, line
        for role in re.findall(r"--role=(\S+)", line):
            assert ("role", namespace, role) in there, line
        if "-k" in words and words[-1] != "my-cluster" and "my-cluster" not in words:
            assert (REPO / words[words.index("-k") + 1] / "kustomization.yaml").is_file(), line


def test_secrets_come_before_the_config_maps_that_the_parts_wait_for() -> None:
    for text in (section("Install"), (REPO / "README.md").read_text().split("\n## On Kubernetes\n")[1]):
        made = re.findall(
            r"^\$ kubectl -n (\S+) create (secret|configmap)(?: generic)? sameshot-archive", text, re.MULTILINE
        )
        assert made == [
            ("sameshot-agents", "secret"),
            ("sameshot-coordinators", "secret"),
            ("sameshot-system", "configmap"),
            ("sameshot-agents", "configmap"),
        ]


@pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl here, whose `kustomize` reads such patches")
def test_the_overlay_on_the_page_does_what_is_said_of_it(tmp_path: Path) -> None:
    whole, account = re.findall(r"```yaml\n(.*?)```", TEXT.split("\n## Policies\n")[0], re.DOTALL)
    there = "../sameshot/deploy/overlays/cluster-wide"
    assert there in whole
    told = yaml.safe_load(whole)
    told["resources"] = [os.path.relpath(DEPLOY / "overlays/cluster-wide", tmp_path.resolve())]
    told["patches"] += yaml.safe_load(account)["patches"]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(told))
    assert KUBECTL is not None
    built = subprocess.run([KUBECTL, "kustomize", tmp_path], capture_output=True, text=True, check=True, timeout=60)
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(built.stdout)}
    assert set(found) == {(each["kind"], each["metadata"]["name"]) for each in WHOLE}
    assert found["CronJob", "sameshot-gc"]["spec"]["suspend"] is False
    accounts = [each for (kind, _), each in found.items() if kind == "ServiceAccount"]
    assert len(accounts) == 4
    assert all(each["imagePullSecrets"] == [{"name": "registry"}] for each in accounts)
    annotated = [each["metadata"]["name"] for each in accounts if "annotations" in each["metadata"]]
    assert annotated == ["sameshot-agent"]
    operator = found["Deployment", "sameshot-operator"]["spec"]["template"]["spec"]["containers"][0]
    (plain,) = [
        each for each in WHOLE if (each["kind"], each["metadata"]["name"]) == ("Deployment", "sameshot-operator")
    ]
    (before,) = plain["spec"]["template"]["spec"]["containers"]
    assert operator["args"] == [*before["args"], "--pull-secret=registry"]
    pods = [template["spec"]["containers"] for _, template in pod_templates(list(found.values()))]
    assert {each["image"] for containers in pods for each in containers} == {"registry.local/sameshot/cluster:0.1.0"}


def test_config_maps_and_secrets_are_those_that_the_parts_read() -> None:
    read: dict[str, set[str]] = {}
    for overlay in ("cluster-wide", "dev"):
        for owner, template in pod_templates(kustomized(DEPLOY / "overlays" / overlay)):
            for container in template["spec"]["containers"]:
                given = [each["valueFrom"] for each in container.get("env", []) if "valueFrom" in each]
                found = {each["configMapKeyRef"]["name"] for each in given if "configMapKeyRef" in each}
                found |= {each["secretRef"]["name"] for each in container.get("envFrom", [])}
                read.setdefault(owner["metadata"]["namespace"], set()).update(found)
    made: dict[str, set[str]] = {}
    for namespace, name in re.findall(r"kubectl -n (\S+) create configmap (\S+)", TEXT):
        made.setdefault(namespace, set()).add(name)
    for namespace, wanted in read.items():
        told = {name for name, where in re.findall(r"^\| `(sameshot-[\w-]+)` \| `([\w-]+)` \|", TEXT, re.MULTILINE)
                if where == namespace}  # fmt: skip
        assert wanted == made[namespace] | told, namespace


def test_the_words_of_sed_reach_every_namespace_of_the_accounts() -> None:
    text = (DEPLOY / "namespace/accounts.yaml").read_text()
    changed = re.sub(r"namespace: ml$", "namespace: team-a", text, flags=re.MULTILINE)
    assert "sed 's/namespace: ml$/namespace: team-a/' deploy/namespace/accounts.yaml" in TEXT
    for each in yaml.safe_load_all(changed):
        assert each["metadata"]["namespace"] == "team-a"
        assert {subject["namespace"] for subject in each.get("subjects", [])} <= {"team-a"}
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(section("A namespace with jobs"))[1:]}
    documents = kustomized(DEPLOY / "namespace")
    bound = {each["subjects"][0]["name"]: each["roleRef"]["name"] for each in documents if "roleRef" in each}
    accounts = {each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"}
    assert told == {name: bound.get(name, "none") for name in accounts}


def test_policies_are_ones_that_the_server_takes_and_the_defaults_are_told() -> None:
    kinds = {kind.kind: kind for each in kustomized(DEPLOY / "crds") for kind in kinds_of(each)}
    (block,) = re.findall(r"```yaml\n(.*?)```", section("Policies"), re.DOTALL)
    for each in yaml.safe_load_all(block):
        kind = kinds[each["kind"]]
        assert pruned(kind, each) == (each, [])
        assert problems_of(kind, each, None) == []
        assert kind.namespaced == ("namespace" in each["metadata"])
    has = CapturePolicy()
    assert (
        f"{has.max_duration_ms // 1000} s windows, {has.max_duration_with_stack_ms // 1000} s with Python stacks, no "
        f"interval, {has.max_captures_at_once} captures at once" in section("Policies").replace("\n", " ")
    )
    assert has.min_interval_ms == 0


def test_the_table_of_network_policies_is_that_of_the_objects() -> None:
    told: dict[str, set[tuple[int, str]]] = {}
    for pods, port, source in rows(section("Network policies"))[1:]:
        name = "sameshot-coordinators" if pods.startswith("coordinators") else pods.strip("`")
        allowed = told.setdefault(name, set())
        ports = [int(each) for each in re.findall(r"\b\d{4}\b", port)]
        whence = "" if source.startswith("anywhere") or not source else source.strip("`")
        allowed.update((each, whence) for each in ports)
    ports_of = {
        (container_port["name"], owner["metadata"]["name"]): container_port["containerPort"]
        for owner, template in pod_templates(WHOLE)
        for container in template["spec"]["containers"]
        for container_port in container.get("ports", [])
    }
    have: dict[str, set[tuple[int, str]]] = {}
    for policy in (each for each in WHOLE if each["kind"] == "NetworkPolicy"):
        name = policy["metadata"]["name"]
        have[name] = set()
        for rule in policy["spec"].get("ingress", []):
            selectors = [each["namespaceSelector"]["matchLabels"] for each in rule.get("from", [])]
            (source,) = [each["kubernetes.io/metadata.name"] for each in selectors] or [""]
            for port in (each["port"] for each in rule["ports"]):
                have[name].add((port if isinstance(port, int) else ports_of[port, name], source))
    assert told == have
    assert (names.COORDINATOR_PORT, "") in have["sameshot-coordinators"]
    assert "Egress" not in str([each for each in WHOLE if each["metadata"]["name"] == "sameshot-operator"])


def test_every_namespace_with_pods_of_ours_has_a_policy_for_each_of_them() -> None:
    policies = [each for each in WHOLE if each["kind"] == "NetworkPolicy"]
    for owner, template in pod_templates(WHOLE):
        chosen = [
            each
            for each in policies
            if each["metadata"]["namespace"] == owner["metadata"]["namespace"]
            and each["spec"]["podSelector"].get("matchLabels", {}).items() <= template["metadata"]["labels"].items()
        ]
        assert len(chosen) == 1, owner["metadata"]["name"]
        assert "Ingress" in chosen[0]["spec"]["policyTypes"]


def test_the_numbers_are_those_of_the_code() -> None:
    assert [each.default for each in msgspec.structs.fields(ClusterConfig) if each.name == "drain_s"] == [120]
    assert "waits up to two minutes for captures that run" in TEXT.replace("\n", " ")
    (at_once,) = [each.default for each in msgspec.structs.fields(OperatorConfig) if each.name == "max_coordinators"]
    assert f"at most {at_once} of them" in section("Limits").replace("\n", " ")
    assert reviews.REMEMBERED_S < 10
    assert "Answers are remembered for seconds" in TEXT
    assert (choose.YOUNG_S, choose.LEFTOVER_S) == (86_400, 7 * 86_400)
    assert "What ended within a day always stays" in section("Old captures").replace("\n", " ")
    (gc,) = [each for each in WHOLE if each["kind"] == "CronJob"]
    (container,) = gc["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][2:] == ["--older-than=30d", "--keep=10"]
    assert "older than 30 days *and* not among the ten newest" in section("Old captures").replace("\n", " ")
