"""From where things lie to where a browser can open them. Pure; None wherever the link would be a guess.

A link ends up where an engine shows results, for everybody who may see the task: it is the base URL that an
administrator gave and a path, never a store's own URI and nothing that grants access by itself.
"""

from __future__ import annotations

import posixpath
from urllib.parse import quote, unquote, urlsplit


def report_url(uri: str, results_uri: str, base_url: str) -> str | None:
    """`base_url` and what `uri` has more than `results_uri`; None unless it lies below."""
    below = _below(_plain(uri), _plain(results_uri).rstrip("/"))
    return None if below is None or web_problem(base_url) else _joined(base_url, below)


def manifest_url(uri: str, base_url: str) -> str | None:
    """`base_url` serves the archive's root: what stands above `<namespace>/<job>/<attempt>/<capture id>/manifest.json`.

    None for a manifest that lies otherwise (one that was imported, say): nobody knows its root.
    """
    segments = _plain(uri).split("/")
    place, name = segments[-5:-1], segments[-1]
    if name != "manifest.json" or len(segments) < 6 or not all(place) or not place[2].isdecimal() or _leads_away(place):
        return None
    return None if web_problem(base_url) else _joined(base_url, "/".join(segments[-5:]))


def web_problem(base_url: str) -> str | None:
    """Why links can't begin with this; None: they can."""
    try:
        parts = urlsplit(base_url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        known = False
    if not known:
        return "not an http:// or https:// address"
    if parts.username or parts.password:
        return "an address with a user name or password in it, which every viewer of a task would see"
    if parts.query or parts.fragment:
        return "an address with a query or a fragment, and paths are appended to it"
    return None


def _plain(uri: str) -> str:
    """A path as `Storage` writes it, without percent-encoding; the keys of other stores are literal already."""
    if uri.startswith("file:"):
        uri = unquote(urlsplit(uri).path)
    return posixpath.normpath(uri) if uri.startswith("/") else uri


def _below(uri: str, root: str) -> str | None:
    if not uri.startswith(root + "/"):
        return None
    rest = uri[len(root) + 1 :]
    return None if not rest or _leads_away(rest.split("/")) else rest


def _leads_away(segments: list[str]) -> bool:
    """Browsers resolve `.` and `..` before they ask."""
    return not {".", ".."}.isdisjoint(segments)


def _joined(base_url: str, path: str) -> str:
    return f"{base_url.rstrip('/')}/{quote(path, safe='/')}"
