"""A slow, strict JSON reader that says *where* bytes stop being a JSON value.

The fast path (`scan.py`) lets a compiled decoder prove whole blocks and asks this module only when a proof failed, when
a cheap check was inconclusive, and for the few kilobytes around `traceEvents`. It is therefore the authority on every
verdict: RFC 8259 grammar, plus what a trace must keep to be readable everywhere: finite numbers (within float64), at
most 64 nested containers, no unpaired surrogate escapes.

Memory is constant beside the bytes themselves: no values are built and strings are matched run by run (one regular
expression for a whole string would keep a backtracking stack per escape).
"""

from __future__ import annotations

import math
import re

from sameshot.model import InvalidKind

MAX_DEPTH = 64

_SPACE = re.compile(rb"[ \t\n\r]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# The longest prefix that more bytes could still complete to a number.
_NUMBER_PREFIX = re.compile(
    rb"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE](?:[+-]?[0-9]*)?)?)?|[eE](?:[+-]?[0-9]*)?)?)?",
)
_NON_FINITE = re.compile(rb"[+-]?(?:nan|inf(?:inity)?)(?![A-Za-z0-9_])", re.IGNORECASE)
_WORD = re.compile(rb"[+-]?[A-Za-z]{0,9}")
_LITERALS = (b"true", b"false", b"null")
_NON_FINITE_WORDS = (b"nan", b"infinity", b"inf")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_ESCAPES = frozenset(b'"\\/bfnrt')

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_LIST, _CLOSE_LIST, _OPEN_DICT, _CLOSE_DICT = b"[]{}"
_NUMBER_START = frozenset(b"-0123456789")


class Fault(Exception):
    """These bytes are wrong, `pos` bytes into the buffer; no continuation can mend them."""

    def __init__(self, kind: InvalidKind, pos: int, detail: str) -> None:
        self.kind = kind
        self.pos = pos
        self.detail = detail
        super().__init__(f"{kind} at {pos}: {detail}")


class NeedMore(Exception):
    """The buffer ends inside something that is right so far."""


def skip_space(buf: bytes, pos: int) -> int:
    """The position of the first byte at or after `pos` that is not JSON white space; may be len(buf)."""
    match = _SPACE.match(buf, pos)
    assert match is not None
    return match.end()


def skip_string(buf: bytes, pos: int) -> int:
    """The position behind the string whose opening quote is at `pos`."""
    end = len(buf)
    pos += 1
    while True:
        match = _PLAIN.match(buf, pos)
        assert match is not None
        pos = match.end()
        if pos >= end:
            raise NeedMore
        byte = buf[pos]
        if byte == _QUOTE:
            return pos + 1
        if byte != _BACKSLASH:
            raise Fault(InvalidKind.JSON, pos, f"raw control character 0x{byte:02x} in a string")
        if pos + 1 >= end:
            raise NeedMore
        byte = buf[pos + 1]
        if byte in _ESCAPES:
            pos += 2
        elif byte == 0x75:
            pos = _skip_unicode(buf, pos)
        else:
            raise Fault(InvalidKind.JSON, pos + 1, "unknown escape in a string")


def _skip_unicode(buf: bytes, pos: int) -> int:
    unit = _code_unit(buf, pos)
    if 0xDC00 <= unit <= 0xDFFF:
        raise Fault(InvalidKind.JSON, pos, "unpaired surrogate escape in a string")
    if not 0xD800 <= unit <= 0xDBFF:
        return pos + 6
    following = buf[pos + 6 : pos + 8]
    if b"\\u".startswith(following) and len(following) < 2:
        raise NeedMore
    if following != b"\\u" or not 0xDC00 <= _code_unit(buf, pos + 6) <= 0xDFFF:
        raise Fault(InvalidKind.JSON, pos, "unpaired surrogate escape in a string")
    return pos + 12


def _code_unit(buf: bytes, pos: int) -> int:
    digits = buf[pos + 2 : pos + 6]
    for i, byte in enumerate(digits):
        if byte not in _HEX:
            raise Fault(InvalidKind.JSON, pos + 2 + i, "broken \\u escape in a string")
    if len(digits) < 4:
        raise NeedMore
    return int(digits, 16)


def _skip_number(buf: bytes, pos: int) -> int:
    prefix = _NUMBER_PREFIX.match(buf, pos)
    assert prefix is not None
    if prefix.end() == len(buf):
        raise NeedMore
    number = _NUMBER.match(buf, pos)
    if number is None or number.end() != prefix.end():
        raise _not_a_value(buf, pos, prefix.end())
    if _overflows(number):
        shown = number[0] if len(number[0]) <= 40 else number[0][:37] + b"..."
        raise Fault(InvalidKind.NON_FINITE, pos, f"the number {shown.decode()} is beyond float64")
    return number.end()


def _overflows(number: re.Match[bytes]) -> bool:
    if number[2] is None and number.end() - number.start() < 300:
        return False
    return math.isinf(float(number[0]))


def _not_a_value(buf: bytes, pos: int, where: int) -> Exception:
    """What is wrong with the word at `pos`, or NeedMore when the buffer ends before that can be told."""
    if word := _NON_FINITE.match(buf, pos):
        if word.end() == len(buf):
            return NeedMore()
        return Fault(InvalidKind.NON_FINITE, pos, f"{word[0].decode()} is not a JSON number")
    match = _WORD.match(buf, pos)
    assert match is not None
    word_bytes = match[0]
    if match.end() == len(buf):
        signless = word_bytes.lstrip(b"+-").lower()
        if any(literal.startswith(word_bytes) for literal in _LITERALS):
            return NeedMore()
        if any(literal.startswith(signless) for literal in _NON_FINITE_WORDS):
            return NeedMore()
    return Fault(InvalidKind.JSON, where, "no JSON value begins here" if where == pos else "broken number")


def skip_scalar(buf: bytes, pos: int) -> int:
    """The position behind the string, number or literal at `pos`."""
    byte = buf[pos]
    if byte == _QUOTE:
        return skip_string(buf, pos)
    if byte in _NUMBER_START:
        return _skip_number(buf, pos)
    for literal in _LITERALS:
        if buf.startswith(literal, pos):
            return pos + len(literal)
    raise _not_a_value(buf, pos, pos)


def is_scalar(text: bytes) -> bool:
    """Does this text start with a whole string, number or literal?"""
    try:
        skip_scalar(text, 0)
    except (Fault, NeedMore):
        return False
    return True


def skip_value(buf: bytes, pos: int, depth: int = 0) -> int:
    """The position behind the JSON value that starts at `pos` (not white space), `depth` containers deep.

    Raises `Fault` at the first wrong byte and `NeedMore` when the buffer ends before the value does. A number at the
    very end of the buffer needs more: it might go on.
    """
    closers: list[int] = []  # the bytes that close the open containers, innermost last
    end = len(buf)
    while True:
        # A value is due at pos.
        if pos >= end:
            raise NeedMore
        byte = buf[pos]
        if byte in (_OPEN_DICT, _OPEN_LIST):
            if depth + len(closers) >= MAX_DEPTH:
                raise Fault(InvalidKind.DEPTH, pos, f"nested deeper than {MAX_DEPTH}")
            closer = _CLOSE_DICT if byte == _OPEN_DICT else _CLOSE_LIST
            pos = skip_space(buf, pos + 1)
            if pos >= end:
                raise NeedMore
            if buf[pos] != closer:
                closers.append(closer)
                if closer == _CLOSE_DICT:
                    pos = skip_key(buf, pos)
                continue
            pos += 1
        else:
            pos = skip_scalar(buf, pos)
        # A value has ended at pos.
        while True:
            if not closers:
                return pos
            pos = skip_space(buf, pos)
            if pos >= end:
                raise NeedMore
            byte = buf[pos]
            if byte == _COMMA:
                pos = skip_space(buf, pos + 1)
                if closers[-1] == _CLOSE_DICT:
                    pos = skip_key(buf, pos)
                break
            if byte != closers[-1]:
                raise Fault(InvalidKind.JSON, pos, f"expected ',' or '{chr(closers[-1])}'")
            closers.pop()
            pos += 1


def skip_key(buf: bytes, pos: int) -> int:
    """The position of the value of the member whose key is due at `pos`."""
    if pos >= len(buf):
        raise NeedMore
    if buf[pos] != _QUOTE:
        raise Fault(InvalidKind.JSON, pos, "expected a key in double quotes")
    pos = skip_space(buf, skip_string(buf, pos))
    if pos >= len(buf):
        raise NeedMore
    if buf[pos] != _COLON:
        raise Fault(InvalidKind.JSON, pos, "expected ':' after a key")
    return skip_space(buf, pos + 1)


class EventFault(Exception):
    """The first fault among elements of `traceEvents`: element `index` (counted from the buffer's first)."""

    def __init__(self, fault: Fault, index: int) -> None:
        self.fault = fault
        self.index = index
        super().__init__(str(fault), index)


def walk_events(buf: bytes, depth: int, *, first: bool) -> tuple[int, int, bool]:
    """Walk the elements of an array of objects, one of which is due at the start of `buf`.

    `depth` counts the containers around an element; `first`: none came before, so the array may end here. Returns
    (elements that end in the buffer, position, closed): where the array is closed the position is behind its `]`, else
    it is behind the last complete element (0: none). Raises `EventFault`.
    """
    done = 0
    complete = 0
    pos = skip_space(buf, 0)
    try:
        if first and buf[pos : pos + 1] == b"]":
            return 0, pos + 1, True
        while True:
            if pos >= len(buf):
                raise NeedMore
            start = pos
            if buf[start] != _OPEN_DICT:
                # Say first whether it is JSON at all: `nan` is a broken number, 5 is a value that is no event.
                if buf[start] != _OPEN_LIST:
                    skip_scalar(buf, start)
                raise Fault(InvalidKind.NOT_A_TRACE, start, "an element of traceEvents is not an object")
            pos = skip_value(buf, start, depth)
            done, complete = done + 1, pos
            pos = skip_space(buf, pos)
            if pos >= len(buf):
                raise NeedMore
            if buf[pos] == _CLOSE_LIST:
                return done, pos + 1, True
            if buf[pos] != _COMMA:
                raise Fault(InvalidKind.JSON, pos, "expected ',' or ']' after an event")
            pos = skip_space(buf, pos + 1)
    except NeedMore:
        return done, complete, False
    except Fault as fault:
        raise EventFault(fault, done) from None
