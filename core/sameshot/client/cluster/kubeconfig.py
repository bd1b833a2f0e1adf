"""The API server by a kubeconfig, with the official client: contexts, login programs, certificates, proxies.

The only module of the client that imports `kubernetes`; what it needs is the extra of that name. Of the official client
its reading of kubeconfigs and its requests are used: not its port-forward, see `tunnel`.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sameshot.client.cluster.access import Access, Upgrade
from sameshot.errors import UsageError
from sameshot.kube.api import TIMEOUT_S, ApiError, Listed, pages

try:
    import urllib3.exceptions
    from kubernetes import client as official
    from kubernetes import config
except ImportError as _missing:
    raise UsageError(
        "A job in a cluster is reached through a kubeconfig with Kubernetes' own client, which is not installed: "
        "pip install 'sameshot[kubernetes]'. Within a pod of the cluster nothing more is needed."
    ) from _missing


def by_kubeconfig(path: str | None, context: str | None) -> Access:
    """Raises UsageError where there is none, it is damaged, has no such context, or its login program fails."""
    where = path or "$KUBECONFIG, else ~/.kube/config"
    try:
        client = config.new_client_from_config(config_file=path, context=context, persist_config=False)
    except Exception as error:  # of the parser's, the login program's and the library's own kinds alike
        raise UsageError(
            f"No cluster can be reached with the kubeconfig ({where}"
            f"{f', context {context}' if context else ''}): {_first_line(error)}. `kubectl config get-contexts` lists "
            "what there is; name one with --context, in an address with ?context=."
        ) from None
    host = str(client.configuration.host)
    return Access(_Official(client), lambda: _upgrade(client), None, f"the API server {host}")


def own_namespace(context: str | None, kubeconfig: str | None) -> str:
    """The namespace that kubectl would use. Raises UsageError where no kubeconfig or no such context is there."""
    try:
        every, current = config.list_kube_config_contexts(config_file=kubeconfig)
    except Exception as error:
        raise UsageError(
            f"No namespace was named, and the kubeconfig does not tell one either: {_first_line(error)}."
        ) from None
    found = current if context is None else next((each for each in every if each["name"] == context), None)
    if found is None:
        raise UsageError(f"The kubeconfig has no context {context!r}; there are {', '.join(e['name'] for e in every)}.")
    return str(found["context"].get("namespace") or "default")


class _Official:
    """`access.Api` with the official client. Safe in threads."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        return self._ask("GET", path, query, None)

    def list(self, path: str, query: Mapping[str, str]) -> Iterator[Listed]:
        return pages(self.get, path, query)

    def send(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> bytes:
        return self._ask(method, path, {}, None if body is None else msgspec.to_builtins(body), content_type)

    def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: object, content_type: str = "application/json"
    ) -> bytes:
        headers = {"Accept": "application/json", "User-Agent": "sameshot-client"}
        if body is not None:
            headers["Content-Type"] = content_type
        self._client.update_params_for_auth(headers, [], ["BearerToken"])
        try:
            answer = self._client.rest_client.request(
                method,
                f"{self._client.configuration.host}{path}",
                query_params=list(query.items()),
                headers=headers,
                body=body,
                _request_timeout=(TIMEOUT_S, TIMEOUT_S),
            )
        except official.ApiException as error:
            if not error.status:  # a certificate that is not the server's
                raise ConnectionError(str(error.reason)) from None
            raise ApiError(int(error.status), _text(error.body) or str(error.reason)) from None
        except urllib3.exceptions.HTTPError as error:  # no answer
            raise ConnectionError(str(error)) from None
        return _text(answer.data).encode()


def _text(body: object) -> str:
    """The official client decodes what it reads, unless it can't."""
    return body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")


def _upgrade(client: Any) -> Upgrade:
    """With the credential as it is now: login programs give short ones, and the official client renews them."""
    settings = client.configuration
    headers: dict[str, str] = {}
    client.update_params_for_auth(headers, [], ["BearerToken"])
    sslopt: dict[str, Any] = {"cert_reqs": ssl.CERT_REQUIRED if settings.verify_ssl else ssl.CERT_NONE}
    if not settings.verify_ssl:
        sslopt["check_hostname"] = False
    elif settings.ssl_ca_cert:
        sslopt["ca_certs"] = settings.ssl_ca_cert
    else:
        with contextlib.suppress(ImportError):
            import certifi

            sslopt["ca_certs"] = certifi.where()
    if settings.assert_hostname is not None:
        sslopt["check_hostname"] = bool(settings.assert_hostname)
    if settings.cert_file:
        sslopt |= {"certfile": settings.cert_file, "keyfile": settings.key_file}
    if getattr(settings, "tls_server_name", None):
        sslopt["server_hostname"] = settings.tls_server_name
    return Upgrade(str(settings.host).replace("http", "ws", 1), headers, sslopt, _proxy(settings))


def _proxy(settings: Any) -> dict[str, Any]:
    """For websocket-client; without one that looks at http_proxy and no_proxy by itself."""
    if not settings.proxy:
        return {}
    from urllib.parse import urlsplit

    proxy = urlsplit(str(settings.proxy))
    options: dict[str, Any] = {"http_proxy_host": proxy.hostname, "http_proxy_port": proxy.port, "proxy_type": "http"}
    if proxy.username:
        options["http_proxy_auth"] = (proxy.username, proxy.password or "")
    if getattr(settings, "no_proxy", None):
        options["http_no_proxy"] = [each.strip() for each in str(settings.no_proxy).split(",")]
    return options


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
