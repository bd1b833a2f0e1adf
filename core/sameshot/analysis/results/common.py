"""Values that many results are made of, and how they are called in JSON."""

from __future__ import annotations

import enum

import msgspec


def ns(*fields: str) -> dict[str, str]:
    """How times are called in JSON: there the unit stands in the name, as in the manifest."""
    return {field: f"{field}_ns" for field in fields}


class Confidence(enum.StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"  # not known at all

    @property
    def degree(self) -> int:
        """The surer, the higher."""
        return list(Confidence)[::-1].index(self)


class Spread(msgspec.Struct, frozen=True, rename=ns("median", "p10", "p90", "minimum", "maximum")):
    """A distribution in ns; None where there was nothing to measure."""

    count: int
    median: int
    p10: int
    p90: int
    minimum: int
    maximum: int


class NamedTime(msgspec.Struct, frozen=True, rename=ns("total", "self_time")):
    """One name with its count, whole duration and self time (without its children), in ns."""

    name: str
    count: int
    total: int
    self_time: int
