"""Which container of a pod is the one that trains: the one that asks for an accelerator, else the first."""

from __future__ import annotations

import re

from sameshot.arm.values import Json, NotArmable, inside

# Device plugins name their resources <vendor domain>/<device>: nvidia.com/gpu, nvidia.com/mig-1g.10gb, amd.com/gpu,
# gpu.intel.com/i915, habana.ai/gaudi, google.com/tpu, aws.amazon.com/neuron, huawei.com/Ascend910, …
_ACCELERATOR = re.compile(
    r"(?<![a-z])[pv]?(gpu|tpu|npu|xpu|dcu|gcu|mlu|gaudi|neuron|ascend|qaic|vcuda)|/mig-|^amd\.com/", re.IGNORECASE
)


def accelerators(container: Json) -> list[str]:
    """The accelerators that a container asks for, by the names of their resources; claims of devices count, too."""
    asked = {**inside(container, "resources", "requests"), **inside(container, "resources", "limits")}
    named = [key for key, amount in asked.items() if "/" in key and str(amount) != "0" and _ACCELERATOR.search(key)]
    claims = inside(container, "resources").get("claims")
    if isinstance(claims, list):
        named += [f"claim {claim.get('name')}" for claim in claims if isinstance(claim, dict)]
    return named


def asks_for_an_accelerator(template: Json) -> bool:
    """Whether any container of this pod template does."""
    containers = inside(template, "spec").get("containers")
    return isinstance(containers, list) and any(accelerators(each) for each in containers if isinstance(each, dict))


def containers_of(template: Json) -> list[Json]:
    """The containers of a pod template. Raises NotArmable where this is none."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers:
        raise NotArmable("This is no pod template: it has no spec.containers.")
    for index, container in enumerate(containers):
        if not isinstance(container, dict) or not isinstance(container.get("name"), str):
            raise NotArmable(f"Container {index} has no name; every container of a pod needs one.")
    return containers


def choose(template: Json, asked: str | None, convention: str | None) -> tuple[Json, list[str]]:
    """The container that trains, and what a person should know about the choice.

    `asked` is a person's decision, `convention` the name that the kind of workload expects. Sidecars (restartable init
    containers) and other init containers are never the trainer.
    """
    containers = containers_of(template)
    names = [each["name"] for each in containers]
    if asked is not None:
        if asked in names:
            return containers[names.index(asked)], []
        before = template["spec"].get("initContainers")
        if isinstance(before, list) and any(isinstance(each, dict) and each.get("name") == asked for each in before):
            raise NotArmable(f"{asked} is an init container or a sidecar; only {_listed(names)} can be the trainer.")
        raise NotArmable(f"There is no container {asked}; this pod has {_listed(names)}.")
    equipped = [each for each in containers if accelerators(each)]
    if equipped:
        chosen, others = equipped[0], [each["name"] for each in equipped[1:]]
        if convention in others:
            chosen = containers[names.index(convention)]
            others = [each["name"] for each in equipped if each is not chosen]
        told = (
            f"{_listed([each['name'] for each in equipped])} all ask for an accelerator; {chosen['name']} is taken "
            "for the trainer (another one: --container), the others are not captured"
        )
        return chosen, [told] if others else []
    if convention in names:
        return containers[names.index(convention)], []
    notes = []
    if len(containers) > 1:
        notes = [
            f"no container asks for an accelerator; the first one, {names[0]}, is armed (another one: --container)"
        ]
    return containers[0], notes


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
