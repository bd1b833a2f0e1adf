"""The way to the API server from where a part runs: what it was told, and for the rest what the kubelet gives each pod.

https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sameshot.errors import UsageError
from sameshot.hostport import joined
from sameshot.kube.api import KubeApi

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Way(msgspec.Struct, frozen=True):
    """`server` is https://host:port. The token is read anew whenever one is needed; no file: none is sent. `ca_file`:
    None: the authorities of this machine."""

    server: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def api(self, part: str) -> KubeApi:
        """Raises UsageError where it can't be used, OSError where the authority can't be read."""
        return KubeApi(self.server, token_file=self.token_file, ca_file=self.ca_file, part=part)


def is_pod(environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> bool:
    """Whether the kubelet gave this process an API server and an account."""
    return bool(environment.get("KUBERNETES_SERVICE_HOST")) and (account / "token").exists()


def way(
    server: str = "",
    token_file: Path | None = None,
    ca_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    account: Path = ACCOUNT,
) -> Way:
    """Whatever is not named is the pod's, as far as this is one: also its token, for a server that was named.

    Raises UsageError where no server is known, or none of an account to use there.
    """
    token_file = token_file or _there(account / "token")
    ca_file = ca_file or _there(account / "ca.crt")
    if server:
        return Way(server, token_file, ca_file)
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT") or "443"
    if not host or token_file is None:
        raise UsageError(
            "This process is not in a pod with a ServiceAccount (no KUBERNETES_SERVICE_HOST, or no token); name the "
            "API server with --api-server."
        )
    return Way(f"https://{joined(host, port)}", token_file, ca_file)


def _there(path: Path) -> Path | None:
    return path if path.exists() else None
