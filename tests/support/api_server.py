"""A real API server, spoken to in plain objects: what is sent and what comes back is JSON as the server has it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
PHANTOM = "sameshot-test-"
"""How nodes are called that tests make as mere objects."""


class Refused(Exception):
    """The server's own words, and its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status}: {message}")


@dataclass(frozen=True)
class Answer:
    thing: Json
    warnings: tuple[str, ...] = ()


class ApiServer:
    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def of_kubeconfig(cls, path: Path | None = None) -> ApiServer:
        """Where `KUBECONFIG` (or this file) points, with its credentials; tells by a first question whether it
        answers."""
        from kubernetes import config

        made = cls(config.new_client_from_config(None if path is None else str(path), persist_config=False))
        made.call("GET", "/version")
        return made

    @property
    def url(self) -> str:
        return str(self._client.configuration.host)

    @property
    def ca_file(self) -> str | None:
        """Whose certificates are trusted, as a file; the client writes one for what stands in the kubeconfig itself.
        None: those that the machine trusts."""
        found = self._client.configuration.ssl_ca_cert
        return None if found is None else str(found)

    @property
    def verifies(self) -> bool:
        """Whether the server's certificate is looked at."""
        return bool(self._client.configuration.verify_ssl)

    def call(
        self, method: str, path: str, body: Json | None = None, *, headers: Mapping[str, str] = {}, **query: str
    ) -> Answer:
        """`headers` on top: `Impersonate-User`, another `Accept` or `Content-Type`. Raises Refused."""
        from kubernetes.client.exceptions import ApiException

        try:
            data, _, headers = self._client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json", **headers},
                body=body,
                auth_settings=["BearerToken"],
                response_type="object",
                _request_timeout=30,
            )
        except ApiException as error:
            try:
                message = json.loads(error.body)["message"]
            except (TypeError, ValueError, KeyError):
                message = str(error.reason)
            raise Refused(error.status, message) from None
        told = [value for name, value in headers.items() if name.lower() == "warning"]
        return Answer(data, tuple(told))

    def patch(self, path: str, body: Json, *, headers: Mapping[str, str] = {}, **query: str) -> Json:
        """A merge patch."""
        return self.call(
            "PATCH", path, body, headers={"Content-Type": "application/merge-patch+json", **headers}, **query
        ).thing

    def nodes(self) -> list[Json]:
        """Those that somebody runs, be they ready or not."""
        found = self.call("GET", "/api/v1/nodes").thing["items"]
        return [each for each in found if not each["metadata"]["name"].startswith(PHANTOM)]

    def path_of(self, thing: Json, *, one: bool = True) -> str:
        """Where an object is, or (not `one`) is created."""
        plural = self.resource(thing)
        assert plural is not None, f"this server does not know {thing['kind']} ({thing['apiVersion']})"
        version, meta = thing["apiVersion"], thing["metadata"]
        where = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
        path = f"{'/apis' if '/' in version else '/api'}/{version}{where}/{plural}"
        return f"{path}/{meta['name']}" if one else path

    def resource(self, thing: Json) -> str | None:
        """The plural under which this server knows the kind; None: it doesn't."""
        version = thing["apiVersion"]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            listed = self.call("GET", path).thing["resources"]
        except Refused as error:
            if error.status == 404:
                return None
            raise
        return next(
            (each["name"] for each in listed if each["kind"] == thing["kind"] and "/" not in each["name"]), None
        )

    @contextlib.contextmanager
    def namespace(self, name: str, *, level: str) -> Iterator[Namespace]:
        """A namespace at this Pod Security level, removed at the end with all that is in it."""
        marks = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
        self.call(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": marks}},
        )
        try:
            made = Namespace(self, name)
            made.ensure_account()
            yield made
        finally:
            self.call("DELETE", f"/api/v1/namespaces/{name}")


@dataclass(frozen=True)
class Namespace:
    server: ApiServer
    name: str

    def ensure_account(self) -> None:
        """Pods need the account `default`, and a bare control plane has no controller that makes it."""
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        try:
            self.server.call("POST", f"/api/v1/namespaces/{self.name}/serviceaccounts", account)
        except Refused as error:
            if error.status != 409:
                raise

    def dry_run(self, thing: Json) -> Answer:
        """What the server would make of an object: fully validated and defaulted, nothing stored. Raises Refused."""
        plural = self.server.resource(thing)
        assert plural is not None, f"this server does not know {thing['kind']}"
        version = thing["apiVersion"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        here = {**thing, "metadata": {**thing["metadata"], "namespace": self.name}}
        path = f"{group}/namespaces/{self.name}/{plural}"
        return self.server.call("POST", path, here, dryRun="All", fieldValidation="Strict")
