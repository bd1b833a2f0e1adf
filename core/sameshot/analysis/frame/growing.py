"""Tables that grow as chunks come."""

from __future__ import annotations

from typing import Any

import numpy as np

from sameshot.analysis.frame.tables import Rows
from sameshot.trace.columns.chunk import event_order

_LEAST_ROOM = 1 << 10
Columns = dict[str, Any]


class GrowingTable:
    """Rows of one kind, as they come. `room` is how many are expected: memory is touched once, and nothing joined."""

    def __init__(self) -> None:
        self.room = 0
        self._size = 0
        self._columns: Columns = {}

    def add(self, part: Columns) -> None:
        start, stop = self._size, self._size + len(part["start"])
        if stop > self.room or not self._columns:
            self.room = max(stop, self.room if not self._columns else self.room * 3 // 2, _LEAST_ROOM)
            for name, column in part.items():
                wider = np.empty(self.room, column.dtype)
                if start:
                    wider[:start] = self._columns[name][:start]
                self._columns[name] = wider
        for name, column in part.items():
            self._columns[name][start:stop] = column
        self._size = stop

    def rows(self) -> Rows:
        """All rows, in order. Call it once."""
        columns = {name: column[: self._size] for name, column in self._columns.items()}
        self._columns.clear()
        if columns and (order := event_order(columns["start"], columns["end"])) is not None:
            for name in columns:
                columns[name] = columns[name][order]
        return Rows(**columns)
