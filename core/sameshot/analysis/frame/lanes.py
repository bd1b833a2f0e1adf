"""Words and lanes of all chunks as small numbers that do not depend on how the trace was read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sameshot.analysis.frame.tables import EMPTY_CODES, Rows
from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, Codes, Dictionaries, Dictionary

_SMALL = 1 << 20  # entries of a look-up table that is cheaper than sorting


class _Word:
    """One dictionary that outlives those of the chunks: usually the first of these, and then nothing is translated."""

    def __init__(self) -> None:
        self._own: Dictionary | None = None
        self._now: Dictionary | None = None
        self._new: Codes = EMPTY_CODES

    @property
    def values(self) -> list[str]:
        return self._own.values if self._own is not None else []

    def follow(self, dictionary: Dictionary) -> None:
        if self._own is None:
            self._own = dictionary
        if dictionary is self._now:
            return
        self._now, self._new = dictionary, EMPTY_CODES

    def codes(self, codes: Codes) -> Codes:
        """These codes of the chunk, in this dictionary."""
        own, now = self._own, self._now
        if own is now or own is None or now is None:
            return codes
        if len(self._new) != len(now) + 1:
            fresh = [own.code(value) for value in now.values[max(0, len(self._new) - 1) :]]
            self._new = np.array([*self._new[:-1].tolist(), *fresh, NO_CODE], np.int32)
        return self._new[codes]

    def known(self, value: str) -> int:
        """The code of this value; one that no row has where it was never met."""
        return NO_CODE - 1 if self._own is None else self._own.codes.get(value, NO_CODE - 1)


class Words:
    def __init__(self) -> None:
        self.name, self.thread, self.text = _Word(), _Word(), _Word()

    def follow(self, words: Dictionaries) -> None:
        self.name.follow(words.name)
        self.thread.follow(words.thread)
        self.text.follow(words.text)


_Key = tuple[str, str]


class Lanes:
    """(pid, tid) or (device, stream) of rows → small numbers, chunk by chunk.

    A lane is known by its JSON text: 1 and 1.0 are two threads, though Python takes them for equal.
    """

    def __init__(self, threads: _Word) -> None:
        self._threads = threads
        self._lanes: dict[_Key, int] = {}
        self._new: list[int | None] = []

    def of(self, chunk: Chunk, rows: Any, *, on_device: bool) -> Codes:
        pid, tid = (self._threads.codes(column[rows]) for column in (chunk.pid, chunk.tid))
        if not on_device:
            return self._numbers(pid, tid, self._thread, self._thread)
        device, stream = chunk.device[rows], chunk.stream[rows]
        stated = (device != MISSING) & (stream != MISSING)
        if stated.all():
            return self._numbers(device, stream, str, str)
        # Where an event does not state its device or stream, its process or thread stands for it.
        lanes: Codes = np.empty(len(pid), np.int32)
        for use_pid in (False, True):
            for use_tid in (False, True):
                at = np.flatnonzero(((device == MISSING) == use_pid) & ((stream == MISSING) == use_tid))
                if len(at):
                    lanes[at] = self._numbers(
                        (pid if use_pid else device)[at],
                        (tid if use_tid else stream)[at],
                        self._thread if use_pid else str,
                        self._thread if use_tid else str,
                    )
        return lanes

    def _thread(self, code: int) -> str:
        return "null" if code == NO_CODE else self._threads.values[code]

    def _numbers(self, first: Any, second: Any, value: Callable[[int], str], other: Callable[[int], str]) -> Codes:
        if not len(first):
            return EMPTY_CODES
        low, high, low2, high2 = int(first.min()), int(first.max()), int(second.min()), int(second.max())
        wide = high2 - low2 + 1
        if (high - low + 1) * wide <= _SMALL:
            key = (first.astype(np.int64) - low) * wide + (second.astype(np.int64) - low2)
            seen = np.zeros((high - low + 1) * wide, np.bool_)
            seen[key] = True
            keys = np.flatnonzero(seen)
            pairs = [(key_ // wide + low, key_ % wide + low2) for key_ in keys.tolist()]
            table: Codes = np.empty(len(seen), np.int32)
            table[keys] = [self._lane((value(a), other(b))) for a, b in pairs]
            numbers: Codes = table[key]
            return numbers
        if (high - low + 1) * wide < 1 << 62:
            key = (first.astype(np.int64) - low) * wide + (second.astype(np.int64) - low2)
            keys, where = np.unique(key, return_inverse=True)
            lanes = [self._lane((value(key_ // wide + low), other(key_ % wide + low2))) for key_ in keys.tolist()]
        else:
            unique, where = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
            lanes = [self._lane((value(a), other(b))) for a, b in unique.T.tolist()]
        found: Codes = np.asarray(lanes, np.int32)[where.reshape(-1)]
        return found

    def _lane(self, key: _Key) -> int:
        return self._lanes.setdefault(key, len(self._lanes))

    def renumbered(self, tables: Iterable[Rows]) -> list[tuple[Any, Any]]:
        """Lanes that rows are on, in an order that does not depend on how the trace was read."""
        keys = list(self._lanes)
        used = used_codes([rows.lane for rows in tables if len(rows)], len(keys))
        values = {lane: (_value(keys[lane][0]), _value(keys[lane][1])) for lane in used}
        order = sorted(used, key=lambda lane: (*map(_order, values[lane]), keys[lane]))
        new: Codes = np.full(len(keys), NO_CODE, np.int32)
        new[order] = np.arange(len(order), dtype=np.int32)
        for rows in tables:
            rows.lane = new[rows.lane]
        self._new = [number if number != NO_CODE else None for number in new.tolist()]
        return [values[lane] for lane in order]

    def number(self, lane: int) -> int | None:
        """The final number of a lane; None: no row is on it."""
        return self._new[lane]


def used_codes(columns: list[Codes], size: int) -> list[int]:
    seen = np.zeros(size + 1, np.bool_)
    for codes in columns:
        seen[codes] = True
    return np.flatnonzero(seen[:size]).tolist()


def _value(text: str) -> Any:
    """A pid or tid as given, from its JSON text."""
    return json.loads(text)


def _order(value: Any) -> tuple[int, float, str]:
    """An order of values of any type: numbers, then texts."""
    return (1, value, "") if isinstance(value, int | float) else (2, 0, value) if isinstance(value, str) else (0, 0, "")
