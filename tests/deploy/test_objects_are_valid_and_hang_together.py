"""What deploy/ ships for a cluster, as an API server and a careful reader would take it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_objects import documents_in, identity, kustomized, pod_templates, schema_problems, set_problems
from pod_security import violations

import sameshot
from sameshot.arm import labels
from sameshot.kube import names, owners
from sameshot.operator.rights import AGENT_TLS_SECRET

DEPLOY = Path(__file__).parents[2] / "deploy"
AGENT, WEBHOOK, CERTIFIED = DEPLOY / "agent", DEPLOY / "webhook/base", DEPLOY / "webhook/cert-manager"
WHOLE, CHOSEN, DEV = (DEPLOY / "overlays" / name for name in ("cluster-wide", "namespaces", "dev"))
EVERY = sorted(each.parent for each in DEPLOY.rglob("kustomization.yaml"))
"""All folders that kustomize can build; those that have no namespace of their own are parts of an overlay."""
Json = dict[str, Any]

every = pytest.mark.parametrize("folder", EVERY, ids=lambda each: str(each.relative_to(DEPLOY)))


def one(kind: str, name: str, *, of: Path) -> Json:
    (found,) = [each for each in kustomized(of) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


@every
def test_every_field_is_one_of_kubernetes(folder: Path) -> None:
    assert [problem for each in kustomized(folder) for problem in schema_problems(each)] == []


@pytest.mark.parametrize(
    "folder", [AGENT, WEBHOOK, CERTIFIED, WHOLE, CHOSEN, DEV], ids=lambda each: str(each.relative_to(DEPLOY))
)
def test_every_reference_leads_somewhere(folder: Path) -> None:
    assert set_problems(kustomized(folder), there={"ml"} if folder == CHOSEN else ()) == []


def test_what_a_namespace_gets_refers_to_what_the_cluster_has() -> None:
    assert set_problems([*kustomized(WHOLE), *kustomized(DEPLOY / "namespace")], there={"ml"}) == []


def test_each_folder_is_part_of_an_overlay_or_stands_for_itself() -> None:
    def below(folder: Path) -> set[Path]:
        told = yaml.safe_load((folder / "kustomization.yaml").read_text())
        places = [(folder / each).resolve() for each in told["resources"]]
        return {folder.resolve()}.union(*(below(each) for each in places if each.is_dir()))

    used = set().union(*(below(each) for each in (WHOLE, CHOSEN, DEV)))
    assert set(EVERY) - used == {DEPLOY / "namespace"}


@every
def test_kustomize_makes_the_same_of_it(folder: Path) -> None:
    """With the real one where there is one; what our reading of kustomization.yaml can't see would show here."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here, whose `kustomize` is the real one")
    built = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True).stdout
    documents = list(yaml.safe_load_all(built))
    assert {identity(each): each for each in documents} == {identity(each): each for each in kustomized(folder)}


@every
def test_no_file_is_left_out_of_its_kustomization(folder: Path) -> None:
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    named = {*told["resources"], *(each["path"] for each in told.get("patches", []))}
    files = {each.name for each in folder.iterdir() if each.is_file()} - {"kustomization.yaml"}
    assert files == {each for each in named if "/" not in each}


def test_the_checks_see_what_is_wrong() -> None:
    """Each of these is an error that a server, or nobody, would tell of."""
    agent = one("DaemonSet", "sameshot-agent", of=AGENT)

    def problems(change: str) -> list[str]:
        documents = kustomized(AGENT)
        (daemon_set,) = [each for each in documents if each["kind"] == "DaemonSet"]
        exec(change, {"it": daemon_set, "pod": daemon_set["spec"]["template"]["spec"]})
        return [*schema_problems(daemon_set), *set_problems(documents)]

    assert agent["spec"]["template"]["spec"]["containers"]
    for change, told in {
        "it['spec']['selector']['matchLabels']['x'] = 'y'": "does not select its own pods",
        "pod['containers'][0]['volumeMounts'][0]['name'] = 'other'": "is mounted and no volume",
        "pod['serviceAccountName'] = 'other'": "no ServiceAccount other",
        "pod['priorityClassName'] = 'other'": "no PriorityClass other",
        "pod['containers'][0]['securityContext']['readOnlyRootFileSystem'] = True": "unknown in V1SecurityContext",
        "pod['containers'][0]['args'] = ['--x', 1]": "is no str",
        "pod['containers'][0]['resources']['requests']['memory'] = '9Gi'": "asked for",
        "del pod['containers'][0]['name']": "`name`",
        "it['metadata']['namespace'] = 'elsewhere'": "its namespace elsewhere",
    }.items():
        assert any(told in each for each in problems(change)), (change, problems(change))


