"""What a store says of an object."""

from __future__ import annotations

from typing import NamedTuple


class Stored(NamedTuple):
    """`size` in bytes, `modified_s` in seconds since 1970 by the store's own clock."""

    key: str
    size: int
    modified_s: float
