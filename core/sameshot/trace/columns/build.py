"""The verifier's blocks of text → chunks of columns, for whoever stores or analyses them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sameshot.trace.columns.census import Census
from sameshot.trace.columns.chunk import MISSING, NO_CODE, Chunk, ChunkSink, Codes, Dictionaries, Ints, Messages
from sameshot.trace.columns.parse import Block, Parser
from sameshot.trace.columns.schema import Clock, Facts
from sameshot.trace.columns.times import Times, times
from sameshot.trace.window import Window

if TYPE_CHECKING:
    from sameshot.trace.verify import VerifiedTrace

_ROWS = 1 << 15  # events of a chunk: enough that its cost per chunk does not count
_TEXT = 16 << 20  # bytes of JSON of a chunk, whose names may be as long
_WORDS = 1 << 17  # strings in the dictionaries, and …
_LETTERS = 16 << 20  # … their characters, before fresh ones are taken


class ColumnBuilder:
    """An `EventSink` of the verifier: hands what it reads to `sink`, some 32,000 events at a time.

    Memory is bounded whatever the trace names: from time to time `sink` meets fresh dictionaries.
    """

    def __init__(self, sink: ChunkSink) -> None:
        self.words = Dictionaries()
        self.window = Window()
        self.census = Census()
        self.oddities: Counter[str] = Counter()
        self.events = 0
        self._parser = Parser(self.words)
        self._letters = _Letters()
        self._sink = sink
        self._blocks: list[Block] = []
        self._rows = 0
        self._text = 0
        self._last = b""

    def parse(self, block: bytes) -> Block:
        """The columns of one block; raises msgspec.DecodeError."""
        self._last = block
        return self._parser.parse(block)

    def take(self, parsed: Block) -> None:
        """The block that was parsed last comes next."""
        self.census.block(self._last, len(parsed))
        self._blocks.append(parsed)
        self._rows += len(parsed)
        self._text += len(self._last)
        if self._rows >= _ROWS or self._text >= _TEXT:
            self._flush()

    def finish(self) -> None:
        """Hand out what is left."""
        if self._rows:
            self._flush()

    def facts(self, found: VerifiedTrace) -> Facts:
        """For the footer of stored columns, once the trace is verified."""
        census = self.census
        return Facts(
            raw_sha256=found.raw_sha256,
            raw_size=found.raw_size,
            base_time_ns=found.base_time_ns,
            window_start_ns=found.window_start_ns,
            window_end_ns=found.window_end_ns,
            recorded=found.events,
            clock=Clock(census.whole, census.fractions, census.texts),
            oddities=dict(self.oddities),
            args=dict(census.args.most_common()),
            args_events=census.args_events,
            host_name=found.host_name,
            job_name=found.job_name,
            rank=found.rank,
            world_size=found.world_size,
            warnings=found.warnings,
        )

    def _flush(self) -> None:
        blocks, words, first = self._blocks, self.words, self.events
        starts, durations = times([block.ts for block in blocks]), times([block.dur for block in blocks])
        chunk = _joined(blocks, first, starts.ns, durations.ns)
        self.events += self._rows
        self._blocks, self._rows, self._text = [], 0, 0
        self.census.times(starts)
        self._count("timestamp", starts)
        self._count("duration", durations)
        self.window.add_columns(chunk, words, starts.lossy, durations.endless)
        self._sink.chunk(chunk, words)
        if self._letters.of(words) > _LETTERS or sum(len(each) for each in _all(words)) > _WORDS:
            self.words = Dictionaries()
            self._parser = Parser(self.words)
            self._letters = _Letters()

    def _count(self, what: str, found: Times) -> None:
        if found.texts:
            self.oddities[f"{what} written as text"] += found.texts
        if found.lossy is not None:
            self.oddities[f"fractional {what} beyond 2^43 µs, no longer exact to 1 ns"] += int(found.lossy.sum())


class _Letters:
    """How many characters the dictionaries hold; each string is looked at once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._letters = 0

    def of(self, words: Dictionaries) -> int:
        for at, dictionary in enumerate(_all(words)):
            self._letters += sum(map(len, dictionary.values[self._seen.get(at, 0) :]))
            self._seen[at] = len(dictionary.values)
        return self._letters


def _all(words: Dictionaries) -> list[Any]:
    return [words.phase, words.category, words.name, words.thread, words.text]


def _joined(blocks: list[Block], first: int, ts: Ints, dur: Ints) -> Chunk:
    offsets = np.cumsum([0, *(len(block) for block in blocks)])
    rows = int(offsets[-1])

    def dense(field: str) -> Any:
        return np.concatenate([getattr(block, field) for block in blocks])

    def at(row: str) -> Ints:
        return np.concatenate([getattr(block, row) + start for block, start in zip(blocks, offsets, strict=False)])

    rich, other, label = at("rich_row"), at("other_row"), at("label_row")

    def sparse(field: str, where: Ints) -> Ints:
        column: Ints = np.full(rows, MISSING, np.int64)
        column[where] = dense(field)
        return column

    labels: Codes = np.full(rows, NO_CODE, np.int32)
    labels[label] = dense("label")
    return Chunk(
        first=first,
        ts=ts,
        dur=dur,
        phase=dense("phase"),
        category=dense("category"),
        name=dense("name"),
        pid=dense("pid"),
        tid=dense("tid"),
        correlation=dense("correlation"),
        external_id=dense("external_id"),
        stream=sparse("stream", rich),
        device=sparse("device", rich),
        bytes=sparse("bytes", rich),
        graph_id=sparse("graph_id", rich),
        label=labels,
        messages=_joined_messages(blocks, offsets),
        flow=sparse("flow", other),
    )


def _joined_messages(blocks: list[Block], offsets: Ints) -> Messages:
    found = [
        msgspec.structs.replace(block.messages, row=block.messages.row + start)
        for block, start in zip(blocks, offsets, strict=False)
        if len(block.messages.row)
    ] or [blocks[0].messages]
    fields = Messages.__struct_fields__
    return Messages(**{field: np.concatenate([getattr(each, field) for each in found]) for field in fields})
