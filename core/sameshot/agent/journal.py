"""What the agent saw, in the order in which it saw it: one structured line on stderr each, the last ones in memory.

Written from the event loop and from the announcing thread; the order of entries is the order of events.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import msgspec

log = logging.getLogger("sameshot.agent")


class Entry(msgspec.Struct, frozen=True):
    """`at_s` is the monotonic clock; `look` counts the rounds of the announcing thread where that matters."""

    at_s: float
    event: str
    capture_id: str
    target_id: str
    detail: str = ""
    look: int | None = None


class Journal:
    def __init__(self, keep: int = 10_000) -> None:
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque(maxlen=keep)

    def record(
        self, event: str, capture_id: str = "", target_id: str = "", detail: str = "", *, look: int | None = None
    ) -> None:
        with self._lock:
            self._entries.append(Entry(time.monotonic(), event, capture_id, target_id, detail, look))
        extra = "" if not detail else f" detail={detail!r}"
        log.info("%s capture=%s target=%s%s", event, capture_id, target_id, extra)

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries)