# ---- images


def test_images_are_those_of_this_version() -> None:
    images = {
        container["image"]
        for folder in EVERY
        for _, template in pod_templates(kustomized(folder))
        for container in template["spec"]["containers"]
    }
    assert images == {f"sameshot/cluster:{sameshot.__version__}"}


# ---- Pod Security


@pytest.mark.parametrize("folder", [WHOLE, CHOSEN], ids=lambda each: each.name)
def test_every_pod_is_one_that_its_namespace_allows(folder: Path) -> None:
    """And the one namespace that must allow more holds nothing but agents."""
    documents = kustomized(folder)
    enforced = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in documents
        if each["kind"] == "Namespace"
    }
    assert enforced == {
        "sameshot-system": "restricted", "sameshot-coordinators": "restricted", "sameshot-agents": "privileged"
    }  # fmt: skip
    templates = pod_templates(documents)
    assert len(templates) >= 3
    for owner, template in templates:
        if enforced[owner["metadata"]["namespace"]] == "restricted":
            assert violations(template, "restricted") == [], owner["metadata"]["name"]
        else:
            assert owner["metadata"]["name"] == "sameshot-agent"


def test_on_host_networks_every_port_of_a_node_is_one_part_s_alone() -> None:
    """A port that is declared there is one that the scheduler gives away once per node."""
    ports: list[int] = []
    for owner, template in pod_templates(kustomized(DEV)):
        if owner["kind"] == "CronJob":
            continue
        assert template["spec"]["hostNetwork"] is True
        ports += [each["containerPort"] for one in template["spec"]["containers"] for each in one.get("ports", [])]
    assert len(ports) == len(set(ports))


# ---- the operator and gc


