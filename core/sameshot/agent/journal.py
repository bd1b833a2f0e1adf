"""What the agent saw, in the order in which it saw it: one structured line on stderr each, the last ones in memory.

Written from the event loop and from the announcing thread; the order of entries is the order of events.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque

import msgspec

log = logging.getLogger("sameshot.agent")

ENDS = ("archived", "failed")
"""Events with which a target has come to its end; the detail of the second is a FailureReason."""


class Entry(msgspec.Struct, frozen=True):
    """`look` counts the rounds of the announcing thread where that matters."""

    event: str
    capture_id: str
    target_id: str
    detail: str = ""
    look: int | None = None


class Journal:
    def __init__(self, keep: int = 10_000) -> None:
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque(maxlen=keep)
        self._keep = keep
        self._ended: Counter[tuple[str, ...]] = Counter()
        self._counted: dict[tuple[str, str], None] = {}

    def record(
        self, event: str, capture_id: str = "", target_id: str = "", detail: str = "", *, look: int | None = None
    ) -> None:
        with self._lock:
            if event in ENDS and (capture_id, target_id) not in self._counted:  # said again at a repeated dispatch
                self._counted[capture_id, target_id] = None
                self._ended[(detail if event == "failed" else event,)] += 1
                if len(self._counted) > self._keep:
                    del self._counted[next(iter(self._counted))]
            self._entries.append(Entry(event, capture_id, target_id, detail, look))
        extra = "" if not detail else f" detail={detail!r}"
        log.info("%s capture=%s target=%s%s", event, capture_id, target_id, extra)

    @property
    def ended(self) -> dict[tuple[str, ...], int]:
        """How many targets ended since the start, by `archived` or the reason of their failure."""
        with self._lock:
            return dict(self._ended)

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries)
