"""Kubernetes quantities, such as 20Gi or 1500M, as whole numbers."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from sameshot.arm.values import NotArmable

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
# A larger exponent would be computed for hours, and no server gives one.
_FORM = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?[0-9]{1,3})")
_SCALES = {"": Decimal(1)}
_SCALES |= {suffix: Decimal(1024) ** (power + 1) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_SCALES |= {suffix: Decimal(1000) ** (power - 3) for power, suffix in enumerate("num")}
_SCALES |= {suffix: Decimal(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")}


def quantity(text: str) -> int:
    """The amount, rounded up to a whole number. Raises NotArmable for what is no quantity."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise NotArmable(f"{text!r} is no quantity; write for example 20Gi.")
    number, suffix = match.groups()
    scale = _SCALES.get(suffix)
    return math.ceil(Decimal(number) * scale if scale is not None else Decimal(f"{number}{suffix}"))
