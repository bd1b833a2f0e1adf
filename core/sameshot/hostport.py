"""`host:port` as text; the colons of an IPv6 address stand in brackets there."""

from __future__ import annotations


def joined(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parted(text: str) -> tuple[str, int] | None:
    """The host, without brackets, and the port; None: it is not `host:port`."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    return (host, int(port)) if host and port.isascii() and port.isdecimal() else None
