"""One trace document, block by block: proven well-formed to the last byte, with bounded memory.

Inside `traceEvents` a cut is guessed: the last `},{` (white space allowed) of what is in hand. The guess needs no luck,
because it is proven: the text since the last proven cut, put in brackets, must decode as one JSON array. A parser that
has read this prefix and then finishes on a single `]` stood between two elements of the array and nowhere else, so a
`},{` inside a string or a nested list never passes. Where the proof fails, `outline.py` finds the exact end, and where
that does not decode either, `strict.py` finds the first wrong byte. What surrounds the events is small and read
strictly, member by member.

Verdicts do not depend on where blocks begin: the same bytes give the same kind, offset and event, whatever the sizes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sized
from typing import Any

import msgspec

from sameshot.errors import TraceError
from sameshot.model import InvalidKind
from sameshot.trace import strict
from sameshot.trace.bounds import has_no_huge_number, is_shallow
from sameshot.trace.outline import first_good_end
from sameshot.trace.strict import EventFault, Fault, NeedMore

MAX_PIECE = 8 << 20
"""Bytes of the largest single event, or single value beside the events, that is read; memory is bounded by it."""

EVENTS_KEY = "traceEvents"

_BOM = b"\xef\xbb\xbf"
_CUT = re.compile(rb"\}[ \t\n\r]*,[ \t\n\r]*(?=\{)")
_AFTER_EVENT = re.compile(rb"[ \t\n\r]*([,\]])")
_GUESSES = 32  # how many `}` from the end are tried before the exact outline
_SOME = 1 << 20


class _State(enum.Enum):
    START = enum.auto()
    MEMBER = enum.auto()  # a member of the top-level object is due
    AFTER_MEMBER = enum.auto()
    EVENT = enum.auto()  # an element of traceEvents is due
    AFTER_EVENTS = enum.auto()
    END = enum.auto()


def _last_border(text: bytes) -> re.Match[bytes] | None:
    """The last place that looks like the border of two events."""
    end = len(text)
    for _ in range(_GUESSES):
        end = text.rfind(b"}", 0, end)
        if end < 0:
            return None
        if cut := _CUT.match(text, end):
            return cut
    return None


class DocumentScanner:
    """Push bytes with `feed`, then call `finish`; both raise `TraceError` at the first wrong byte."""

    def __init__(
        self,
        decode: Callable[[bytes], Sized],
        on_events: Callable[[Any], None],
        on_member: Callable[[str, bytes, int], None],
        wanted: frozenset[str],
    ) -> None:
        self._decode = decode
        self._on_events = on_events
        self._on_member = on_member
        self._wanted_keys = wanted
        self._buf = b""
        self._base = 0  # offset of the buffer's first byte in the document
        self._state = _State.START
        self._eof = False
        self._first = True  # nothing stands yet in the container that is being read
        self._enough = 0  # don't look again before the buffer has grown to this
        self._done = 0  # events that end in the buffer, where it was walked
        self._is_list = False  # the document is the bare array form
        self.events = 0  # elements of traceEvents so far
        self.has_events = False  # the key traceEvents was met, or the bare array

    def feed(self, block: bytes) -> None:
        """Take in the next bytes of the document."""
        if self._state is _State.EVENT and len(self._buf) < _SOME:
            # The common case, kept short: the rest of the last block and most of this one are whole events.
            cut = _last_border(block)
            if cut is not None and self._take(self._buf, memoryview(block)[: cut.start() + 1]):
                self._base += len(self._buf) + cut.end()
                self._buf = block[cut.end() :]
                self._enough = 0
                return
        self._buf = self._buf + block if self._buf else block
        if len(self._buf) >= self._enough:
            self._advance()

    def finish(self) -> None:
        """There are no more bytes."""
        self._eof = True
        self._advance()
        if self._state is _State.END:
            return
        total = self._base + len(self._buf)
        if self._state is _State.START and not self._buf:
            raise TraceError(InvalidKind.EMPTY, "the file holds no JSON text", byte_offset=total)
        raise TraceError(
            InvalidKind.TRUNCATED,
            "the file ends in the middle of the trace",
            byte_offset=total,
            event_index=self._index(),
        )

    def _advance(self) -> None:
        steps = {
            _State.START: self._start,
            _State.MEMBER: self._member,
            _State.AFTER_MEMBER: self._after_member,
            _State.EVENT: self._event,
            _State.AFTER_EVENTS: self._after_events,
            _State.END: self._end,
        }
        self._enough = 0
        try:
            while steps[self._state]():
                pass
        except NeedMore:
            pass
        except Fault as fault:
            raise self._error(fault) from None
        size = len(self._buf)
        if self._eof or not size:
            return
        if size > MAX_PIECE:
            raise TraceError(
                InvalidKind.LIMIT,
                f"{self._piece()} is larger than {MAX_PIECE >> 20} MiB, which is as much as is read at once",
                byte_offset=self._base,
                event_index=self._index(),
            )
        self._enough = min(2 * size, MAX_PIECE + 1) if size >= _SOME else size + 1

    def _piece(self) -> str:
        """What the buffer holds and is not yet all of."""
        if self._state is not _State.MEMBER:
            return "a single value"
        try:
            key = msgspec.json.decode(self._buf[: strict.skip_string(self._buf, 0)])
        except (NeedMore, Fault, msgspec.MsgspecError):
            return "a single value"
        where = "" if self.has_events else f" (no {EVENTS_KEY} so far: is it a trace of torch.profiler?)"
        return f"the value of {key[:100]!r}{where}"

    def _error(self, fault: Fault, index: int | None = None) -> TraceError:
        return TraceError(fault.kind, fault.detail, byte_offset=self._base + fault.pos, event_index=index)

    def _index(self) -> int | None:
        return self.events + self._done if self._state is _State.EVENT else None

    def _drop(self, pos: int) -> None:
        self._buf = self._buf[pos:]
        self._base += pos

    def _due(self) -> int:
        """The next byte that is not white space, which is dropped."""
        pos = strict.skip_space(self._buf, 0)
        if pos:
            self._drop(pos)
        if not self._buf:
            raise NeedMore
        return self._buf[0]

    def _start(self) -> bool:
        if self._base == 0 and not self._eof and len(self._buf) < len(_BOM):
            raise NeedMore
        if self._base == 0 and self._buf.startswith(_BOM):
            raise Fault(InvalidKind.BOM, 0, "the file starts with a byte order mark")
        byte = self._due()
        if byte == 0x7B:
            self._state = _State.MEMBER
        elif byte == 0x5B:
            self._state, self._is_list, self.has_events = _State.EVENT, True, True
        else:
            try:
                strict.skip_scalar(self._buf, 0)
            except NeedMore:
                # The file may end in a number, and nothing but its end says that the number is whole.
                if not (self._eof and strict.is_scalar(self._buf + b" ")):
                    raise
            raise Fault(InvalidKind.NOT_A_TRACE, 0, "neither an object nor an array")
        self._drop(1)
        return True

    def _member(self) -> bool:
        byte = self._due()
        if self._first and byte == 0x7D:
            self._drop(1)
            self._state = _State.END
            return True
        start = strict.skip_key(self._buf, 0)
        if start >= len(self._buf):
            raise NeedMore
        key: str = msgspec.json.decode(self._buf[: strict.skip_string(self._buf, 0)])
        if key == EVENTS_KEY:
            return self._enter_events(start)
        end = strict.skip_value(self._buf, start, 1)
        if end >= len(self._buf):
            raise NeedMore  # a number may go on
        if key in self._wanted_keys:
            self._on_member(key, self._buf[start:end], self._base + start)
        self._drop(end)
        self._state = _State.AFTER_MEMBER
        return True

    def _enter_events(self, start: int) -> bool:
        if self.has_events:
            raise Fault(InvalidKind.DUPLICATE_EVENTS, 0, f"a second {EVENTS_KEY}")
        if self._buf[start] != 0x5B:
            strict.skip_value(self._buf, start, 1)
            raise Fault(InvalidKind.NOT_A_TRACE, start, f"{EVENTS_KEY} is not an array")
        self._drop(start + 1)
        self._state, self._first, self.has_events = _State.EVENT, True, True
        return True

    def _after_member(self) -> bool:
        byte = self._due()
        if byte == 0x7D:
            self._state = _State.END
        elif byte == 0x2C:
            self._state, self._first = _State.MEMBER, False
        else:
            raise Fault(InvalidKind.JSON, 0, "expected ',' or '}' after a top-level value")
        self._drop(1)
        return True

    def _after_events(self) -> bool:
        self._state = _State.END if self._is_list else _State.AFTER_MEMBER
        return True

    def _end(self) -> bool:
        self._due()
        raise Fault(InvalidKind.JSON, 0, "bytes after the end of the JSON text")

    # -- elements of traceEvents ------------------------------------------------------------------------------------

    def _event(self) -> bool:
        if self._first and self._due() == 0x5D:
            return self._close(0)
        buf = self._buf
        view = memoryview(buf)
        if len(buf) <= 2 * _SOME and (cut := _last_border(buf)) is not None and self._take(view[: cut.start() + 1]):
            self._drop(cut.end())
            return True
        end, closed = first_good_end(buf, _SOME)
        if closed:
            if buf[end] == 0x5D and self._take(view[:end]):
                return self._close(end)
            raise self._refused()
        if end:
            after = _AFTER_EVENT.match(buf, end)
            if after is not None:
                if self._take(view[:end]):
                    if after[1] == b"]":
                        return self._close(after.end() - 1)
                    self._drop(after.end())
                    return True
                raise self._refused()
            if strict.skip_space(buf, end) < len(buf):
                raise self._refused()  # neither a comma nor the end of the array follows
        if self._eof or len(buf) > MAX_PIECE:
            self._done = self._locate(buf)
        raise NeedMore

    def _refused(self) -> Exception:
        """Why the elements in hand are no sequence of events."""
        self._locate(self._buf)
        return Fault(InvalidKind.JSON, 0, "the decoder refused the events from here on")

    def _take(self, *pieces: bytes | memoryview) -> bool:
        """Decode and hand out the elements in these pieces; False: they are no sequence of whole elements.

        Raises `TraceError` where elements are whole, but not within bounds.
        """
        block = b"".join((b"[", *pieces, b"]"))
        try:
            events = self._decode(block)
        except (msgspec.DecodeError, RecursionError):
            return False
        if not events and not self._first:
            return False  # a comma with nothing after it
        if not (is_shallow(block) and has_no_huge_number(block)):
            self._locate(block[1:])
        self.events += len(events)
        self._first = False
        self._on_events(events)
        return True

    def _close(self, end: int) -> bool:
        self._drop(end + 1)
        self._state = _State.AFTER_EVENTS
        return True

    def _locate(self, text: bytes) -> int:
        """Raise the first fault in `text`, a prefix of the buffer; without one, say how many events end in it."""
        try:
            return strict.walk_events(text, 1 if self._is_list else 2, first=self._first)[0]
        except EventFault as found:
            raise self._error(found.fault, self.events + found.index) from None
