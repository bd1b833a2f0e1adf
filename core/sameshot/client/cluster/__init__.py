"""Jobs in a cluster: their coordinators are found through their CaptureCoordinator, and called with a token.

Nothing here is imported before an address says `kube:`; the official Kubernetes client only where there is no pod whose
account could be used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sameshot.client.cluster.address import KubeAddress, Route, is_kube, parse

if TYPE_CHECKING:
    from sameshot.api.transport import Endpoint

__all__ = ["KubeAddress", "Route", "dial", "is_kube", "parse"]


def dial(
    address: str,
    *,
    uid: str | None = None,
    attempt: int | None = None,
    say: Callable[[str], None] | None = None,
    leave: threading.Event | None = None,
) -> Endpoint:
    """The coordinator of a job in a cluster; parameters and errors as for `client.resolve`."""
    parse(address)
    raise NotImplementedError
