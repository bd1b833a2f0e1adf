"""Keeps the authority in its Secret, and the agents' certificate in theirs."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.kube import names
from sameshot.kube.api import MERGE_PATCH, Api, ApiError
from sameshot.operator import authority as certificates
from sameshot.operator.authority import Authority
from sameshot.operator.config import OperatorConfig
from sameshot.operator.objects import decoded, encoded, pair_in, tls_data
from sameshot.operator.rights import AGENT_TLS_SECRET, CA_SECRET

log = logging.getLogger(__name__)

_LABELS = {"app.kubernetes.io/name": "sameshot", "app.kubernetes.io/part-of": "sameshot", **names.MANAGED}


class InTheWay(OSError):
    """A Secret of ours has a name that is taken by what can't be ours."""


class Issuing:
    """Calls block. All raise OSError or HTTPException where the API server can't be asked, or refuses."""

    def __init__(self, api: Api, config: OperatorConfig, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._config = config
        self._clock = clock

    def authority(self) -> Authority:
        """The one that holds now: read, renewed where it is time, written. Whoever writes at the same time wins."""
        path = f"/api/v1/namespaces/{self._config.system_namespace}/secrets"
        while True:
            found = self._get(f"{path}/{CA_SECRET}")
            known = None if found is None else certificates.read(decoded(found))
            if found is not None and known is None:
                if (kind := found.get("type", "Opaque")) != "Opaque":  # others' keys, and servers change no type
                    where = self._config.system_namespace
                    raise InTheWay(
                        f"Secret {where}/{CA_SECRET} is of type {str(kind)[:100]} and keeps no authority of the "
                        "operator's. It is left as it is, and no coordinator gets a certificate until it is renamed or "
                        f"deleted (kubectl -n {where} delete secret {CA_SECRET}); then the operator makes its own."
                    )
                log.error("Secret %s keeps no authority that can be used; a new one is made", CA_SECRET)
            now = self._now()
            holds = certificates.new(now) if known is None else certificates.advance(known, now)
            if holds == known:
                return holds
            body = self._secret(self._config.system_namespace, CA_SECRET, "Opaque")
            body["data"] = {key: encoded(value) for key, value in holds.data.items()}
            try:
                if found is None:
                    self._api.send("POST", path, body)
                else:
                    body["metadata"]["resourceVersion"] = inside(found, "metadata").get("resourceVersion")
                    body["type"] = found.get("type", "Opaque")
                    self._api.send("PUT", f"{path}/{CA_SECRET}", body)
            except ApiError as error:
                if error.status != 409:
                    raise
                continue
            log.info("authority %s", "made" if known is None else "renewed")
            return holds

    def agents(self, authority: Authority) -> bool:
        """Renew the agents' certificate and bundle where it is time; whether anything was written."""
        namespace = self._config.agents_namespace
        path = f"/api/v1/namespaces/{namespace}/secrets"
        found = self._get(f"{path}/{AGENT_TLS_SECRET}")
        pair = pair_in(found or {})
        serves = certificates.serves(pair, authority, names.AGENT_HOST, self._now())
        if serves and decoded(found or {}).get("ca.crt") == authority.bundle:
            return False
        if not serves:
            pair = certificates.leaf(authority, names.AGENT_HOST, self._now())
        body = self._secret(namespace, AGENT_TLS_SECRET, "kubernetes.io/tls")
        body["data"] = tls_data(pair) | {"ca.crt": encoded(authority.bundle)}
        if found is None:
            self._api.send("POST", path, body)
        else:
            self._api.send("PATCH", f"{path}/{AGENT_TLS_SECRET}", {"data": body["data"]}, content_type=MERGE_PATCH)
        log.info("certificate of the agents written")
        return True

    def _get(self, path: str) -> Json | None:
        try:
            found: Json = msgspec.json.decode(self._api.get(path), type=dict)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)

    def _secret(self, namespace: str, name: str, kind: str) -> Json:
        metadata = {"name": name, "namespace": namespace, "labels": dict(_LABELS)}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}
