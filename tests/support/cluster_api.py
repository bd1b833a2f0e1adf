"""An emulated Kubernetes API server on loopback, over TLS, in a thread of its own: for tests and for real processes.

    with ClusterApi() as api:
        api.apply_folder(DEPLOY / "crds")
        api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        token = api.token_for("system:serviceaccount:ml:default")     # or a person's: token_for("jane", "devs")
        api.kube("system:serviceaccount:ml:default")                  # the product's KubeApi as that user
        api.kubeconfig(folder / "config", "jane")                     # for the official client
        api.away(); api.come_back(); api.slow(2.0, verb="list"); api.fail(500, resource="pods", times=1)
        api.writes(), api.log                                         # who asked for what

What it is true to: `cluster_store` (objects, versions, conflicts, subresources, CRDs), `cluster_selectors`,
`cluster_rbac` (enforced on every request, escalation too), `cluster_tokens` (TokenRequest, TokenReview) and
`cluster_forward`.
Held by tests/kube/test_emulated_api.py. What it is not: no CEL beyond `self == oldSelf` (`api.unevaluated_cel`), no
admission webhooks, quotas or Pod Security, no server-side apply, builtin kinds are not validated field by field
(tests/deploy does that for what is shipped), no controllers but the collector, and that only when it is told to collect
or `collects=True`.

kmock serves what it serves well, discovery and the frame of errors. Its emulator's object store is not used: it has no
versions to compare, hands out and merges the very dicts it keeps, and decides a request's verb before anybody could
check a right; with PUT, selectors, pages, subresources and watches from a version replaced, nothing of it was left. Its
`Server` can't be cut off and come back on its port, so the listening is done here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import socket
import ssl
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import kmock
import msgspec
import yaml
from aiohttp import web
from cluster_forward import forward
from cluster_kinds import Kind
from cluster_rbac import MASTERS, Asked, Rbac, User
from cluster_seed import seeded
from cluster_selectors import BadSelector, field_terms, label_terms
from cluster_store import Event, Problem, Selected, Store
from cluster_tokens import AUDIENCE, EVERYBODY, BadToken, Tokens
from tls import Authority

from sameshot.kube.api import KubeApi

Json = dict[str, Any]
ADMIN = "kubernetes-admin"
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-emulated", "platform": "linux/amd64"}
REVIEWS = {
    ("authentication.k8s.io", "tokenreviews"), ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"), ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
}  # fmt: skip
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
BOOKMARK_S = 1.0


class Logged(NamedTuple):
    """One request. `status` is what was answered (0: not yet, or a connection that was cut)."""

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    status: int
    at: float  # time.monotonic()

    @property
    def stores(self) -> bool:
        """Whether it writes anything: reviews and requests for tokens are `create`s of which nothing is kept."""
        return (
            self.verb in WRITES
            and (self.group, self.resource) not in REVIEWS
            and (self.resource, self.subresource) != ("serviceaccounts", "token")
        )


@dataclass
class _Trouble:
    """Requests that are to be slow (`seconds`) or to fail (`status`)."""

    verb: str
    resource: str
    user: str
    seconds: float = 0.0
    status: int = 0
    times: float = float("inf")

    def meets(self, asked: Asked, user: str) -> bool:
        return (
            self.times > 0
            and self.verb in ("", asked.verb)
            and self.resource in ("", asked.resource, asked.what)
            and self.user in ("", user)
        )


@dataclass(frozen=True)
class _Request:
    """What a URL and a method mean."""

    asked: Asked
    version: str = ""
    query: Mapping[str, str] = field(default_factory=dict)


@attrs.define(kw_only=True, eq=False)
class _Door(kmock.KubernetesScaffold):
    """kmock, asked last: discovery and unknown paths."""

    api: Any = None

    async def __call__(self, raw_request: web.BaseRequest) -> web.StreamResponse:
        return await self.api._serve(raw_request, super().__call__)


class ClusterApi:
    def __init__(
        self, *, kinds: Iterable[Kind] = (), port: int = 0, host: str = "127.0.0.1", collects: bool = False,
        names: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.store = Store()
        self.log: list[Logged] = []
        self.logs: Callable[[str, str], str | None] = lambda namespace, pod: None  # what pods/NAME/log answers
        self.collects = collects
        self.rbac = Rbac(self._role, lambda plural: self.store.every(self.store.kind(_RBAC, plural)))
        self.tokens = Tokens(lambda plural, ns, name: self.store.find(self.store.kind("", plural), ns, name))
        self.admin_token = self.tokens.person(ADMIN, MASTERS)
        self.authority = Authority()
        self._folder = tempfile.TemporaryDirectory(prefix="cluster-api-")
        self.folder = Path(self._folder.name)
        self.ca_file = self.folder / "ca.crt"
        self.ca_file.write_bytes(self.authority.pem)
        self.authority.issue(self.folder, host, "localhost", "kubernetes", "kubernetes.default.svc", *names)
        self.store.ca = self.authority.pem.decode()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        self._host, self._port = host, port or _free_port(host)
        self._troubles: list[_Trouble] = []
        self._wakers: set[asyncio.Event] = set()
        self._pages: dict[str, tuple[list[Json], str]] = {}
        self._away = False
        self._loop = asyncio.new_event_loop()
        self._door = _Door(api=self)
        self._listening: asyncio.Server | None = None
        self.store.on_change = self._changed
        self.store.on_kinds = self._discover
        self._seed()
        for kind in kinds:
            self.serve(kind)

    def __enter__(self) -> ClusterApi:
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster-api", daemon=True)
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._folder.cleanup()

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"https://{self._host}:{self._port}"

    # --- who asks

    def token_for(self, username: str, *groups: str, audience: str = AUDIENCE, lasts_s: float = 3600) -> str:
        """A bearer token; a ServiceAccount (`system:serviceaccount:ns:name`) must exist, a person need not."""
        if username == ADMIN:
            return self.admin_token
        if not username.startswith("system:serviceaccount:"):
            return self.tokens.person(username, *groups)
        _, _, namespace, name = username.split(":")
        account = self.store.get(self.store.kind("", "serviceaccounts"), namespace, name)
        return self.tokens.account(account, audiences=(audience,), lasts_s=lasts_s)[0]

    def token_file(self, username: str = ADMIN, *groups: str) -> Path:
        path = self.folder / f"token-{uuid.uuid4().hex}"
        path.write_text(self.token_for(username, *groups))
        return path

    def kube(self, username: str = ADMIN, *groups: str, part: str = "test", **options: Any) -> KubeApi:
        """The product's own client, as that user."""
        return KubeApi(
            self.url, part=part, token_file=self.token_file(username, *groups), ca_file=self.ca_file, **options
        )

    def kubeconfig(self, path: Path, username: str = ADMIN, *groups: str, namespace: str = "default") -> Path:
        """A file for the official client or kubectl, its context named `emulated`."""
        ca = base64.b64encode(self.authority.pem).decode()
        context = {"cluster": "emulated", "user": username, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "emulated",
            "clusters": [{"name": "emulated", "cluster": {"server": self.url, "certificate-authority-data": ca}}],
            "contexts": [{"name": "emulated", "context": context}],
            "users": [{"name": username, "user": {"token": self.token_for(username, *groups)}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # --- objects, as the cluster's administrator and without the network

    def serve(self, kind: Kind) -> None:
        """Know one more kind, as if its CRD (without a schema) were there."""
        with self.store.lock:
            self.store.kinds.append(kind)
        self._discover()

    def make(self, thing: Json) -> Json:
        """Create one object, its status included. Its namespace is made where it is missing."""
        kind, namespace = self._place(thing)
        with self.store.lock:
            self._ensure_namespace(kind, namespace)
            made = self.store.create(kind, namespace, thing)
            if kind.status and "status" in thing:
                body = {**made, "status": thing["status"]}
                made = self.store.update(kind, namespace, made["metadata"]["name"], body, sub="status")
        return made

    def put(self, thing: Json) -> Json:
        """Create or replace one object, its status included, whatever its version."""
        kind, namespace = self._place(thing)
        name = thing["metadata"]["name"]
        with self.store.lock:
            if (found := self.store.find(kind, namespace, name)) is None:
                return self.make(thing)
            meta = {**thing["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
            meta.pop("uid", None)
            made = self.store.update(kind, namespace, name, {**thing, "metadata": meta})
            if kind.status and "status" in thing:
                body = {**made, "status": thing["status"]}
                made = self.store.update(kind, namespace, name, body, sub="status")
        return made

    def apply(self, documents: Iterable[Json]) -> list[Json]:
        """Create or replace them, in an order that works: namespaces and CRDs first, bindings last."""
        return [self.put(each) for each in sorted(filter(None, documents), key=_order)]

    def apply_folder(self, path: Path) -> list[Json]:
        """All objects of the YAML files in a folder; a kustomization is not rendered (see `kubernetes_objects`)."""
        documents: list[Json] = []
        for file in sorted(path.glob("*.yaml")):
            documents += [each for each in yaml.safe_load_all(file.read_text()) if each]
        return self.apply(each for each in documents if "kustomize.config" not in each["apiVersion"])

    def find(self, what: str, namespace: str = "", name: str = "") -> Json | None:
        """One object; `what` is `pods` or `jobs.batch`."""
        return self.store.find(self._known(what), namespace, name)

    def get(self, what: str, namespace: str = "", name: str = "") -> Json:
        return self.store.get(self._known(what), namespace, name)

    def list(self, what: str, namespace: str = "", *, labels: str = "", fields: str = "") -> list[Json]:
        kind = self._known(what)
        return self.store.select(_selected(kind, namespace, {"labelSelector": labels, "fieldSelector": fields}))

    def change(self, what: str, namespace: str, name: str, patch: Json, *, sub: str = "") -> Json:
        """By a merge patch."""
        return self.store.patch(self._known(what), namespace, name, patch, "application/merge-patch+json", sub=sub)

    def set_status(self, what: str, namespace: str, name: str, status: Json) -> Json:
        return self.change(what, namespace, name, {"status": status}, sub="status")

    def delete(self, what: str, namespace: str = "", name: str = "", **options: Any) -> Json:
        return self.store.delete(self._known(what), namespace, name, options)

    def collect(self) -> list[str]:
        """What the garbage collector would remove now, and the content of namespaces that end."""
        return self.store.collect()

    def wait_for(self, holds: Callable[[], Any], why: str = "", within_s: float = 30.0) -> Any:
        """What `holds` gives once it is true; it is asked at each change of an object, and now and then."""
        ends = time.monotonic() + within_s
        while True:
            try:
                if found := holds():
                    return found
            except Problem as error:
                if error.status != 404:
                    raise
            if time.monotonic() >= ends:
                raise AssertionError(f"not within {within_s} s: {why or holds}; last requests: {self.log[-15:]}")
            time.sleep(0.03)

    @property
    def unevaluated_cel(self) -> list[str]:
        """Rules of the CRDs that are here that this server takes for fulfilled without looking."""
        return [f"{kind.resource}/{kind.version} {rule}" for kind in self.store.kinds for rule in kind.cel]

    # --- trouble

    def away(self) -> None:
        """Every connection is cut, new ones are refused, until `come_back`."""
        self._do(self._cut())

    def come_back(self) -> None:
        self._do(self._listen())

    def slow(self, seconds: float, *, verb: str = "", resource: str = "", user: str = "") -> None:
        """Such requests wait so long before anything is done with them; 0 ends it for all."""
        if seconds:
            self._troubles.append(_Trouble(verb, resource, user, seconds=seconds))
        else:
            self._troubles = [one for one in self._troubles if not one.seconds]

    def fail(
        self, status: int, *, verb: str = "", resource: str = "", user: str = "", times: float = float("inf")
    ) -> None:
        """Such requests are answered so, so often; status 0 ends it for all."""
        if status:
            self._troubles.append(_Trouble(verb, resource, user, status=status, times=times))
        else:
            self._troubles = [one for one in self._troubles if not one.status]

    def forget_before(self) -> None:
        """Whoever follows from an older version than now, or goes on with a list, is answered 410 and lists again."""
        with self.store.lock:
            self.store.version += 1
            self.store.oldest = self.store.version
            self.store.events.clear()
            self._pages.clear()
        self._changed()

    def drop_watches(self) -> None:
        """All connections are cut, new ones are taken."""
        self.away()
        self.come_back()

    # --- what was asked

    def writes(self, since: int = 0, *, user: str = "") -> list[Logged]:
        """Requests of the log (from an index on) that store something."""
        return [one for one in self.log[since:] if one.stores and user in ("", one.user)]

    def count(self, **wanted: str) -> int:
        """How many requests had these fields: verb, resource, subresource, namespace, name, user."""
        return sum(all(getattr(one, key) == value for key, value in wanted.items()) for one in self.log)

    # --- inside: the thread and its connections

    def _do(self, job: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(30)

    async def _start(self) -> None:
        await self._door.__aenter__()
        self._web = web.Server(self._door, access_log=None)
        await self._listen()
        self._collecting = asyncio.create_task(self._keep_collecting())

    async def _listen(self) -> None:
        if self._listening is None:
            self._away = False
            self._listening = await self._loop.create_server(
                self._web, self._host, self._port, ssl=self._tls, reuse_address=True, backlog=512
            )

    async def _cut(self) -> None:
        self._away = True
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in list(self._web.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    async def _stop(self) -> None:
        self._collecting.cancel()
        await self._cut()
        for waker in list(self._wakers):
            waker.set()
        await self._web.shutdown(1.0)
        await self._door.__aexit__(None, None, None)

    async def _keep_collecting(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if self.collects:
                self.store.collect()

    def _changed(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.set()

    # --- inside: one request

    async def _serve(self, raw: web.BaseRequest, otherwise: Any) -> web.StreamResponse:
        if self._away:  # a connection whose handshake was under way when all others were cut
            if raw.transport is not None:
                raw.transport.abort()
            raise ConnectionResetError
        request = _understood(raw)
        asked, user = request.asked, User("system:anonymous", ("system:unauthenticated",))
        answer: web.StreamResponse | None = None
        at = time.monotonic()
        try:
            user = self._authenticated(raw)
            self._log(user, asked, 0, at)
            index = len(self.log) - 1
            await self._trouble(asked, user)
            self._authorize(user, asked)
            answer = await self._answer(raw, request, user, otherwise)
        except Problem as problem:
            answer = _json(problem.body, problem.status)
            if problem.status == 401:
                self._log(user, asked, 401, at)
                index = len(self.log) - 1
        except BadSelector as error:
            answer = _json(Problem(400, "BadRequest", str(error)).body, 400)
        self.log[index] = self.log[index]._replace(status=answer.status)
        return answer

    def _log(self, user: User, asked: Asked, status: int, at: float) -> None:
        resource = asked.resource or asked.path
        self.log.append(
            Logged(
                user.name, asked.verb, asked.group, resource, asked.subresource, asked.namespace, asked.name, status, at
            )
        )

    async def _trouble(self, asked: Asked, user: User) -> None:
        for one in list(self._troubles):
            if one.meets(asked, user.name):
                one.times -= 1
                await asyncio.sleep(one.seconds)
                if one.status:
                    raise Problem(one.status, "InternalError", "made to fail")

    def _authenticated(self, raw: web.BaseRequest) -> User:
        header = raw.headers.get("Authorization", "")
        user = User("system:anonymous", ("system:unauthenticated",))
        if header:
            scheme, _, token = header.partition(" ")
            try:
                if scheme.lower() != "bearer":
                    raise BadToken("not a bearer token")
                user = self.tokens.bearer(token.strip()).user
            except BadToken:
                raise Problem(401, "Unauthorized", "Unauthorized") from None
        if (name := raw.headers.get("Impersonate-User")) is not None:
            groups = raw.headers.getall("Impersonate-Group", [])
            return self._impersonated(user, name, groups)
        return user

    def _impersonated(self, user: User, name: str, groups: list[str]) -> User:
        if name.startswith("system:serviceaccount:"):
            _, _, namespace, account = name.split(":")
            wanted = [Asked("impersonate", "", "serviceaccounts", "", namespace, account)]
            groups = groups or ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        else:
            wanted = [Asked("impersonate", "", "users", "", "", name)]
            wanted += [Asked("impersonate", "", "groups", "", "", one) for one in groups]
        for one in wanted:
            self._authorize(user, one)
        return User(name, (*groups, EVERYBODY))

    def _authorize(self, user: User, asked: Asked) -> None:
        if not self.rbac.allows(user, asked):
            raise _forbidden(user, asked)

    async def _answer(self, raw: web.BaseRequest, request: _Request, user: User, otherwise: Any) -> web.StreamResponse:
        asked = request.asked
        if asked.path:
            if asked.path in ("/healthz", "/livez", "/readyz"):
                return web.Response(text="ok")
            return _json(VERSION, 200) if asked.path == "/version" else await otherwise(raw)
        if (asked.group, asked.resource) in REVIEWS:
            return _json(self._review(asked, await _body(raw), user), 201)
        kind = self.store.find_kind(asked.group, request.version, asked.resource)
        if kind is None:
            raise Problem(404, "NotFound", "the server could not find the requested resource")
        known = ("", *kind.more, *(("status",) if kind.status else ()))
        if asked.subresource not in known:
            raise Problem(404, "NotFound", "the server could not find the requested resource")
        if asked.verb == "watch":
            return await self._watch(raw, kind, request)
        if asked.subresource and asked.subresource != "status":
            return await self._other(raw, kind, request, user)
        dry, strict = request.query.get("dryRun") == "All", request.query.get("fieldValidation") == "Strict"
        where, name, store = asked.namespace if kind.namespaced else "", asked.name, self.store
        body = await _body(raw) if raw.can_read_body or raw.body_exists else None
        match asked.verb:
            case "list":
                return _json(self._listed(kind, where, request.query), 200)
            case "get":
                return _json(store.get(kind, where, name), 200)
            case "create":
                with store.lock:
                    self._check_grant(user, kind, where, body, None)
                    made = store.create(kind, where, body, dry=dry, strict=strict)
                status = 201
            case "update":
                with store.lock:
                    before = store.find(kind, where, name)
                    self._check_grant(user, kind, where, body, before)
                    made = store.update(kind, where, name, body, sub=asked.subresource, dry=dry, strict=strict)
                status = 200
            case "patch":
                with store.lock:
                    before, how = store.find(kind, where, name), raw.content_type
                    what = {"sub": asked.subresource, "strict": strict}
                    if before is not None and kind.group == _RBAC:
                        new = store.patch(kind, where, name, body, how, dry=True, **what)
                        self._check_grant(user, kind, where, new, before)
                    made = store.patch(kind, where, name, body, how, dry=dry, **what)
                status = 200
            case "delete":
                made, status = store.delete(kind, where, name, body, dry=dry), 200
            case "deletecollection":
                found = store.select(_selected(kind, where, request.query))
                for each in found:
                    store.delete(kind, each["metadata"].get("namespace", ""), each["metadata"]["name"], body, dry=dry)
                made, status = self._listed(kind, where, request.query), 200
            case _:
                raise Problem(
                    405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
                )
        return _json(made, status)

    def _check_grant(self, user: User, kind: Kind, namespace: str, thing: Any, before: Json | None) -> None:
        if kind.group == _RBAC and isinstance(thing, dict):
            why = self.rbac.why_not_written(user, kind.plural, namespace, {"metadata": {}, **thing}, before)
            if why is not None:
                name = (thing.get("metadata") or {}).get("name", "")
                raise Problem(403, "Forbidden", f'{kind.resource} "{name}" is forbidden: {why}')

    # --- inside: lists and watches

    def _listed(self, kind: Kind, namespace: str, query: Mapping[str, str]) -> Json:
        limit = int(query.get("limit") or 0)
        with self.store.lock:
            if token := query.get("continue"):
                if query.get("resourceVersion") not in (None, "", "0"):
                    raise Problem(400, "BadRequest", "specifying resource version is not allowed when using continue")
                if (kept := self._pages.get(token)) is None:
                    raise Problem(410, "Expired", "The provided continue parameter is too old to display a consistent "
                                  "list result. You must start a new list without the continue parameter.")  # fmt: skip
                found, version = kept
            else:
                found = self.store.select(_selected(kind, namespace, query))
                version = str(self.store.version)
                if query.get("resourceVersion") == "0":
                    limit = 0  # from the watch cache all comes at once
            meta: Json = {"resourceVersion": version}
            if limit and len(found) > limit:
                meta["continue"] = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()
                if not query.get("labelSelector") and not query.get("fieldSelector"):
                    meta["remainingItemCount"] = len(found) - limit
                self._pages[meta["continue"]] = (found[limit:], version)
                found = found[:limit]
        if not kind.custom:  # items of builtin lists say neither
            found = [{key: each[key] for key in each if key not in ("apiVersion", "kind")} for each in found]
        return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta, "items": found}

    async def _watch(self, raw: web.BaseRequest, kind: Kind, request: _Request) -> web.StreamResponse:
        selected = _selected(kind, request.asked.namespace if kind.namespaced else "", request.query)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(raw)
        with contextlib.suppress(ConnectionError):
            async for event in self._followed(selected, request.query):
                await response.write(msgspec.json.encode(event) + b"\n")
            await response.write_eof()
        return response

    async def _followed(self, selected: Selected, query: Mapping[str, str]) -> AsyncIterator[Json]:
        ends = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmarks = query.get("allowWatchBookmarks") in ("true", "True", "1")
        asked, waker = query.get("resourceVersion") or "", asyncio.Event()
        first = query.get("sendInitialEvents") in ("true", "True", "1")
        self._wakers.add(waker)
        try:
            if asked in ("", "0") or first:
                with self.store.lock:
                    found, since = self.store.select(selected), self.store.version
                for each in found:
                    yield {"type": "ADDED", "object": each}
                if first and bookmarks:
                    yield _bookmark(selected.kind, since, first=True)
            else:
                since = int(asked)
            marked = time.monotonic()
            while not self._away:
                waker.clear()
                with self.store.lock:
                    expired = since < self.store.oldest
                    fresh = self._since(since)
                    now = max(self.store.version, since)
                if expired:
                    problem = Problem(410, "Expired", f"too old resource version: {since} ({self.store.oldest})")
                    yield {"type": "ERROR", "object": problem.body}
                    return
                for event in fresh:
                    if (told := _told(selected, event)) is not None:
                        yield told
                since = now
                left = ends - time.monotonic()
                if bookmarks and (left <= 0 or time.monotonic() - marked > BOOKMARK_S):
                    marked = time.monotonic()
                    yield _bookmark(selected.kind, since)
                if left <= 0:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waker.wait(), min(left, BOOKMARK_S))
        finally:
            self._wakers.discard(waker)

    def _since(self, version: int) -> list[Event]:
        events, fresh = self.store.events, []
        for event in reversed(events):
            if event.version <= version:
                break
            fresh.append(event)
        return fresh[::-1]

    # --- inside: reviews and other subresources

    def _review(self, asked: Asked, body: Json, user: User) -> Json:
        spec = body.get("spec") or {}
        match asked.resource:
            case "tokenreviews":
                status = self._token_review(spec)
            case "selfsubjectreviews":
                status = {"userInfo": _info(user)}
            case "selfsubjectaccessreviews":
                status = self._access_review(user, spec)
            case _:
                if not spec.get("user") and not spec.get("groups"):
                    raise Problem(
                        422, "Invalid", "spec.user: Required value: at least one of user or group must be specified"
                    )
                who = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
                status = self._access_review(who, spec)
        return {**body, "metadata": {}, "status": status}

    def _token_review(self, spec: Json) -> Json:
        if not spec.get("token"):
            raise Problem(422, "Invalid", "spec.token: Required value")
        try:
            bearer = self.tokens.bearer(spec["token"], tuple(spec.get("audiences") or (AUDIENCE,)))
        except BadToken as error:
            return {"user": {}, "error": f"[{error}]"}
        return {"authenticated": True, "user": _info(bearer.user), "audiences": list(bearer.audiences)}

    def _access_review(self, who: User, spec: Json) -> Json:
        about, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if (about is None) == (path is None):
            raise Problem(422, "Invalid", "spec: exactly one of nonResourceAttributes or resourceAttributes")
        if path is not None:
            wanted = Asked(path.get("verb", ""), path=path.get("path", ""))
        else:
            wanted = Asked(
                **{key: about.get(key, "") for key in ("verb", "group", "resource", "subresource", "namespace", "name")}
            )
        return {"allowed": self.rbac.allows(who, wanted)}

    async def _other(self, raw: web.BaseRequest, kind: Kind, request: _Request, user: User) -> web.StreamResponse:
        asked = request.asked
        thing = self.store.get(kind, asked.namespace, asked.name)
        match asked.subresource, asked.verb:
            case "token", "create":
                return _json(self._token_request(thing, await _body(raw)), 201)
            case "portforward", _:
                return await self._port_forward(raw, thing, request, user)
            case "log", "get":
                text = self.logs(asked.namespace, asked.name)
                if text is None:
                    raise Problem(400, "BadRequest", f'container in pod "{asked.name}" is waiting to start')
                return web.Response(text=text, content_type="text/plain")
            case "eviction", "create":
                self.store.delete(kind, asked.namespace, asked.name, (await _body(raw)).get("deleteOptions"))
                return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}, 201)
        raise Problem(501, "NotImplemented", f"this emulated server has no {asked.what}")

    def _token_request(self, account: Json, body: Json) -> Json:
        spec = body.get("spec") or {}
        lasts = spec.get("expirationSeconds", 3600)
        if lasts < 600:
            raise Problem(
                422, "Invalid", "spec.expirationSeconds: Invalid value: may not specify a duration less than 10 minutes"
            )
        pod = None
        if (bound := spec.get("boundObjectRef")) is not None:
            pod = self.store.get(self.store.kind("", "pods"), account["metadata"]["namespace"], bound["name"])
            if bound.get("uid") not in (None, "", pod["metadata"]["uid"]):
                raise Problem(409, "Conflict", "the UID in the bound object reference does not match the UID in record")
        audiences = tuple(spec.get("audiences") or (AUDIENCE,))
        token, ends = self.tokens.account(account, audiences=audiences, lasts_s=lasts, pod=pod)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))
        full = {**spec, "audiences": list(audiences), "expirationSeconds": lasts}
        return {**body, "spec": full, "status": {"token": token, "expirationTimestamp": stamp}}

    async def _port_forward(self, raw: web.BaseRequest, pod: Json, request: _Request, user: User) -> web.StreamResponse:
        if raw.headers.get("Upgrade", "").lower() != "websocket":
            raise Problem(400, "BadRequest", "Upgrade request required")
        if request.asked.verb != "create":  # since 1.35 also for websockets, which begin with a GET
            ask = request.asked
            self._authorize(user, Asked("create", ask.group, ask.resource, ask.subresource, ask.namespace, ask.name))
        if (pod.get("status") or {}).get("phase") != "Running":
            raise Problem(400, "BadRequest", f"unable to forward port because pod is not running: {pod.get('status')}")
        ports = [int(one) for text in raw.query.getall("ports", []) for one in text.split(",")]
        if not ports:
            raise Problem(400, "BadRequest", 'query parameter "ports" is required')
        return await forward(raw, (pod["status"].get("podIP") or "127.0.0.1"), ports)

    # --- inside: help

    def _role(self, plural: str, namespace: str, name: str) -> Json | None:
        return self.store.find(self.store.kind(_RBAC, plural), namespace, name)

    def _known(self, what: str) -> Kind:
        plural, _, group = what.partition(".")
        return self.store.kind(group, plural)

    def _place(self, thing: Json) -> tuple[Kind, str]:
        kind = self.store.kind_of(thing)
        return kind, thing["metadata"].get("namespace", "default") if kind.namespaced else ""

    def _ensure_namespace(self, kind: Kind, name: str) -> None:
        if kind.namespaced and self.find("namespaces", "", name) is None:
            self.store.create(self.store.kind("", "namespaces"), "", {"metadata": {"name": name}})

    def _discover(self) -> None:
        """Tell kmock, which answers what kinds there are."""
        known = self._door.resources
        for one in list(known):
            del known[one]
        for kind in self.store.kinds:
            known[f"{kind.api_version}/{kind.plural}"] = kmock.ResourceInfo(
                kind=kind.kind,
                singular=kind.kind.lower(),
                namespaced=kind.namespaced,
                shortnames=set(kind.short),
                verbs={"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
                subresources={*kind.more, *(("status",) if kind.status else ())},
            )

    def _seed(self) -> None:
        self._discover()
        for each in seeded():
            self.make(each)


_RBAC = "rbac.authorization.k8s.io"


def _understood(raw: web.BaseRequest) -> _Request:
    """The verb and attributes of a request, as the API server derives them (RequestInfo)."""
    query, method = dict(raw.query), raw.method
    parts = [part for part in raw.path.split("/") if part]
    if len(parts) > 2 and parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    elif len(parts) > 3 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return _Request(Asked(method.lower(), path=raw.path), query=query)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    resource, name, sub = rest[0], "".join(rest[1:2]), "/".join(rest[2:])
    verb = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[
        method
    ]
    if verb == "get" and not sub and query.get("watch") in ("true", "True", "1"):
        verb = "watch"
        query["fieldSelector"] = f"metadata.name={name}" if name else query.get("fieldSelector", "")
    elif not name:
        verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
    if verb in ("list", "watch", "deletecollection") and not name:
        found = re.search(r"(?:^|,)metadata\.name==?([^,]+)", query.get("fieldSelector", ""))
        name = found[1] if found else ""
    return _Request(Asked(verb, group, resource, sub, namespace, name), version, query)


def _selected(kind: Kind, namespace: str, query: Mapping[str, str]) -> Selected:
    known = ("metadata.name", *(("metadata.namespace",) if kind.namespaced else ()), *kind.fields)
    return Selected(
        kind, namespace, label_terms(query.get("labelSelector", "")), field_terms(query.get("fieldSelector", ""), known)
    )


def _told(selected: Selected, event: Event) -> Json | None:
    """What a follower hears: an object that begins or ceases to match comes or goes."""
    if (event.kind.group, event.kind.plural) != (selected.kind.group, selected.kind.plural):
        return None
    before = event.before is not None and selected.holds(event.before)
    after = event.after is not None and selected.holds(event.after)
    if not before and not after:
        return None
    kind = "DELETED" if not after else "MODIFIED" if before else "ADDED"
    thing = event.after if after else event.before
    assert thing is not None
    if not after and event.after is not None:  # its last state that matched, at the version of the change
        thing = {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(event.version)}}
    return {"type": kind, "object": {**thing, "apiVersion": selected.kind.api_version}}


def _bookmark(kind: Kind, version: int, *, first: bool = False) -> Json:
    meta: Json = {"resourceVersion": str(version)}
    if first:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}}


def _info(user: User) -> Json:
    return {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": user.extra}


def _forbidden(user: User, asked: Asked) -> Problem:
    if asked.path:
        return Problem(403, "Forbidden", f'forbidden: User "{user.name}" cannot {asked.verb} path "{asked.path}"')
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    full = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    return Problem(
        403, "Forbidden",
        f'{full} {asked.name and json.dumps(asked.name) + " "}is forbidden: User "{user.name}" cannot {asked.verb} '
        f'resource "{asked.what}" in API group "{asked.group}" {where}',
        {"name": asked.name, "group": asked.group, "kind": asked.resource},
    )  # fmt: skip


def _json(body: Any, status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


async def _body(raw: web.BaseRequest) -> Any:
    data = await raw.read()
    if not data:
        return {}
    try:
        return json.loads(data)
    except ValueError as error:
        raise Problem(400, "BadRequest", f"the body is no JSON: {error}") from None


def _order(thing: Json) -> int:
    first = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role")
    return first.index(thing["kind"]) if thing["kind"] in first else len(first)


def _free_port(host: str) -> int:
    """One below the range from which the kernel gives out ports: while the server is away nobody gets it by chance."""
    while True:
        port = random.randint(12_000, 29_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
