"""Which policy holds for the jobs of a namespace: the tightest value of each field. Pure.

The cluster's policy (the `ClusterCapturePolicy` called default) stands for what is built in, as default and ceiling;
each `CapturePolicy` of the namespace can only make it tighter. A field that can't be understood is left out and told:
no mistake in one policy keeps the coordinators of a namespace from being made, and none widens what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sameshot.arm.values import Json, inside
from sameshot.model import CapturePolicy

CLUSTER_POLICY = "default"
_FIELDS = {
    "maxDurationMs": ("max_duration_ms", 1),
    "maxDurationWithStackMs": ("max_duration_with_stack_ms", 1),
    "minIntervalMs": ("min_interval_ms", 0),
    "maxCapturesAtOnce": ("max_captures_at_once", 1),
}
"""In the objects → in `CapturePolicy`, and the least value that means anything."""
_LOOSER_IS_LESS = {"min_interval_ms"}


class Effective(msgspec.Struct, frozen=True):
    """`problems`: what was left out, in words."""

    policy: CapturePolicy = CapturePolicy()
    problems: tuple[str, ...] = ()


def effective(cluster: Iterable[Json], namespaced: Iterable[Json]) -> Effective:
    """The policy of a namespace from the cluster's policies (other names than default do not count) and its own."""
    problems: list[str] = []
    values = msgspec.to_builtins(CapturePolicy())
    for each in cluster:
        if inside(each, "metadata").get("name") == CLUSTER_POLICY:
            values |= _read("ClusterCapturePolicy", each, problems)
    for each in sorted(namespaced, key=_name):
        for field, value in _read("CapturePolicy", each, problems).items():
            tightest = max if field in _LOOSER_IS_LESS else min
            values[field] = tightest(values[field], value)
    values["max_duration_with_stack_ms"] = min(values["max_duration_with_stack_ms"], values["max_duration_ms"])
    return Effective(CapturePolicy(**values), tuple(problems))


def _name(thing: Json) -> str:
    return str(inside(thing, "metadata").get("name", ""))


def _read(kind: str, thing: Json, problems: list[str]) -> dict[str, int]:
    spec = thing.get("spec")
    who = f"{kind} {_name(thing)}"
    if not isinstance(spec, dict):
        problems.append(f"{who} has no spec; it counts for nothing")
        return {}
    found = {}
    for key, value in spec.items():
        if key not in _FIELDS:
            problems.append(f"{who} has a field {key[:60]!r}, which this version does not know; it counts for nothing")
            continue
        field, least = _FIELDS[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
            problems.append(f"{who} has {str(value)[:60]!r} as {key}, which is none; it counts for nothing")
        else:
            found[field] = value
    return found
