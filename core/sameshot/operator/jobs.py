"""What a job's own object says: whether it is there, has ended, what it is called by. Read, never written."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

import msgspec

from sameshot.arm import labels
from sameshot.arm.ended import ENDINGS
from sameshot.arm.values import Json, inside
from sameshot.kube.api import Api, ApiError
from sameshot.kube.deep import decoded
from sameshot.kube.pods import Owner
from sameshot.model import JobRef
from sameshot.operator.decide import End

log = logging.getLogger(__name__)

POD = Owner("v1", "Pod", "", "")
MAX_LABELS = 128
MAX_SERIES = 253
_PATH_PIECE_MAX = 253


class Looked(msgspec.Struct, frozen=True):
    """`tells`: whether this object will ever say that the job has ended."""

    end: End
    tells: bool = True
    series: str = ""
    labels: dict[str, str] = {}
    why: str = ""


class _Owner(msgspec.Struct, rename="camel"):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _JobMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _JobObject(msgspec.Struct):
    """What is read of it: the rest may be a hundred times as much."""

    metadata: _JobMeta = msgspec.field(default_factory=_JobMeta)
    status: dict[str, Any] = {}


def look(api: Api, job: JobRef, top: Owner) -> Looked:
    """Read the job's own object. Raises OSError or HTTPException where the API server can't be asked."""
    group, _, version = top.api_version.rpartition("/")
    ending = ENDINGS.get((group, top.kind))
    if ending is None:
        return Looked(End.UNKNOWN, tells=False, why=f"when a {top.kind} of {top.api_version} ends is not known")
    pieces = (version, job.name)
    if any(
        piece in ("", ".", "..") or "/" in piece or "%" in piece or len(piece) > _PATH_PIECE_MAX for piece in pieces
    ):
        return Looked(End.GONE, why="no object can be called so")  # it is whatever the pod's maker wrote
    root = ("apis", group, version) if group else ("api", version)
    path = "".join(f"/{quote(one, safe='')}" for one in (*root, "namespaces", job.namespace, ending.resource, job.name))
    try:
        read = decoded(api.get(path), _JobObject)
    except ApiError as error:
        if error.status == 404:
            return Looked(End.GONE, why=f"there is no {top.kind} {job.namespace}/{job.name}")
        if error.status == 403:
            return Looked(End.UNKNOWN, tells=False, why=f"{error}")
        raise
    if read.metadata.uid != job.uid:
        return Looked(End.GONE, why=f"another {top.kind} has the name {job.namespace}/{job.name}")
    found: Json = msgspec.to_builtins(read)
    ended = ending.ended(found)
    end = End.UNKNOWN if ended is None else End.ENDED if ended else End.RUNS
    return Looked(end, tells=ending.tells, series=series_of(found), labels=_labels(read.metadata.labels))


def series_of(thing: Json) -> str:
    """What makes runs of this job comparable: what the user wrote, else the CronJob that made it, else its name without
    what the API server generated."""
    metadata = inside(thing, "metadata")
    said = inside(metadata, "annotations").get(labels.SERIES)
    if isinstance(said, str) and said:
        return said[:MAX_SERIES]
    owners = metadata.get("ownerReferences")
    for one in owners if isinstance(owners, list) else ():
        if isinstance(one, dict) and one.get("controller") and one.get("kind") == "CronJob" and one.get("name"):
            return str(one["name"])[:MAX_SERIES]
    name, generated = str(metadata.get("name") or ""), metadata.get("generateName")
    if isinstance(generated, str) and generated.rstrip("-.") and name.startswith(generated):
        name = generated.rstrip("-.")
    return name[:MAX_SERIES]


def _labels(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    kept = {key: value for key, value in found.items() if isinstance(value, str) and len(value) <= 63}
    return dict(sorted(kept.items())[:MAX_LABELS])
