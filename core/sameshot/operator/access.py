"""How the operator reaches the API server: one answer for its own requests and for kopf's."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

import kopf
import msgspec

from sameshot.arm.values import inside
from sameshot.errors import Unreachable, UsageError
from sameshot.kube.api import ACCOUNT, ApiError, KubeApi
from sameshot.kube.reviews import expires_in
from sameshot.operator.config import OperatorConfig

RENEWED_AFTER = 0.9  # of what a token has left; kubelets renew at 0.8 of its life
LONGEST_S = 3000.0  # by then there is another one, also where servers let tokens of an hour live for a year


class Access(msgspec.Struct, frozen=True):
    """`server` is https://host:port; the token is read anew whenever one is needed."""

    server: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def api(self) -> KubeApi:
        return KubeApi(self.server, token_file=self.token_file, ca_file=self.ca_file, part="operator")

    def login(self) -> kopf.ConnectionInfo:
        token = None if self.token_file is None else self.token_file.read_text().strip()
        ca = None if self.ca_file is None else str(self.ca_file)
        # Before it ends the kubelet has put another one into the file: nothing need be refused first.
        left_s = min(RENEWED_AFTER * expires_in(token or ""), LONGEST_S)
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=left_s)
        return kopf.ConnectionInfo(
            server=self.server, ca_path=ca, scheme="Bearer", token=token, expiration=ends if left_s else None
        )


def access(config: OperatorConfig, environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Access:
    """What was said, else what the kubelet gives every pod. Raises UsageError where there is neither."""
    there = (account / "token").exists()
    token = config.token_file or (account / "token" if there else None)
    ca = config.ca_file or (account / "ca.crt" if (account / "ca.crt").exists() else None)
    if config.api_server:
        return Access(config.api_server, token, ca)
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not there:
        raise UsageError(
            "This process is not in a pod with a ServiceAccount (no KUBERNETES_SERVICE_HOST, or no token); name the "
            "API server with --api-server."
        )
    return Access(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", token, ca)


def own_image(config: OperatorConfig, reach: Access, environment: Mapping[str, str]) -> OperatorConfig:
    """With the image that the operator's own pod has (POD_NAME, POD_NAMESPACE), where none was named.

    Raises UsageError or Unreachable where it can't be known, and as `KubeApi.get` does while the API server is away.
    """
    if config.image:
        return config
    pod, namespace = environment.get("POD_NAME"), environment.get("POD_NAMESPACE")
    if not pod or not namespace:
        raise UsageError("The coordinators' image is not known; name it with --image.")
    try:
        found = msgspec.json.decode(reach.api().get(f"/api/v1/namespaces/{namespace}/pods/{pod}"), type=dict)
    except ApiError as error:
        if error.status >= 500:
            raise
        raise Unreachable(f"The image of the operator's own pod {namespace}/{pod} can't be read: {error}.") from None
    containers = inside(found, "spec").get("containers") or ()
    image = next((each.get("image") for each in containers if each.get("image")), None)
    if not isinstance(image, str):
        raise UsageError("The operator's own pod has no image; name the coordinators' with --image.")
    return msgspec.structs.replace(config, image=image)
