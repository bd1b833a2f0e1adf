"""Whether an object is as we want it, and the patch that makes it so. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from sameshot.arm.values import Json, copied, inside
from sameshot.operator.objects import Kind

_FIXED = {Kind.BINDING: "roleRef", Kind.SECRET: "type"}
"""What the API server lets nobody change: where it differs the object is made anew."""
_WHOLE = (("data",), ("spec", "selector"))
"""Maps in which nobody else has anything to add."""


def mark(kind: Kind, want: Json) -> str:
    """By which it is known again that it was wanted just so before; of a certificate each is as good."""
    told = {key: value for key, value in want.items() if kind is not Kind.SECRET or key != "data"}
    return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()[:16]


def differs(want: Any, have: Any) -> bool:
    """Whether something of what we want is otherwise; what the API server and others added does not count."""
    if isinstance(want, dict):
        return not isinstance(have, dict) or any(differs(value, have.get(key)) for key, value in want.items())
    if isinstance(want, list):
        return (
            not isinstance(have, list)
            or len(want) != len(have)
            or any(differs(one, other) for one, other in zip(want, have, strict=True))
        )
    return bool(want != have)


def to_mend(kind: Kind, want: Json, have: Json) -> Json | None:
    """A merge patch that makes `have` what we want; None: it is. `{}`: it can't be changed and is to be made anew.

    What somebody made immutable is, too, as it will have to change: a certificate, a policy.
    """
    fixed = _FIXED.get(kind)
    if have.get("immutable") or (fixed is not None and differs(want[fixed], have.get(fixed))):
        return {}
    if kind is Kind.POD:  # all but labels is the template's, and a pod is replaced for that
        want = {"metadata": {"labels": want["metadata"]["labels"]}}
    want = {key: value for key, value in want.items() if key not in ("apiVersion", "kind")}  # lists leave them out
    strange = {where: set(inside(have, *where)) - set(inside(want, *where)) for where in _WHOLE if inside(want, *where)}
    if not any(strange.values()) and not differs(want, have):
        return None
    patch: Json = copied({key: value for key, value in want.items() if key != fixed})
    for where, keys in strange.items():
        holder = patch
        for each in where:
            holder = holder[each]
        holder.update(dict.fromkeys(keys))
    return patch
