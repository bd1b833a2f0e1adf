"""The one home of every name by which the parts in a cluster find and know each other. Pure."""

from __future__ import annotations

import hashlib
import re

from sameshot.arm import labels
from sameshot.errors import UsageError
from sameshot.model import JobRef, is_name

GROUP, VERSION = labels.DOMAIN, "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
COORDINATORS = "capturecoordinators"
POLICIES = "capturepolicies"
CLUSTER_POLICIES = "clustercapturepolicies"
CAPTURES = "captures"
"""The resource of `GROUP` that rights are given on. There are no such objects: an access review asks for it by name."""

# Where the parts live; each can be chosen (an option of the part, a patch of the deployment).
SYSTEM_NAMESPACE = "sameshot-system"
COORDINATORS_NAMESPACE = "sameshot-coordinators"
AGENTS_NAMESPACE = "sameshot-agents"

OPERATOR_ACCOUNT = "sameshot-operator"
CALLERS_ACCOUNT = "sameshot"
"""The ServiceAccount, in the job's namespace, for which a person's client asks a token, unless another one is named."""
ACCOUNT_PREFIX = "c-"  # of coordinators' own
ANALYSIS_ACCOUNT = "sameshot-analysis"

COORDINATOR_PRIORITY = "sameshot-coordinator"
"""The PriorityClass of coordinators' pods."""

COORDINATOR_PORT = 7443
AGENT_PORT = 7444
PROBE_PORT = 7445
"""A coordinator's, for its kubelet."""
PROBE_PORTS_AFTER = 2000
"""On their nodes' network coordinators have ports of their own each, and this one so far after it, beyond them all."""
METRICS_PORT = 9464

JOB_UID = f"{GROUP}/job-uid"
ATTEMPT = f"{GROUP}/attempt"
JOB_NAMESPACE = f"{GROUP}/job-namespace"
"""Labels of everything that the operator makes for a job attempt."""
JOB_NAME = f"{GROUP}/job-name"
"""An annotation: a name may be longer than a label's value."""
MANAGED = {"app.kubernetes.io/managed-by": "sameshot-operator"}

ARMED_SELECTOR = f"{labels.ARM_LABEL}={labels.ENABLED}"
AGENT_SELECTOR = "app.kubernetes.io/name=sameshot-agent"
OPERATOR_SELECTOR = "app.kubernetes.io/name=sameshot-operator"

POD_OVER = ("Succeeded", "Failed")
"""Phases of a pod that will not run again."""

AGENT_AUDIENCE = "sameshot-agent"
AGENT_HOST = f"sameshot-agent.{AGENTS_NAMESPACE}.svc"
"""What every agent's certificate is for: they are all the same part, whatever their addresses."""

# As long as the API server's own uids, in lower case; what a pod's maker wrote as an owner's uid may be anything.
_UID = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,34}[0-9a-z])?")
_COORDINATOR = re.compile(rf"c-{_UID.pattern}-([0-9a-f]{{10}})-(?:0|[1-9][0-9]{{0,7}})")
MAX_ATTEMPT = 99_999_999


def usable(job: JobRef) -> bool:
    """Whether objects can be named after this job, and its name is one: both are what a pod's maker wrote."""
    return _UID.fullmatch(job.uid) is not None and 0 <= job.attempt <= MAX_ATTEMPT and is_name(job.name)


def account_of(job: JobRef) -> str:
    """The ServiceAccount of the coordinators of this job, of all of its attempts.

    A uid is what a pod's maker wrote as its owner's; with the namespace in the name nobody gets the account of a job in
    another namespace. Raises UsageError for a job that is not `usable`.
    """
    if not usable(job):
        raise UsageError(f"No coordinator can be made for job {job}: its name or its uid {job.uid[:60]!r} is none.")
    return f"{ACCOUNT_PREFIX}{job.uid}-{_digest(job.namespace)}"


def coordinator_of(job: JobRef) -> str:
    """Pod, Service, Secret and ConfigMap of this attempt's coordinator, and its CaptureCoordinator."""
    return f"{account_of(job)}-{job.attempt}"


def may_be_coordinator(namespace: str, name: str) -> bool:
    """Whether `coordinator_of` some attempt of some job of this namespace gives that name."""
    parts = _COORDINATOR.fullmatch(name)
    return parts is not None and parts[1] == _digest(namespace)


def _digest(namespace: str) -> str:
    return hashlib.sha256(namespace.encode()).hexdigest()[:10]


def coordinator_host(job: JobRef, namespace: str = COORDINATORS_NAMESPACE) -> str:
    """What this coordinator's certificate is for, and the address of its Service."""
    return f"{coordinator_of(job)}.{namespace}.svc"


def audience_of(job: JobRef) -> str:
    """For whom a caller's token is meant: this job's coordinators, and nobody else.

    As their account, it binds the namespace, too: a uid alone would be that of any pod whose maker wrote it as its
    owner's. Raises UsageError for a job that is not `usable`.
    """
    return f"sameshot/{account_of(job)}"


def pods_path(namespace: str | None = None) -> str:
    """Of the API server; None: of all namespaces."""
    return "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"


def username_of(namespace: str, account: str) -> str:
    """How the API server names a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{account}"
