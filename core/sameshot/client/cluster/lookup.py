"""Asking the API server for CaptureCoordinators, and saying what stands in the way of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from sameshot.client.cluster.access import Access
from sameshot.client.cluster.address import KubeAddress
from sameshot.client.cluster.coordinators import Armed
from sameshot.errors import Denied, NoSuchJob, SameshotError, Unreachable
from sameshot.kube import names
from sameshot.kube.api import TROUBLES, ApiError
from sameshot.kube.coordinators import CaptureCoordinator, path_of

ANONYMOUS = "system:anonymous"  # who brings no credential, also because the login program failed


def coordinators(access: Access, wanted: KubeAddress) -> list[CaptureCoordinator]:
    """Those of the namespace, of whatever job; where the address has a uid, only that job's, if there are any.

    Raises Denied, Unreachable, and NoSuchJob where the cluster knows no such objects.
    """
    if wanted.uid is not None and (
        found := _listed(access, wanted, {"labelSelector": f"{names.JOB_UID}={wanted.uid}"})
    ):
        return found
    return _listed(access, wanted, {})


def _listed(access: Access, wanted: KubeAddress, query: Mapping[str, str]) -> list[CaptureCoordinator]:
    try:
        pages = list(access.api.list(path_of(wanted.namespace), query))
    except TROUBLES as error:
        raise trouble(error, access, wanted) from None
    return [found for page in pages for raw in page.items if (found := _understood(raw)) is not None]


def armed(access: Access, wanted: KubeAddress) -> Armed:
    """Whether pods of that job, as far as names tell, were armed and have not ended."""
    try:
        pages = list(access.api.list(names.pods_path(wanted.namespace), {"labelSelector": names.ARMED_SELECTOR}))
        pods = [msgspec.json.decode(raw, type=_Pod) for page in pages for raw in page.items]
    except TROUBLES:
        return Armed.UNKNOWN
    return Armed.YES if any(_is_of(pod, wanted.job) for pod in pods) else Armed.NO


def trouble(error: Exception, access: Access, wanted: KubeAddress) -> SameshotError:
    """What it means that the coordinators of a namespace could not be listed. Pure."""
    if isinstance(error, ApiError):
        if error.status == 401 or (error.status == 403 and ANONYMOUS in str(error)):
            return Denied(f"{_capital(access.called)} does not know who asks; log in again ({error}).")
        if error.status == 403:
            who = ":".join(access.account) if access.account else "<you>"
            flag = f"--serviceaccount={who}" if access.account else f"--user={who}"
            return Denied(
                f"Coordinators of captures in namespace {wanted.namespace} may not be listed ({error}). It takes the "
                f"ClusterRole sameshot-user there: kubectl create rolebinding sameshot-user -n {wanted.namespace} "
                f"--clusterrole=sameshot-user {flag} (sameshot-viewer: to look only)."
            )
        if error.status == 404:
            return NoSuchJob(
                f"{_capital(access.called)} knows no {names.COORDINATORS}.{names.GROUP}: sameshot's operator is not "
                "installed in this cluster; see docs/kubernetes.md."
            )
    return Unreachable(f"{_capital(access.called)} does not answer: {error}.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


class _Owner(msgspec.Struct):
    name: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    status: _PodStatus = _PodStatus()


def _is_of(pod: _Pod, job: str) -> bool:
    if pod.status.phase in names.POD_OVER:
        return False
    meta = pod.metadata
    called: Iterable[str] = (meta.name, *(each.name for each in meta.owner_references or ()))
    return (
        job == ""
        or any(each == job or each.startswith(f"{job}-") for each in called)
        or job in (meta.labels or {}).values()
    )


def _understood(raw: msgspec.Raw) -> CaptureCoordinator | None:
    """None: one of a version that is not known here; the others are served all the same."""
    try:
        return msgspec.json.decode(raw, type=CaptureCoordinator)
    except msgspec.MsgspecError:
        return None
