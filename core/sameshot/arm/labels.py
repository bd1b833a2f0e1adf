"""The one home of every name that arming writes into a pod, and that webhook, agent and operator look for there."""

from __future__ import annotations

DOMAIN = "sameshot.dev"

ARM_LABEL = f"{DOMAIN}/arm"
"""On a pod: `enabled` asks for arming, and discovery watches pods that have it; `disabled` forbids it."""
ENABLED = "enabled"
DISABLED = "disabled"

ARMED = f"{DOMAIN}/armed"
"""Annotation of an armed pod: the `ArmedRecord`, which says what was added, so that it can be taken out again."""
NOT_ARMED = f"{DOMAIN}/not-armed"
"""Annotation: why the webhook left a pod as it was although its label asked."""
SERIES = f"{DOMAIN}/series"
"""Annotation of the user's: what makes runs of "the same" job comparable."""

# Annotations with which a pod says what `sameshot arm` takes as options; the webhook has no command line.
CONTAINER = f"{DOMAIN}/container"
LOCAL_WORLD_SIZE = f"{DOMAIN}/local-world-size"
SINGLE = f"{DOMAIN}/single"
ARM_SPAWNED = f"{DOMAIN}/arm-spawned"
PYTHONPATH = f"{DOMAIN}/pythonpath"

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the kubelet's: the object only shows a static pod, which runs from a file of the node whatever becomes
of the object."""

VOLUME = "sameshot"
DIRECTORY = "/sameshot"
"""Where the volume is mounted: `/` and its name, so that a socket bound under the volume's parent has the same path."""
HOOK_VOLUME = "sameshot-hook"
HOOK_DIRECTORY = "/sameshot-hook"
HOOK_CONFIGMAP = "sameshot-hook"

ENV_PREFIX = "SAMESHOT_"
