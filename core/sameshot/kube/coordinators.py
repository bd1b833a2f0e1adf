"""`CaptureCoordinator` as a value: what the operator writes and clients read. Its status is the only way to find a
job's coordinator. The schema is `deploy/crds/capturecoordinators.yaml`."""

from __future__ import annotations

import base64
import binascii
import enum

import msgspec

from sameshot.kube import names
from sameshot.model import JobRef


class Phase(enum.StrEnum):
    PENDING = "Pending"  # its pod is not there or does not serve yet
    READY = "Ready"
    FINISHED = "Finished"  # the job has ended: no new captures
    SUPERSEDED = "Superseded"  # a later attempt of the job runs
    FAILED = "Failed"  # it can't be made; the conditions say why

    @classmethod
    def _missing_(cls, value: object) -> Phase:
        """Of a newer operator: nothing that is known here to serve."""
        return cls.PENDING


class Job(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    name: str
    uid: str
    attempt: int = 0


class Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Never changes. `labels` are those of the job's own object, where it could be read."""

    job: Job
    series: str = ""
    labels: dict[str, str] = {}


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str  # True, False or Unknown
    reason: str
    message: str = ""
    last_transition_time: str = ""


class PodPlace(msgspec.Struct, frozen=True):
    """The coordinator's pod, for a port-forward."""

    namespace: str
    name: str
    port: int


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`endpoint` is host:port as parts in the cluster reach it, `server_name` what its certificate is for, `ca_bundle`
    PEM in base64. `registered` and `expected` are workers as last seen, at `observed_at`; None: not known."""

    phase: Phase = Phase.PENDING
    endpoint: str = ""
    server_name: str = ""
    ca_bundle: str = ""
    attempt: int = 0
    pod: PodPlace | None = None
    registered: int | None = None
    expected: int | None = None
    observed_at: str = ""
    version: str = ""
    conditions: tuple[Condition, ...] = ()

    @property
    def ca(self) -> bytes:
        """PEM; empty where it is none."""
        try:
            return base64.b64decode(self.ca_bundle, validate=True)
        except binascii.Error:
            return b""

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class CaptureCoordinator(msgspec.Struct, frozen=True):
    """One object of that kind; fields that are not known here are ignored."""

    metadata: Meta
    spec: Spec
    status: Status = Status()

    @property
    def job(self) -> JobRef:
        job = self.spec.job
        return JobRef(self.metadata.namespace, job.name, job.uid, job.attempt)


def path_of(namespace: str | None = None, name: str | None = None, *, status: bool = False) -> str:
    """In the API: of one, of all in a namespace, or (without) of all in the cluster."""
    where = "" if namespace is None else f"/namespaces/{namespace}"
    which = "" if name is None else f"/{name}"
    return f"/apis/{names.API_VERSION}{where}/{names.COORDINATORS}{which}{'/status' if status else ''}"