def test_there_is_one_operator_and_never_two_for_a_moment() -> None:
    spec = one("Deployment", "sameshot-operator", of=WHOLE)["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_gc_waits_until_somebody_starts_it_and_has_the_one_credential_that_deletes() -> None:
    spec = one("CronJob", "sameshot-gc", of=WHOLE)["spec"]
    assert spec["suspend"] is True
    assert spec["concurrencyPolicy"] == "Forbid"
    (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["sameshot-archive-delete"]
    others = [each for each in kustomized(WHOLE) if each["kind"] != "CronJob"]
    assert not [each for each in others if "sameshot-archive-delete" in str(each)]


# ---- the webhook


def test_the_webhook_can_never_keep_a_pod_from_starting() -> None:
    (hook,) = one("MutatingWebhookConfiguration", "sameshot", of=WEBHOOK)["webhooks"]
    assert hook["failurePolicy"] == "Ignore"
    assert hook["timeoutSeconds"] == 2
    assert hook["sideEffects"] == "None"
    assert hook["reinvocationPolicy"] == "IfNeeded"
    assert hook["admissionReviewVersions"] == ["v1"]


def test_the_webhook_sees_only_pods_that_are_created_and_ask_for_it() -> None:
    (hook,) = one("MutatingWebhookConfiguration", "sameshot", of=WEBHOOK)["webhooks"]
    assert hook["rules"] == [
        {
            "operations": ["CREATE"],
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }
    ]
    assert hook["objectSelector"] == {"matchLabels": {labels.ARM_LABEL: labels.ENABLED}}
    out = {each["key"]: each["values"] for each in hook["namespaceSelector"]["matchExpressions"]}
    assert out[labels.ARM_LABEL] == [labels.DISABLED]
    assert {"kube-system", "sameshot-system", "sameshot-agents"} <= set(out["kubernetes.io/metadata.name"])
    assert {each["operator"] for each in hook["namespaceSelector"]["matchExpressions"]} == {"NotIn"}


def test_the_webhook_is_asked_under_names_that_its_certificate_has() -> None:
    (hook,) = one("MutatingWebhookConfiguration", "sameshot", of=CERTIFIED)["webhooks"]
    service = hook["clientConfig"]["service"]
    names = one("Certificate", "sameshot-webhook", of=CERTIFIED)["spec"]["dnsNames"]
    assert f"{service['name']}.{service['namespace']}.svc" in names  # the name that an API server verifies
    secret = one("Certificate", "sameshot-webhook", of=CERTIFIED)["spec"]["secretName"]
    spec = one("Deployment", "sameshot-webhook", of=CERTIFIED)["spec"]["template"]["spec"]
    assert [each["secret"]["secretName"] for each in spec["volumes"]] == [secret]
    assert service["path"] == "/arm"


def test_the_authority_stays_while_the_certificate_is_renewed() -> None:
    """An API server trusts the old caBundle for a while after a renewal."""
    certificate = one("Certificate", "sameshot-webhook", of=CERTIFIED)["spec"]
    issuer = one("Issuer", certificate["issuerRef"]["name"], of=CERTIFIED)["spec"]
    authority = one("Certificate", "sameshot-webhook-ca", of=CERTIFIED)["spec"]
    assert issuer["ca"]["secretName"] == authority["secretName"]
    assert authority["isCA"] is True
    hours = {name: int(each["duration"].removesuffix("h")) for name, each in (("ca", authority), ("leaf", certificate))}
    assert hours["ca"] > 10 * hours["leaf"]


def test_the_webhook_runs_under_restricted_pod_security_and_without_a_token() -> None:
    namespace = one("Namespace", "sameshot-system", of=WEBHOOK)["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    spec = one("Deployment", "sameshot-webhook", of=WEBHOOK)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
    assert [set(each) - {"name"} for each in spec["volumes"]] == [{"secret"}]
    assert not [each for each in kustomized(WEBHOOK) if "Role" in each["kind"]]


def test_one_webhook_is_there_while_another_is_replaced_or_its_node_drained() -> None:
    deployment = one("Deployment", "sameshot-webhook", of=WEBHOOK)["spec"]
    assert deployment["replicas"] >= 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert one("PodDisruptionBudget", "sameshot-webhook", of=WEBHOOK)["spec"]["minAvailable"] == 1


# ---- the agent


def agent_spec() -> Json:
    spec: Json = one("DaemonSet", "sameshot-agent", of=AGENT)["spec"]["template"]["spec"]
    return spec


def test_the_agent_has_two_capabilities_of_root_and_nothing_else() -> None:
    (container,) = agent_spec()["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SYS_CHROOT", "DAC_OVERRIDE"]}
    assert context["privileged"] is False
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (context["runAsUser"], context["runAsGroup"]) == (0, 0)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(agent_spec())


def test_the_agent_sees_the_kubelet_s_root_through_one_mount_and_no_other_part_of_its_node() -> None:
    spec = agent_spec()
    (container,) = spec["containers"]
    on_node = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    assert on_node == {"kubelet": "/var/lib/kubelet"}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "kubelet"]
    assert mount["mountPath"] == "/var/lib/kubelet"
    # Else the agent would hold volumes of other pods that the kubelet has unmounted, and nobody could detach them.
    assert mount["mountPropagation"] == "HostToContainer"
    assert f"--kubelet-root={mount['mountPath']}" in container["args"]


def test_the_agent_may_read_pods_and_the_owners_that_it_climbs_ask_whose_a_token_is_and_write_nothing() -> None:
    rules = one("ClusterRole", "sameshot-agent", of=AGENT)["rules"]
    granted = {
        (group, resource): set(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    climbed = {(group, resource): {"get"} for (group, _), resource in owners._MIDDLEMEN.items()}
    asked = {("authentication.k8s.io", "tokenreviews"): {"create"}}  # which stores nothing
    assert granted == {("", "pods"): {"list", "watch"}} | asked | climbed
    assert not any("resourceNames" in rule or "*" in str(rule) for rule in rules)
    account = one("ServiceAccount", "sameshot-agent", of=AGENT)
    assert account["automountServiceAccountToken"] is False  # but for the pod that says so itself
    assert agent_spec()["automountServiceAccountToken"] is True


def test_an_agent_serves_coordinators_with_the_certificate_that_comes_later_and_is_ready_once_it_does() -> None:
    spec = agent_spec()
    (container,) = spec["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": names.AGENT_PORT, "metrics": names.METRICS_PORT}
    (secret,) = [each["secret"] for each in spec["volumes"] if "secret" in each]
    assert (secret["secretName"], secret["optional"]) == (AGENT_TLS_SECRET, True)
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    for option in (
        f"--listen=0.0.0.0:{names.AGENT_PORT}",
        f"--metrics=0.0.0.0:{names.METRICS_PORT}",
        f"--certificate={mount['mountPath']}/tls.crt",
        f"--key={mount['mountPath']}/tls.key",
        f"--coordinators-namespace={names.COORDINATORS_NAMESPACE}",
    ):
        assert option in container["args"], option
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("readiness", "liveness")}
    assert probes == {
        "readiness": {"path": "/readyz", "port": "metrics"},
        "liveness": {"path": "/healthz", "port": "metrics"},
    }


def test_an_agent_never_takes_the_place_of_training() -> None:
    priority = one("PriorityClass", "sameshot-agent", of=AGENT)
    assert priority["preemptionPolicy"] == "Never"
    assert priority["globalDefault"] is False
    assert 0 < priority["value"] < 1_000_000_000  # above that is the system's own
    (container,) = agent_spec()["containers"]
    assert {"cpu", "memory", "ephemeral-storage"} == set(container["resources"]["limits"])


def test_an_agent_is_on_every_accelerator_node_whatever_keeps_others_off_and_on_no_other() -> None:
    spec = agent_spec()
    assert {(each["operator"], each["effect"], each.get("key")) for each in spec["tolerations"]} == {
        ("Exists", "NoSchedule", None), ("Exists", "NoExecute", None)
    }  # fmt: skip
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    def chosen(node: dict[str, str]) -> bool:
        return any(all(_matches(each, node) for each in term["matchExpressions"]) for term in terms)

    assert chosen({"nvidia.com/gpu.present": "true"})
    assert chosen({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"})
    assert chosen({"kubernetes.azure.com/accelerator": "nvidia"})
    assert chosen({"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"})
    assert chosen({"karpenter.k8s.aws/instance-gpu-count": "8"})
    assert chosen({"amd.com/gpu.device-id": "74a1"})
    assert chosen({"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"})
    assert chosen({"karpenter.k8s.aws/instance-accelerator-count": "16"})  # Trainium, Inferentia, Gaudi
    assert chosen({"intel.feature.node.kubernetes.io/gpu": "true"})
    assert chosen({"intel.feature.node.kubernetes.io/gaudi": "true"})
    assert chosen({"sameshot.dev/agent": "enabled"})
    assert not chosen({"kubernetes.io/os": "linux"})
    assert not chosen({"nvidia.com/gpu.present": "false"})
    accelerators = {each["key"] for term in terms for each in term["matchExpressions"]} - {"sameshot.dev/agent"}
    assert len(accelerators) == len(terms) - 1
    for accelerator in accelerators:
        assert chosen({accelerator: "true"})
        assert not chosen({accelerator: "true", "sameshot.dev/agent": "disabled"})


def _matches(expression: Json, node: dict[str, str]) -> bool:
    value = node.get(expression["key"])
    match expression["operator"]:
        case "Exists":
            return value is not None
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
    raise AssertionError(expression)


def test_privileged_pods_have_a_namespace_of_their_own() -> None:
    enforced = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for folder in (AGENT, WEBHOOK)
        for each in kustomized(folder)
        if each["kind"] == "Namespace"
    }
    assert enforced == {"sameshot-agents": "privileged", "sameshot-system": "restricted"}
    assert {each["metadata"].get("namespace") for each in kustomized(AGENT)} == {None, "sameshot-agents"}
    assert len(pod_templates(kustomized(AGENT))) == 1


def test_nothing_is_reachable_that_need_not_be() -> None:
    agent = one("NetworkPolicy", "sameshot-agent", of=AGENT)["spec"]
    assert agent["policyTypes"] == ["Ingress"]
    coordinators = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "sameshot-coordinators"}}}
    assert agent["ingress"] == [
        {"from": [coordinators], "ports": [{"port": "grpc", "protocol": "TCP"}]},
        {"ports": [{"port": "metrics", "protocol": "TCP"}]},
    ]
    webhook = one("NetworkPolicy", "sameshot-webhook", of=WEBHOOK)["spec"]
    assert webhook["policyTypes"] == ["Ingress", "Egress"]
    assert webhook["ingress"] == [{"ports": [{"port": each, "protocol": "TCP"} for each in ("https", "metrics")]}]
    assert "egress" not in webhook


def test_the_shipped_yaml_is_plain() -> None:
    for folder in EVERY:
        for path in folder.glob("*.yaml"):
            assert documents_in(path), path
            text = path.read_text()
            assert not re.search(r"[ -]&\w", text), path  # no anchors: kustomize patches would meet them
            assert "\t" not in text, path
