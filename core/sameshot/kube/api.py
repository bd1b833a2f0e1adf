"""The part of the Kubernetes API that the parts in a cluster need: read, list, follow, and (the operator) write.

Written on the standard library, which every part has anyway: the official client takes 43 MB of memory and 0.3 s more
than this (aiohttp 9 MB; measured on Python 3.11, import only), on each node and for each coordinator, for a few kinds
of requests. Calls block; they belong in a thread.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode, urlsplit

import msgspec

from sameshot.errors import UsageError
from sameshot.kube.deep import decoded

TIMEOUT_S = 15.0
WATCH_S = 60  # then the server ends it and the next one begins: a connection that died in silence costs no more
PAGE = 250
MAX_EVENT = 16 << 20  # etcd takes 1.5 MB for an object, which JSON may spell in six times as much
MAX_ANSWER = MAX_EVENT  # of each page of a list, too: several may be read at once, in little memory


MERGE_PATCH = "application/merge-patch+json"


class ApiError(OSError):
    """The server answered, and not with what was asked for."""

    def __init__(self, status: int, text: str) -> None:
        """`text` as it came: a Status object says what is wrong in its `message`."""
        with contextlib.suppress(msgspec.MsgspecError):
            text = msgspec.json.decode(text, type=_Problem).message or text
        super().__init__(f"the API server answered {status}: {text[:300]}")
        self.status = status

    @property
    def expired(self) -> bool:
        """What was to be followed from is too long ago; list again."""
        return self.status == 410


TROUBLES = (OSError, http.client.HTTPException, msgspec.MsgspecError)
"""What asking may raise: no answer, another one than was asked for (`ApiError`), or none that can be understood."""


class TooLarge(ApiError):
    """The answer is larger than any that is read."""


class Listed(msgspec.Struct, frozen=True):
    """One page. `version` is what to follow changes from after the last one."""

    items: tuple[msgspec.Raw, ...]
    version: str


class Change(msgspec.Struct, frozen=True):
    """`kind` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: msgspec.Raw


class Reader(Protocol):
    """What looking at objects needs. All that is asked raises as `KubeApi` does."""

    def get(self, path: str, query: Mapping[str, str] = ...) -> bytes: ...

    def list(self, path: str, query: Mapping[str, str]) -> Iterator[Listed]: ...


class Sender(Protocol):
    """What writing needs, and asking for a token or a review."""

    def send(self, method: str, path: str, body: object = ..., *, content_type: str = ...) -> bytes: ...


class Api(Reader, Sender, Protocol):
    """All of it; replaced in tests."""

    def watch(self, path: str, query: Mapping[str, str], version: str) -> Iterator[Change]: ...

    def close(self) -> None: ...


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Problem(msgspec.Struct):
    code: int = 500
    message: str = ""


def pages(get: Callable[[str, Mapping[str, str]], bytes], path: str, query: Mapping[str, str]) -> Iterator[Listed]:
    """All objects, page by page. Raises like `get`.

    A page that is too large is asked for in smaller ones, to the end: a few objects that somebody made as large as he
    could must not hide all others.
    """
    limit, asked = PAGE, dict(query)
    while True:
        try:
            data = get(path, {**asked, "limit": str(limit)})
        except TooLarge:
            if "resourceVersion" in asked:
                del asked["resourceVersion"]  # with it, servers give all at once, whatever the limit
                continue
            if limit == 1:
                raise
            limit = max(1, limit // 8)
            continue
        page = decoded(data, _List)
        del data
        yield Listed(tuple(page.items or ()), page.metadata.resource_version)
        if not page.metadata.continue_:
            return
        asked["continue"] = page.metadata.continue_
        asked.pop("resourceVersion", None)  # the token says which; both together are refused


class KubeApi:
    """`server` is `https://host:port`; the token is read anew for every request, as the kubelet exchanges it. `part`
    is what its log calls us."""

    def __init__(
        self,
        server: str,
        *,
        part: str,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        watch_s: int = WATCH_S,
    ) -> None:
        url = urlsplit(server)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise UsageError(f"{server!r} is not the address of an API server: https://host:port.")
        self._host, self._port, self._secure = url.hostname, url.port, url.scheme == "https"
        if not self._secure and self._host not in ("127.0.0.1", "::1", "localhost"):
            raise UsageError(f"The API server {server} is not on this machine; it is spoken to by https only.")
        self._token_file = token_file
        self._tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        self._timeout_s = timeout_s
        self._watch_s = watch_s
        self._part = part
        self._watching: set[socket.socket] = set()
        self._closed = False

    def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        """One object or page. Raises ApiError, another OSError, or http.client.HTTPException."""
        connection, answer = self._ask("GET", path, query, self._timeout_s)
        try:
            data = answer.read(MAX_ANSWER + 1)
        finally:
            connection.close()
        if len(data) > MAX_ANSWER:
            raise TooLarge(200, f"more than {MAX_ANSWER} bytes")
        return data

    def list(self, path: str, query: Mapping[str, str]) -> Iterator[Listed]:
        """All objects, page by page. Raises like `get`."""
        return pages(self.get, path, query)

    def watch(self, path: str, query: Mapping[str, str], version: str) -> Iterator[Change]:
        """Changes after `version`, until the server ends the watch. Raises like `get`."""
        asked = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(self._watch_s),
        }
        connection, answer = self._ask("GET", path, asked, self._watch_s + self._timeout_s)
        watching: socket.socket | None = connection.sock  # None: the server closes when it has answered
        if watching is not None:
            self._watching.add(watching)
        try:
            while not self._closed:
                line = answer.readline(MAX_EVENT)
                if not line.endswith(b"\n"):
                    if len(line) >= MAX_EVENT:
                        raise ApiError(200, f"an event of more than {MAX_EVENT} bytes")
                    return
                event = decoded(line, _Event)
                if event.type == "ERROR":
                    problem = msgspec.json.decode(event.object, type=_Problem)
                    raise ApiError(problem.code, problem.message)
                yield Change(event.type, msgspec.Raw(bytes(event.object)))
        finally:
            if watching is not None:
                self._watching.discard(watching)
            connection.close()

    def send(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> bytes:
        """Write: POST, PUT, PATCH or DELETE; what the server made of it. `body` is anything msgspec makes JSON of.

        Raises like `get`; an ApiError of status 409 is a conflict, or an object that is there already.
        """
        data = None if body is None else msgspec.json.encode(body)
        connection, answer = self._ask(method, path, {}, self._timeout_s, data, content_type)
        try:
            return answer.read(MAX_ANSWER)
        finally:
            connection.close()

    def close(self) -> None:
        """End the watches that are under way, from whatever thread."""
        self._closed = True
        for watching in list(self._watching):
            with contextlib.suppress(OSError):  # it has ended
                watching.shutdown(socket.SHUT_RDWR)

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        timeout_s: float,
        body: bytes | None = None,
        content_type: str = "",
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection: http.client.HTTPConnection
        if self._secure:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            headers = {"Accept": "application/json", "User-Agent": f"sameshot-{self._part}"}
            if body is not None:
                headers["Content-Type"] = content_type
            if self._token_file is not None:
                headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
            connection.request(method, f"{path}?{urlencode(query)}" if query else path, body, headers)
            assert connection.sock is not None
            connection.sock.settimeout(timeout_s)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise ApiError(answer.status, answer.read(2000).decode(errors="replace"))
        except BaseException:
            connection.close()
            raise
        return connection, answer
