"""Verify one trace file in one streaming pass, and store it compressed on the way.

A trace is verified when every byte of it was read and is UTF-8; when it is JSON to the last byte, of finite numbers and
bounded depth; when it is a Kineto trace with recorded events; and when it says itself that it is the expected worker's.
Identity is in the bytes: `PT_PROFILER_JOB_NAME` of a worker's environment appears as a top-level key of every trace it
writes (libkineto, seen with torch 2.13), and arming sets it to `sameshot/<registration uuid>`. Nothing is ever
repaired: a faulty file is left as it is, and the error says what is wrong and where.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from sameshot.errors import TraceError
from sameshot.model import BoundBy, Encoding, InvalidKind
from sameshot.trace.decode import decode_lean
from sameshot.trace.events import EventSink
from sameshot.trace.header import WANTED, Header
from sameshot.trace.scan import MAX_PIECE, DocumentScanner
from sameshot.trace.source import Packing, Source, Store
from sameshot.trace.window import Window

BLOCK_SIZE = 256 << 10
"""Bytes read at once: small enough for the processor's cache, large enough for the cost per block not to count."""


class Expectation(msgspec.Struct, frozen=True):
    """Whose trace this should be. None: nothing is expected.

    Bound by bytes, the trace must carry `sameshot/<registration>`; bound by path, it only must not contradict: neither
    another registration of ours nor another rank.
    """

    registration: str | None = None
    rank: int | None = None
    bound_by: BoundBy = BoundBy.BYTES


class VerifiedTrace(msgspec.Struct, frozen=True):
    """What a complete pass over a trace has shown.

    `raw_*` describe the decoded JSON bytes; `size`, `sha256` and `encoding` the stored ones: those written to
    `store_as`, else the source as it is (`encoding` None: zstd, which is read but never stored). `window_*_ns` are
    CLOCK_REALTIME of the host that recorded: `base_time_ns` (0 where the trace states none: older traces count from the
    epoch) + first start / last end of a recorded event.
    `events` counts recorded events (see window.py), `elements` all of `traceEvents`.
    """

    raw_size: int
    raw_sha256: str
    size: int
    sha256: str
    encoding: Encoding | None
    window_start_ns: int
    window_end_ns: int
    base_time_ns: int | None
    events: int
    host_name: str | None
    job_name: str | None
    rank: int | None
    world_size: int | None
    warnings: tuple[str, ...] = ()
    elements: int = 0


