"""A small Kubernetes API server on loopback: real HTTP, and of the API what a node's agent uses.

    with KubeApiServer() as api:
        api.put(a_pod("train-0", node="node-a"))
        KubeApi(api.url, part="test").list("/api/v1/pods", {"fieldSelector": "spec.nodeName=node-a"})

GET of one object, list in pages, watch with bookmarks; label and field selectors as equalities; one resourceVersion for
all objects, `410 Gone` below `forget_before()`. Written after the API's documentation
(https://kubernetes.io/docs/reference/using-api/api-concepts/); what the agent must not do (any write) is refused.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sameshot.arm import labels
from sameshot.arm.record import ArmedRecord

Json = dict[str, Any]
_PLURALS = {"Pod": "pods", "Job": "jobs", "ReplicaSet": "replicasets", "JobSet": "jobsets"}


def a_pod(
    name: str,
    *,
    node: str,
    namespace: str = "ml",
    uid: str | None = None,
    owner: Json | None = None,
    more_labels: dict[str, str] | None = None,
    container: str = "trainer",
    local_world_size: int | None = None,
    limits: dict[str, str] | None = None,
    empty_dir: Json | None = None,
    started_at: float | None = None,
    armed: bool = True,
) -> Json:
    """An armed pod as the server gives it. `owner` is another object made here."""
    record = ArmedRecord(v=1, container=container, local_world_size=local_world_size)
    running = {"running": {"startedAt": _stamp(time.time() if started_at is None else started_at)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or str(uuid.uuid4()),
            "labels": {labels.ARM_LABEL: labels.ENABLED, **(more_labels or {})},
            "annotations": {labels.ARMED: record.text} if armed else {},
            "ownerReferences": [_reference(owner)] if owner is not None else [],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": container, "resources": {"limits": limits or {}}}],
            "volumes": [
                {"name": labels.VOLUME, "emptyDir": empty_dir or {}},
                {"name": labels.HOOK_VOLUME, "configMap": {"name": labels.HOOK_CONFIGMAP, "optional": True}},
            ],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": container, "restartCount": 0, "state": running}],
        },
    }


def an_object(kind: str, name: str, *, api_version: str, namespace: str = "ml", owner: Json | None = None) -> Json:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "ownerReferences": [_reference(owner)] if owner is not None else [],
        },
    }


def _reference(owner: Json) -> Json:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class KubeApiServer:
    def __init__(self, *, page: int = 500, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str], str]] = []  # (path, query, token)
        self.forbidden: set[str] = set()  # plurals that may not be read
        self.away = False
        self._page = page
        self._objects: dict[tuple[str, str, str], Json] = {}  # plural, namespace, name
        self._events: list[tuple[int, str, Json]] = []
        self._version = 100
        self._oldest = 0
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._ending = False
        owner = self

        class Handler(_Handler):
            api = owner

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}"

    def __enter__(self) -> KubeApiServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self._drop()
        self._server.shutdown()
        self._server.server_close()

    # --- what a test does

    def put(self, thing: Json) -> Json:
        """Create or replace an object."""
        with self._changed:
            key = _key(thing)
            kind = "MODIFIED" if key in self._objects else "ADDED"
            thing = copy.deepcopy(thing)
            self._note(kind, thing)
            self._objects[key] = thing
        return thing

    def delete(self, thing: Json) -> None:
        with self._changed:
            gone = self._objects.pop(_key(thing))
            self._note("DELETED", copy.deepcopy(gone))

    def forget_before(self) -> None:
        """Whoever follows from an older version than now must list again."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
            self._changed.notify_all()

    def go_away(self) -> None:
        """Every connection is cut, and none is answered until `come_back`."""
        self.away = True
        self._drop()

    def come_back(self) -> None:
        self.away = False

    def count(self, **query: str) -> int:
        """How many requests had these parameters."""
        return sum(all(asked.get(key) == value for key, value in query.items()) for _, asked, _ in self.requests)

    # --- the server's own

    def _note(self, kind: str, thing: Json) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, kind, copy.deepcopy(thing)))
        self._changed.notify_all()

    def _drop(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _listed(self, plural: str, query: dict[str, str]) -> Json:
        with self._changed:
            found = [
                thing for key, thing in sorted(self._objects.items()) if key[0] == plural and _wanted(thing, query)
            ]
            begin, size = int(query.get("continue") or 0), min(int(query.get("limit") or self._page), self._page)
            if query.get("resourceVersion") == "0":
                size = self._page  # the watch cache knows no limit
            more = {"continue": str(begin + size)} if begin + size < len(found) else {}
            return {
                "kind": "List",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(self._version), **more},
                "items": found[begin : begin + size],
            }

    def _followed(self, plural: str, query: dict[str, str]) -> Iterator[Json]:
        """A pod that ceases to match is DELETED for who follows it, as with the real server."""
        since, ends = int(query["resourceVersion"]), time.monotonic() + float(query.get("timeoutSeconds") or 60)
        while not self._ending and not self.away:
            with self._changed:
                if since < self._oldest:
                    yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
                    return
                fresh = [each for each in self._events if each[0] > since]
                if not fresh:
                    left = ends - time.monotonic()
                    if left <= 0:
                        yield _bookmark(since)
                        return
                    self._changed.wait(min(left, 0.2))
                    continue
            for version, kind, thing in fresh:
                since = version
                if _key(thing)[0] == plural and _wanted(thing, query):
                    yield {"type": kind, "object": thing}


def _bookmark(version: int) -> Json:
    return {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}}


def _key(thing: Json) -> tuple[str, str, str]:
    return _PLURALS[thing["kind"]], thing["metadata"]["namespace"], thing["metadata"]["name"]


def _wanted(thing: Json, query: dict[str, str]) -> bool:
    meta = thing["metadata"]
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if (meta.get("labels") or {}).get(key) != value:
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = thing
        for part in path.split("."):
            found = (found or {}).get(part)
        if found != value:
            return False
    return True


class _Handler(http.server.BaseHTTPRequestHandler):
    api: KubeApiServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.api._connections.add(self.connection)

    def finish(self) -> None:
        self.api._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        if self.api.away:
            self.close_connection = True
            return None
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.api.requests.append((url.path, query, token))
        parts = url.path.strip("/").split("/")
        # /api/v1/pods, or /api(s)/<group>/<version>/namespaces/<ns>/<plural>/<name>
        if "namespaces" in parts:
            at = parts.index("namespaces")
            namespace, plural, name = parts[at + 1], parts[at + 2], parts[at + 3]
        else:
            namespace, plural, name = "", parts[-1], ""
        if plural in self.api.forbidden:
            return self._say(403, {"kind": "Status", "code": 403, "message": f"{plural} is forbidden"})
        if name:
            found = self.api._objects.get((plural, namespace, name))
            if found is None:
                return self._say(404, {"kind": "Status", "code": 404, "message": f"{plural} {name} not found"})
            return self._say(200, found)
        if "continue" in query and "resourceVersion" in query:
            return self._say(400, {"kind": "Status", "code": 400, "message": "resourceVersion with a continue token"})
        if query.get("watch") != "true":
            return self._say(200, self.api._listed(plural, query))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            for event in self.api._followed(plural, query):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            if not self.api.away:
                self.wfile.write(b"0\r\n\r\n")
        return None

    def _refuse(self) -> None:
        self.api.requests.append((f"{self.command} {self.path}", {}, ""))
        self._say(405, {"kind": "Status", "code": 405, "message": "nobody may write here"})

    do_POST = do_PUT = do_PATCH = do_DELETE = _refuse  # noqa: N815

    def _say(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
