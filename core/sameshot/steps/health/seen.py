"""What was read of a cluster, as values, and what a finding is."""

from __future__ import annotations

import enum

import msgspec

from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator
from sameshot.model import CapturePolicy, JobRef


class Severity(enum.StrEnum):
    PROBLEM = "problem"  # something can't be captured, or will not be
    NOTE = "note"  # worth knowing; captures work


class Finding(msgspec.Struct, frozen=True):
    """`about` is the object, as kubectl names it; `wrong` and `mend` are a sentence each."""

    kind: str
    severity: Severity
    namespace: str
    about: str
    wrong: str
    mend: str


class SeenPod(msgspec.Struct, frozen=True):
    """A pod with the label that asks for arming. `job` None: it is not armed, or its owners could not be asked for.
    `why` are the API's own words for what keeps it from running."""

    namespace: str
    name: str
    age_s: float
    node: str = ""
    phase: str = ""
    ended: bool = False
    armed: bool = False
    not_armed: str = ""  # the webhook's reason
    job: JobRef | None = None
    local_world_size: int | None = None
    why: str = ""

    @property
    def running(self) -> bool:
        return self.phase == "Running" and not self.ended


class SeenCoordinator(msgspec.Struct, frozen=True):
    object: CaptureCoordinator
    age_s: float


class SeenAgent(msgspec.Struct, frozen=True):
    name: str
    node: str
    ready: bool
    why: str = ""


class Hook(enum.StrEnum):
    """The ConfigMap `sameshot-hook` of a namespace."""

    CURRENT = "current"
    OTHER_VERSION = "other version"
    EDITED = "edited"  # its content is not what its own annotation says
    FOREIGN = "foreign"  # none of ours
    MISSING = "missing"


class SeenNamespace(msgspec.Struct, frozen=True):
    """`labelled`: the operator keeps the hook there (None: may not be read). `hook` None: may not be read.
    `cluster_policy` False: the cluster's policy may not be read, so `policy` is what the namespace's own allow."""

    name: str
    labelled: bool | None = None
    hook: Hook | None = None
    policy: CapturePolicy = CapturePolicy()
    cluster_policy: bool = True
    policy_problems: tuple[str, ...] = ()


class SeenOperator(msgspec.Struct, frozen=True):
    name: str
    ready: bool
    why: str = ""


class Unread(msgspec.Struct, frozen=True):
    """What the caller may not read, so nothing is said of it."""

    what: str
    why: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """`namespace` is the one that was asked about; None: all. `agents`, `operators` None: they could not be read."""

    namespace: str | None = None
    installed: bool = True  # the kind CaptureCoordinator is there
    pods: tuple[SeenPod, ...] = ()
    coordinators: tuple[SeenCoordinator, ...] = ()
    namespaces: tuple[SeenNamespace, ...] = ()
    agents: tuple[SeenAgent, ...] | None = None
    operators: tuple[SeenOperator, ...] | None = None
    unread: tuple[Unread, ...] = ()
    version: str = ""  # of this client
    system_namespace: str = names.SYSTEM_NAMESPACE
    agents_namespace: str = names.AGENTS_NAMESPACE
