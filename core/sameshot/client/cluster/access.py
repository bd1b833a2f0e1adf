"""The way to an API server: with the account of the pod that this process is in, or with a kubeconfig.

In a pod nothing but the standard library is needed. The official Kubernetes client, which knows contexts, logins by
other programs, certificates and proxies, is imported where a kubeconfig is used, and only there.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sameshot.client.cluster.address import KubeAddress
from sameshot.errors import UsageError
from sameshot.kube import inpod
from sameshot.kube.api import Reader, Sender
from sameshot.kube.claims import claims_of

API_SERVER, TOKEN_FILE, CA_FILE = "SAMESHOT_API_SERVER", "SAMESHOT_API_TOKEN_FILE", "SAMESHOT_API_CA_FILE"
"""In pods of clusters whose API server is not at KUBERNETES_SERVICE_HOST: where it is (https://host:port), and which
files go with it instead of those of the pod's account."""


class Api(Reader, Sender, Protocol):
    """What a client asks of an API server: it follows nothing."""


class Upgrade(msgspec.Struct, frozen=True):
    """How a websocket to the API server is opened: its URL without the path, headers, and what goes with `ssl` and
    proxies, in the words of websocket-client."""

    server: str
    headers: dict[str, str]
    sslopt: dict[str, Any]
    options: dict[str, Any] = {}


@dataclass(frozen=True)
class Access:
    """`account` is (namespace, name) of the pod that this is; None: with a kubeconfig. `called` names the way in
    messages. `upgrade` gives what a websocket is opened with, the credential that holds now included."""

    api: Api
    upgrade: Callable[[], Upgrade] = field(repr=False)
    account: tuple[str, str] | None = None
    called: str = "the API server"

    @property
    def in_pod(self) -> bool:
        return self.account is not None


def open_access(
    address: KubeAddress, environment: Mapping[str, str] = os.environ, account: Path = inpod.ACCOUNT
) -> Access:
    """As the address says; else in a pod by its account, else by what kubectl would use. Nothing is sent yet, but a
    kubeconfig may run its login program. Raises UsageError where there is no such way."""
    if address.context is None and address.kubeconfig is None and is_pod(environment, account):
        return _in_pod(environment, account)
    from sameshot.client.cluster.kubeconfig import by_kubeconfig

    return by_kubeconfig(address.kubeconfig, address.context)


def is_pod(environment: Mapping[str, str] = os.environ, account: Path = inpod.ACCOUNT) -> bool:
    """Whether there are an API server and an account to be used without a kubeconfig."""
    return bool(environment.get(API_SERVER)) or inpod.is_pod(environment, account)


def _in_pod(environment: Mapping[str, str], account: Path) -> Access:
    token_named, ca_named = (Path(text) if (text := environment.get(name)) else None for name in (TOKEN_FILE, CA_FILE))
    try:
        way = inpod.way(environment.get(API_SERVER, ""), token_named, ca_named, environment, account)
        if (token_file := way.token_file) is None:
            raise FileNotFoundError(f"there is no token in {account}")
        api = way.api("client")
        whose = account_of(token_file.read_text())
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"The account of this pod can't be used: {error}.") from None

    def upgrade() -> Upgrade:
        return Upgrade(
            way.server.replace("http", "ws", 1),
            {"Authorization": f"Bearer {token_file.read_text().strip()}"},
            {"cert_reqs": ssl.CERT_REQUIRED} | ({} if way.ca_file is None else {"ca_certs": str(way.ca_file)}),
        )

    return Access(api, upgrade, whose, f"the API server {way.server}")


def account_of(token: str) -> tuple[str, str]:
    """(namespace, name) of the ServiceAccount that a token is of, by its own word. Raises UsageError."""
    found = claims_of(token).account
    if found is None:
        raise UsageError(
            "The token of this pod is not a ServiceAccount's, so it is not known whose token is to be asked for; name "
            "the account: --service-account <namespace>/<name>, in an address ?service-account=."
        )
    return found
