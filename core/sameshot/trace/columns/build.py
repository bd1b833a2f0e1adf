"""Decoded events → columns: the sink that the verifier feeds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np

from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, ChunkSink, Dictionaries, Dictionary, Messages
from sameshot.trace.events import Event, EventArgs
from sameshot.trace.window import to_ns

_NO_ARGS = EventArgs()
_EXACT_US = 2.0**43  # beyond, a float64 of microseconds no longer resolves nanoseconds


class ColumnBuilder:
    """An `EventSink` that hands each block on as a `Chunk`."""

    def __init__(self, sink: ChunkSink) -> None:
        self.words = Dictionaries()
        self.oddities: Counter[str] = Counter()
        self._sink = sink
        self._first = 0

    def block(self, events: list[Event]) -> None:
        words = self.words
        args = [event.args or _NO_ARGS for event in events]
        chunk = Chunk(
            first=self._first,
            ts=_ints([self._ns(event.ts, "timestamp") for event in events]),
            dur=_ints([self._ns(event.dur, "duration") for event in events]),
            phase=_codes(words.phase, [event.ph for event in events]),
            category=_codes(words.category, [event.cat or "" for event in events]),
            name=_codes(words.name, [_text(event.name) for event in events]),
            pid=_codes(words.thread, [_json(event.pid) for event in events]),
            tid=_codes(words.thread, [_json(event.tid) for event in events]),
            correlation=_ints([_int(each.correlation) for each in args]),
            external_id=_ints([_int(each.external_id) for each in args]),
            stream=_ints([_int(each.stream) for each in args]),
            device=_ints([_int(each.device) for each in args]),
            bytes=_ints([_int(each.bytes) for each in args]),
            graph_id=_ints([MISSING for _ in args]),
            label=_codes(words.text, [each.name if isinstance(each.name, str) else None for each in args]),
            messages=self._messages(args),
        )
        self._first += len(events)
        self._sink.chunk(chunk, words)

    def _ns(self, value: Any, what: str) -> int:
        ns = to_ns(value)
        if ns is None:
            return MISSING
        if value.__class__ is float and not -_EXACT_US < value < _EXACT_US:
            self.oddities[f"fractional {what} beyond 2^43 µs, no longer exact to 1 ns"] += 1
        elif value.__class__ is str:
            self.oddities[f"{what} written as text"] += 1
        return ns

    def _messages(self, args: list[EventArgs]) -> Messages:
        found = [
            (row, each)
            for row, each in enumerate(args)
            if each.collective_name is not None or each.process_group_name is not None or each.in_msg_nelems is not None
        ]
        text = self.words.text
        return Messages(
            row=_ints([row for row, _ in found]),
            collective=_codes(text, [_text(each.collective_name) for _, each in found]),
            dtype=_codes(text, [_text(each.dtype) for _, each in found]),
            group_name=_codes(text, [_text(each.process_group_name) for _, each in found]),
            group_ranks=_codes(text, [_text(each.process_group_ranks) for _, each in found]),
            group_description=_codes(text, [_text(each.process_group_description) for _, each in found]),
            in_nelems=_ints([_int(each.in_msg_nelems) for _, each in found]),
            out_nelems=_ints([_int(each.out_msg_nelems) for _, each in found]),
            group_size=_ints([_int(each.group_size) for _, each in found]),
            seq=_ints([_int(each.collective_sequence) for _, each in found]),
        )


def _ints(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def _codes(dictionary: Dictionary, values: list[str | None]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array([NO_CODE if value is None else dictionary.code(value) for value in values], dtype=np.int32)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _int(value: Any) -> int:
    """An integer, also where it is written as text or as an integral float; else MISSING."""
    if value.__class__ is int:
        return value if -(1 << 63) < value < 1 << 63 else MISSING
    if value.__class__ is str and value.lstrip("-").isascii() and value.lstrip("-").isdigit():
        return _int(int(value)) if len(value) < 20 else MISSING
    if value.__class__ is float and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    return MISSING
