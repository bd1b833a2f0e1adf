"""What the operator asks the API server before all else: as whom kopf asks, and which image it has itself."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import kopf
import msgspec

from sameshot.arm.values import inside
from sameshot.errors import Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.api import ApiError
from sameshot.kube.inpod import Way
from sameshot.kube.reviews import expires_in
from sameshot.operator.config import OperatorConfig
from sameshot.operator.objects import named

PART = "operator"

RENEWED_AFTER = 0.9  # of what a token has left; kubelets renew at 0.8 of its life
LONGEST_S = 3000.0  # by then there is another one, also where servers let tokens of an hour live for a year


def login(way: Way) -> kopf.ConnectionInfo:
    """For kopf's own requests, from now on until there is another token."""
    token = None if way.token_file is None else way.token_file.read_text().strip()
    ca = None if way.ca_file is None else str(way.ca_file)
    # Before it ends the kubelet has put another one into the file: nothing need be refused first.
    left_s = min(RENEWED_AFTER * expires_in(token or ""), LONGEST_S)
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=left_s)
    return kopf.ConnectionInfo(
        server=way.server, ca_path=ca, scheme="Bearer", token=token, expiration=ends if left_s else None
    )


def own_image(config: OperatorConfig, way: Way, environment: Mapping[str, str]) -> OperatorConfig:
    """With the image that the operator's own pod has (POD_NAME, POD_NAMESPACE), where none was named.

    Raises UsageError or Unreachable where it can't be known, and as `KubeApi.get` does while the API server is away.
    """
    if config.image:
        return config
    pod, namespace = environment.get("POD_NAME"), environment.get("POD_NAMESPACE")
    if not pod or not namespace:
        raise UsageError("The coordinators' image is not known; name it with --image.")
    try:
        found = msgspec.json.decode(way.api(PART).get(f"{names.pods_path(namespace)}/{pod}"), type=dict)
    except ApiError as error:
        if error.status >= 500:
            raise
        raise Unreachable(f"The image of the operator's own pod {namespace}/{pod} can't be read: {error}.") from None
    containers = inside(found, "spec").get("containers") or ()
    # Others may have been put beside it, or before it.
    image = named(containers, PART).get("image") or next(
        (each["image"] for each in containers if each.get("image")), None
    )
    if not isinstance(image, str):
        raise UsageError("The operator's own pod has no image; name the coordinators' with --image.")
    return msgspec.structs.replace(config, image=image)
