"""Jobs in a cluster: their coordinators are found through their CaptureCoordinator, and called with a token.

Nothing here is imported before an address says `kube:`; the official Kubernetes client only where there is no pod whose
account could be used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sameshot.client.cluster.address import KubeAddress, Route, address_of, is_kube, of_an_author, parse

if TYPE_CHECKING:
    from sameshot.api.transport import Endpoint
    from sameshot.kube.coordinators import CaptureCoordinator
    from sameshot.model import JobRef

__all__ = [
    "KubeAddress",
    "Route",
    "address_of",
    "caller_of",
    "dial",
    "found_jobs",
    "is_kube",
    "known_jobs",
    "of_an_author",
    "own_namespace",
    "parse",
    "remembered",
]


def dial(
    address: str,
    *,
    uid: str | None = None,
    attempt: int | None = None,
    say: Callable[[str], None] | None = None,
    wait_s: float | None = None,
    leave: threading.Event | None = None,
) -> Endpoint:
    """The coordinator of a job in a cluster; parameters and errors as for `client.resolve`."""
    from sameshot.client.cluster.dialing import DIALER

    return DIALER.dial(address, uid=uid, attempt=attempt, say=say, wait_s=wait_s, leave=leave)


def remembered(address: str, *, uid: str | None = None, attempt: int | None = None) -> Endpoint | None:
    """What `dial` would give without asking anybody, at once; None: it would have to."""
    from sameshot.client.cluster.dialing import DIALER

    return DIALER.remembered(address, uid=uid, attempt=attempt)


def found_jobs(address: str) -> list[CaptureCoordinator]:
    """The jobs that can be captured now, of a namespace or of that name there, each with its newest attempt, the newest
    job first. Raises as `client.resolve` does; none is an empty list."""
    from sameshot.client.cluster import lookup
    from sameshot.client.cluster.coordinators import fitting, is_live, newest_of_each
    from sameshot.client.cluster.dialing import DIALER

    wanted = parse(address)
    found = newest_of_each(fitting(lookup.coordinators(DIALER.access(wanted), wanted), wanted))
    return [each for each in found if is_live(each)]


def known_jobs(address: str) -> list[JobRef]:
    """Every attempt of the jobs that an address can mean, those that have ended included while the cluster knows of
    them; the newest first. Raises as `client.resolve` does."""
    from sameshot.client.cluster import lookup
    from sameshot.client.cluster.coordinators import fitting, newest_first
    from sameshot.client.cluster.dialing import DIALER

    wanted = parse(address)
    found = fitting(lookup.coordinators(DIALER.access(wanted), wanted), wanted)
    return [each.job for each in newest_first(found) if wanted.attempt in (None, each.job.attempt)]


def caller_of(address: str) -> str:
    """Who calls coordinators of that address: the account whose token is asked for, as the API server names it. Raises
    UsageError where there is no way into the cluster; nothing is asked."""
    from sameshot.client.cluster.dialing import DIALER, account_for
    from sameshot.kube.names import username_of

    wanted = parse(address)
    return username_of(*account_for(wanted, DIALER.access(wanted)))


def own_namespace(context: str | None = None, kubeconfig: str | None = None) -> str:
    """The namespace that kubectl would use; in a pod, unless one of the two is named, the pod's own."""
    from sameshot.client.cluster.access import is_pod, open_access

    if context is None and kubeconfig is None and is_pod():
        account = open_access(KubeAddress(namespace="default")).account
        assert account is not None
        return account[0]
    from sameshot.client.cluster.kubeconfig import own_namespace as of_context

    return of_context(context, kubeconfig)
