"""Captures on disk whose order in time a test decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sameshot.manifest import build, decode, encode


def redate(manifest: Path, hour: int, minute: int = 0, **fields: Any) -> None:
    """As if its targets had been frozen at that time of a day; `fields` are others of the capture."""
    found = decode(manifest.read_bytes())
    dated = msgspec.structs.replace(found.capture, frozen_at=f"2026-11-30T{hour:02}:{minute:02}:00Z", **fields)
    manifest.write_bytes(encode(build(dated, list(found.targets))))
