"""Addresses of coordinators: `host:port`, `unix:/path`, and forms that a resolver turns into one of these."""

from __future__ import annotations

import re
from collections.abc import Callable

from sameshot.client import local
from sameshot.errors import UsageError

_HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):[0-9]{1,5}")

# A scheme, and what finds the address of `<scheme>[:<rest>]`; the cluster's forms are registered by whoever knows them.
_RESOLVERS: dict[str, Callable[[str], str]] = {"local": local.resolve}


def register_resolver(scheme: str, resolve: Callable[[str], str]) -> None:
    """From now on `<scheme>` and `<scheme>:<rest>` are addresses; `resolve` is given the rest ("" without one)."""
    _RESOLVERS[scheme] = resolve


def resolve(address: str) -> str:
    """What gRPC can connect to. Raises UsageError, or the resolver's own errors (NoSuchJob)."""
    scheme, _, rest = address.partition(":")
    if scheme in _RESOLVERS:
        return _RESOLVERS[scheme](rest)
    if (scheme == "unix" and rest) or _HOST_PORT.fullmatch(address):
        return address
    known = ", ".join(f"{each}[:name]" for each in sorted(_RESOLVERS))
    raise UsageError(f"{address!r} is no address of a coordinator; use {known}, host:port or unix:/path.")
