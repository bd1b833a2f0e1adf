"""What can be wrong, as a table of rules: each looks at all that was seen, and knows nothing of the others. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from sameshot.arm import labels
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator, Phase
from sameshot.model import JobRef
from sameshot.steps.health.seen import Finding, Hook, Seen, SeenPod, Severity

UNKEPT_S = 60.0  # an armed pod gets its CaptureCoordinator within seconds
PENDING_S = 120.0  # a coordinator's image may have to be pulled
REGISTER_S = 300.0  # from the pod's creation to `import torch` in every rank
MOST_NAMED = 3


def judge(seen: Seen) -> list[Finding]:
    """Problems first, then notes; each by namespace and object."""
    found = [finding for rule in RULES for finding in rule(seen)]
    return sorted(found, key=lambda each: (each.severity is Severity.NOTE, each.namespace, each.about, each.kind))


def not_installed(seen: Seen) -> Iterator[Finding]:
    if not seen.installed:
        yield _problem(
            "not-installed",
            "",
            f"customresourcedefinition/{names.COORDINATORS}.{names.GROUP}",
            "This cluster does not know CaptureCoordinators: sameshot is not installed in it.",
            "Install it: kubectl apply -k deploy/overlays/cluster-wide.",
        )


def operator_away(seen: Seen) -> Iterator[Finding]:
    if seen.operators is None or not seen.installed or any(each.ready for each in seen.operators):
        return
    why = "; ".join(f"pod {each.name}: {each.why or 'not Ready'}" for each in seen.operators) or "it has no pod"
    yield _problem(
        "operator-away",
        seen.system_namespace,
        f"deployment/{names.OPERATOR_ACCOUNT}",
        f"The operator does not run ({why}): new jobs get no coordinator.",
        f"See why: kubectl describe -n {seen.system_namespace} deployment/{names.OPERATOR_ACCOUNT}.",
    )


def nobody_keeps(seen: Seen) -> Iterator[Finding]:
    """Armed pods without a CaptureCoordinator for longer than an operator needs."""
    if not seen.installed or any(each.what == "CaptureCoordinators" for each in seen.unread):
        return
    kept = {each.object.job for each in seen.coordinators}
    for job, pods in _by_job(seen).items():
        if job in kept:
            continue
        oldest = max((pod.age_s for pod in pods if not pod.ended), default=0.0)
        if not names.usable(job):
            yield _problem(
                "unusable-job",
                job.namespace,
                f"job {job.name}",
                f"No coordinator can be made for job {job.name}: its uid {job.uid[:60]!r} is none that an API server "
                "gives.",
                "Have its pods made by a controller, and don't write ownerReferences by hand.",
            )
        elif oldest > UNKEPT_S:
            yield _problem(
                "no-coordinator",
                job.namespace,
                f"job {job.name}",
                f"Job {job.name} has had armed pods for {oldest:.0f} s and no CaptureCoordinator: the operator does "
                f"not run, or does not serve namespace {job.namespace}.",
                f"See its log: kubectl logs -n {seen.system_namespace} deployment/{names.OPERATOR_ACCOUNT}.",
            )


def coordinator_not_ready(seen: Seen) -> Iterator[Finding]:
    for each in seen.coordinators:
        one, age_s, said = each.object, each.age_s, _told(each.object)
        job = one.spec.job.name
        if one.status.phase is Phase.FAILED:
            yield _problem(
                "coordinator-failed",
                one.metadata.namespace,
                f"capturecoordinator/{one.metadata.name}",
                f"The coordinator of job {job} can't be made: {said or 'nothing is said of why'}.",
                f"See its conditions: kubectl describe -n {one.metadata.namespace} capturecoordinator "
                f"{one.metadata.name}.",
            )
        elif one.status.phase is Phase.PENDING and age_s > PENDING_S:
            pod = one.status.pod
            place = (
                f"-n {pod.namespace} pod {pod.name}" if pod is not None else f"-n {names.COORDINATORS_NAMESPACE} pods"
            )
            yield _problem(
                "coordinator-pending",
                one.metadata.namespace,
                f"capturecoordinator/{one.metadata.name}",
                f"The coordinator of job {job} has not become Ready in {age_s:.0f} s" + (f": {said}." if said else "."),
                f"See what it waits for: kubectl describe {place}.",
            )


def ranks_missing(seen: Seen) -> Iterator[Finding]:
    youngest: dict[JobRef, float] = {}
    for job, pods in _by_job(seen).items():
        running = [pod.age_s for pod in pods if not pod.ended]
        if running:
            youngest[job] = min(running)
    for each in seen.coordinators:
        status, job = each.object.status, each.object.job
        if status.phase is not Phase.READY or status.registered is None or status.expected is None:
            continue
        age_s = youngest.get(job)
        if status.registered >= status.expected or age_s is None or age_s < REGISTER_S:
            continue
        yield _problem(
            "ranks-missing",
            job.namespace,
            f"job {job.name}",
            f"{status.registered} of {status.expected} ranks of job {job.name} are registered, {age_s:.0f} s after its "
            "newest pod was made.",
            f"See which ranks nobody covers: sameshot workers -n {job.namespace} --job {job.name}; docs/launchers.md "
            "has what a launcher needs.",
        )


def node_without_agent(seen: Seen) -> Iterator[Finding]:
    if seen.agents is None:
        return
    ready = {each.node for each in seen.agents if each.ready}
    there = {each.node: each for each in seen.agents}
    nodes: dict[str, list[SeenPod]] = defaultdict(list)
    for pod in seen.pods:
        if pod.armed and pod.running and pod.node and pod.node not in ready:
            nodes[pod.node].append(pod)
    for node, pods in sorted(nodes.items()):
        who = _some([f"{pod.namespace}/{pod.name}" for pod in pods])
        agent = there.get(node)
        if agent is None:
            wrong = f"Node {node} runs armed pods ({who}) and has no agent: their ranks can't be captured."
            mend = (
                f"The DaemonSet chooses nodes by label; label it: kubectl label node {node} "
                f"sameshot.dev/agent=enabled, and see kubectl describe -n "
                f"{seen.agents_namespace} daemonset/sameshot-agent."
            )
        else:
            why = f" ({agent.why})" if agent.why else ""
            wrong = f"The agent of node {node} is not Ready{why}, and the node runs armed pods ({who})."
            mend = f"See why: kubectl describe -n {seen.agents_namespace} pod {agent.name}."
        yield _problem("node-without-agent", "", f"node/{node}", wrong, mend)


def hook_wrong(seen: Seen) -> Iterator[Finding]:
    anew = "sameshot arm --hook-only --namespace {0} | kubectl apply -f -"
    for one in seen.namespaces:
        about = f"configmap/{labels.HOOK_CONFIGMAP}"
        armed = any(pod.armed and not pod.ended for pod in seen.pods if pod.namespace == one.name)
        if one.hook is Hook.MISSING:
            kept = (
                "the operator keeps it there and has not (yet)" if one.labelled else "armed pods there start without it"
            )
            yield Finding(
                "hook-missing",
                Severity.PROBLEM if armed or one.labelled else Severity.NOTE,
                one.name,
                about,
                f"Namespace {one.name} has no ConfigMap {labels.HOOK_CONFIGMAP}: {kept}, so no rank registers.",
                f"Have the operator keep it: kubectl label namespace {one.name} {labels.ARM_LABEL}={labels.ENABLED}; "
                f"or make it: {anew.format(one.name)}."
                if not one.labelled
                else f"Make it: {anew.format(one.name)}.",
            )
        elif one.hook is Hook.FOREIGN:
            yield _problem(
                "hook-foreign",
                one.name,
                about,
                f"The ConfigMap {labels.HOOK_CONFIGMAP} in namespace {one.name} is not of sameshot, and is left alone: "
                "no rank registers.",
                f"Rename or delete it if nobody needs it, and then: {anew.format(one.name)}.",
            )
        elif one.hook is Hook.EDITED:
            yield _problem(
                "hook-edited",
                one.name,
                about,
                f"The files in ConfigMap {labels.HOOK_CONFIGMAP} in namespace {one.name} are not those that its "
                "annotation names: somebody has edited it.",
                f"Replace it: {anew.format(one.name)}.",
            )
        elif one.hook is Hook.OTHER_VERSION:
            yield _note(
                "hook-other-version",
                one.name,
                about,
                f"The hook in namespace {one.name} is of another version than this client ({seen.version}).",
                "Nothing need be done while they are one minor version apart at most; the operator renews it where the "
                f"namespace is labelled, else: {anew.format(one.name)}.",
            )


def pod_not_armed(seen: Seen) -> Iterator[Finding]:
    for pod in seen.pods:
        if pod.armed or pod.ended:
            continue
        about = f"pod/{pod.name}"
        if pod.not_armed:
            yield _problem(
                "pod-refused",
                pod.namespace,
                about,
                f"Pod {pod.name} asked for arming and was left as it is: {pod.not_armed.rstrip('.')}.",
                "Change the workload so that the reason goes away (docs/arming.md), and have its pods made anew.",
            )
        else:
            yield _problem(
                "pod-unarmed",
                pod.namespace,
                about,
                f"Pod {pod.name} has the label {labels.ARM_LABEL}={labels.ENABLED} and is not armed: the webhook was "
                "not asked when it was made (not installed, away, or the label came later).",
                "See that the webhook runs (kubectl get mutatingwebhookconfigurations,pods -A -l "
                "app.kubernetes.io/name=sameshot-webhook), and have the pod made anew; or arm the workload's file: "
                "sameshot arm -f.",
            )


def policy_not_understood(seen: Seen) -> Iterator[Finding]:
    for one in seen.namespaces:
        for problem in one.policy_problems:
            yield _note(
                "policy-not-understood",
                one.name,
                "capturepolicy",
                f"{problem[:1].upper()}{problem[1:]}.",
                f"Mend it: kubectl edit -n {one.name} capturepolicy, or clustercapturepolicy/default.",
            )


RULES: Sequence[Callable[[Seen], Iterator[Finding]]] = (
    not_installed,
    operator_away,
    nobody_keeps,
    coordinator_not_ready,
    ranks_missing,
    node_without_agent,
    hook_wrong,
    pod_not_armed,
    policy_not_understood,
)


def _by_job(seen: Seen) -> dict[JobRef, list[SeenPod]]:
    found: dict[JobRef, list[SeenPod]] = defaultdict(list)
    for pod in seen.pods:
        if pod.armed and pod.job is not None:
            found[pod.job].append(pod)
    return found


def _told(one: CaptureCoordinator) -> str:
    """The conditions' own words for what is not as it should be."""
    wrong = [each for each in one.status.conditions if each.status != "True"] or list(one.status.conditions)
    return "; ".join(f"{each.reason}: {each.message.rstrip('.')}" if each.message else each.reason for each in wrong)


def _some(found: Sequence[str]) -> str:
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def _problem(kind: str, namespace: str, about: str, wrong: str, mend: str) -> Finding:
    return Finding(kind, Severity.PROBLEM, namespace, about, wrong, mend)


def _note(kind: str, namespace: str, about: str, wrong: str, mend: str) -> Finding:
    return Finding(kind, Severity.NOTE, namespace, about, wrong, mend)
