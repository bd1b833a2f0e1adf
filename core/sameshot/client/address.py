"""Addresses of coordinators: `host:port`, `unix:/path`, and forms that a resolver turns into one of these."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from sameshot.api.transport import Endpoint
from sameshot.client import local
from sameshot.client.cluster.address import SCHEME as KUBE
from sameshot.errors import UsageError

Say = Callable[[str], None]
"""Told in a sentence what is being waited for."""

_HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):[0-9]{1,5}")

# A scheme, and what finds the address of `<scheme>[:<rest>]`; further ones are registered by whoever knows them.
_RESOLVERS: dict[str, Callable[[str], str | Endpoint]] = {"local": local.resolve}


def register_resolver(scheme: str, resolve: Callable[[str], str | Endpoint]) -> None:
    """From now on `<scheme>` and `<scheme>:<rest>` are addresses; `resolve` is given the rest ("" without one)."""
    _RESOLVERS[scheme] = resolve


def resolve(
    address: str,
    *,
    uid: str | None = None,
    attempt: int | None = None,
    say: Say | None = None,
    wait_s: float | None = None,
    leave: threading.Event | None = None,
) -> Endpoint:
    """What a client can connect to.

    In a cluster the API server is asked, once for many calls, and a coordinator that is just starting is waited for:
    `wait_s` seconds (None: as long as the address says). `say` is told so, and `leave` ends that early. `uid` and
    `attempt` say there which run is meant, and never another; other addresses don't tell runs apart. This blocks: event
    loops give it a thread.

    Raises UsageError for what is no address or fits several jobs; NoSuchJob, as JobEnded or OtherAttempt where that is
    known; Unreachable; and Denied.
    """
    scheme, _, rest = address.partition(":")
    if scheme == KUBE:
        from sameshot.client.cluster import dial

        return dial(address, uid=uid, attempt=attempt, say=say, wait_s=wait_s, leave=leave)
    if scheme in _RESOLVERS:
        found = _RESOLVERS[scheme](rest)
        return Endpoint(found) if isinstance(found, str) else found
    if (scheme == "unix" and rest) or _HOST_PORT.fullmatch(address):
        return Endpoint(address)
    known = ", ".join(f"{each}[:name]" for each in sorted(_RESOLVERS))
    raise UsageError(
        f"{address!r} is no address of a coordinator; use {known}, {KUBE}:<namespace>/<job>, host:port or unix:/path."
    )