def verify(
    source: Path | BinaryIO,
    expect: Expectation = Expectation(),  # noqa: B008  frozen
    *,
    store_as: Path | None = None,
    encoding: Encoding = Encoding.GZIP,
    sink: EventSink | None = None,
    block_size: int = BLOCK_SIZE,
) -> VerifiedTrace:
    """Read all of `source`, plain, gzip or zstd, and prove that it is the expected worker's trace.

    With `store_as` the bytes are also written there as `encoding` (a gzip source is copied as it is); whatever goes
    wrong, that file is removed again. `sink` is handed every block of events while later bytes are still unproven.
    Memory is bounded whatever the size of the file: a few blocks, and at most one value of `scan.MAX_PIECE`.

    Raises `TraceError` (kind, byte offset, event index) for a faulty trace and OSError for I/O.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(source.open("rb", buffering=0)) if isinstance(source, Path) else source
        origin = Source(file, block_size)
        store = None
        if store_as is not None:
            packs = encoding is Encoding.GZIP and origin.packing is not Packing.GZIP
            store = Store(store_as, compress=packs)
        try:
            found = _Pass(origin, store, copies=encoding is origin.packing.encoding, sink=sink).run(expect)
            if store is not None:
                store.close()
                found = msgspec.structs.replace(found, size=store.size, sha256=store.sha256, encoding=encoding)
        except BaseException:
            if store is not None:
                store.discard()
            raise
        return found


class _Pass:
    """One pass over one source."""

    def __init__(self, origin: Source, store: Store | None, *, copies: bool, sink: EventSink | None) -> None:
        self._origin = origin
        self._store = store
        self._copies = copies  # the stored bytes are wanted just as they lie on disk
        self._sink = sink
        self._header = Header()
        if sink is not None:
            self._window = sink.window
            self._scanner = DocumentScanner(sink.parse, sink.take, self._header.take, WANTED)
        else:
            self._window = Window()
            self._scanner = DocumentScanner(decode_lean, self._window.add, self._header.take, WANTED)
        self._raw_size = 0
        self._raw_hash = hashlib.sha256()
        self._partial = b""  # the first bytes of a character whose rest is still to come

    def run(self, expect: Expectation) -> VerifiedTrace:
        # glibc gives each freed block back to the system until it has seen a larger one freed; getting memory anew for
        # every block of the file cost 1000 page faults, 1 to 2 ms of CPU, per MB (measured). This touches no memory.
        bytes(MAX_PIECE)
        blocks = self._origin.blocks()
        try:
            self._read(blocks)
            self._scanner.finish()
            if self._sink is not None:
                self._sink.finish()
            self._check(expect)
        except TraceError as error:
            # A damaged stream explains any nonsense it decodes to, so look for damage first.
            if error.kind != InvalidKind.COMPRESSION and self._origin.packing is not Packing.PLAIN:
                for _ in blocks:
                    pass
            raise
        return self._result()

    def _read(self, blocks: Iterator[tuple[bytes, bytes]]) -> None:
        scanner, store, copies = self._scanner, self._store, self._copies
        while True:
            try:
                packed, block = next(blocks)
            except StopIteration:
                break
            except TraceError as error:
                raise self._interrupted(error) from None
            self._raw_size += len(block)
            self._raw_hash.update(block)
            if store is not None:
                store.write(packed if copies else block)
            scanner.feed(block if block.isascii() and not self._partial else self._whole_characters(block))
        if self._partial:
            raise self._interrupted(
                TraceError(InvalidKind.TRUNCATED, "the file ends inside a character", byte_offset=self._raw_size)
            )

    def _whole_characters(self, block: bytes) -> bytes:
        """Check UTF-8 and hold back a character that is not complete yet, so that the scanner sees only proven text."""
        data = self._partial + block
        try:
            _, length = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError as error:
            offset = self._raw_size - len(data) + error.start
            self._scanner.feed(data[: error.start])
            raise self._interrupted(
                TraceError(InvalidKind.UTF8, f"not UTF-8: {error.reason}", byte_offset=offset)
            ) from None
        self._partial = data[length:]
        return data[:length]

    def _interrupted(self, error: TraceError) -> TraceError:
        """`error` ends the readable bytes: an earlier fault in them comes first, else say which event was hit."""
        try:
            self._scanner.finish()
        except TraceError as earlier:
            if error.kind == InvalidKind.COMPRESSION or earlier.kind in (InvalidKind.TRUNCATED, InvalidKind.EMPTY):
                return TraceError(
                    error.kind, error.detail, byte_offset=error.byte_offset, event_index=earlier.event_index
                )
            return earlier
        return error

    def _check(self, expect: Expectation) -> None:
        if not self._scanner.has_events:
            raise TraceError(InvalidKind.NO_EVENTS_KEY, "JSON, but without traceEvents")
        if expect.registration is not None:
            self._header.check_registration(expect.registration, expect.bound_by)
        if expect.rank is not None:
            self._header.check_rank(expect.rank)
        if not self._window.recorded:
            raise TraceError(InvalidKind.EMPTY, "a valid trace without a single recorded event")
        if not self._window.is_timed:
            raise TraceError(InvalidKind.NOT_A_TRACE, "no recorded event states a usable time")

    def _result(self) -> VerifiedTrace:
        header, window, origin = self._header, self._window, self._origin
        raw_sha256 = self._raw_hash.hexdigest()
        base = header.base_time_ns or 0
        return VerifiedTrace(
            raw_size=self._raw_size,
            raw_sha256=raw_sha256,
            size=origin.size,
            sha256=raw_sha256 if origin.packing is Packing.PLAIN else origin.sha256,
            encoding=origin.packing.encoding,
            window_start_ns=base + window.start_ns,
            window_end_ns=base + window.end_ns,
            base_time_ns=header.base_time_ns,
            events=window.recorded,
            host_name=header.host_name,
            job_name=header.job_name,
            rank=header.rank,
            world_size=header.world_size,
            warnings=(*header.warnings, *self._oddities()),
            elements=self._scanner.events,
        )

    def _oddities(self) -> Iterator[str]:
        window = self._window
        if window.untimed:
            yield f"{window.untimed} events without a usable time"
        if window.endless:
            yield f"{window.endless} events without an end, counted as instants"
        if window.negative_durations:
            yield f"{window.negative_durations} events of negative duration, counted as 0"
        if window.is_lossy:
            yield "times are fractions of µs too large for a float to carry single ns"
