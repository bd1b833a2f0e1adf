"""Read a trace's events: the same pass as `verify`, without expectations."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from sameshot.trace.events import EventSink
from sameshot.trace.verify import VerifiedTrace, verify


def read_trace(source: Path | BinaryIO, sink: EventSink) -> VerifiedTrace:
    """Hand every event of a plain, gzip or zstd trace to `sink`, block by block, in bounded memory.

    What the sink got counts only once this has returned: a later byte may prove the trace broken (`TraceError`).
    """
    return verify(source, sink=sink)
