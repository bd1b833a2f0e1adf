"""Where the elements of an array end, from its quotes and brackets alone.

Used when the quick guess at a cut was wrong. The outline is exact for well-formed text; for anything else it may be
nonsense, and the decoder that reads what was cut will say so.
"""

from __future__ import annotations

import re

import numpy as np

_SLICE = 1 << 18  # bytes looked at in one go: the index arrays are eight times as large

_MANY = 1 << 12  # escapes: fewer are replaced faster, more of them in less memory
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_INTERESTING = np.zeros(256, dtype=np.bool_)
_INTERESTING[list(b'"[]{}')] = True


def blank_escapes(text: bytes) -> bytes:
    """The same text, escaped quotes and backslashes blanked out: every quote left opens or ends a string."""
    if text.count(b"\\") > _MANY:
        return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return _ESCAPE.sub(b"__", text)


def first_good_end(text: bytes, enough: int) -> tuple[int, bool]:
    """(end, closed) for text that starts where an element of an array is due.

    `closed`: the array ends here, and `end` is the position of the bracket (of whichever kind) that closes it.
    Otherwise `end` is behind the last element that ends within the first `enough` bytes, or behind the first one after
    that; 0: none ends in this text.
    """
    if b"\\" in text:
        text = blank_escapes(text)
    data = np.frombuffer(text, np.uint8)
    odd_quotes, depth, end = 0, 0, 0
    for start in range(0, len(text), _SLICE):
        part = data[start : start + _SLICE]
        where = np.flatnonzero(_INTERESTING[part])
        kind = part[where]
        quote = kind == 0x22
        inside = (np.cumsum(quote) + odd_quotes) & 1
        if inside.size:
            odd_quotes = int(inside[-1])
        outside = ~quote & (inside == 0)
        where, kind = where[outside], kind[outside]
        step = np.where((kind & 0xDF) == 0x5B, 1, -1)  # [ and { differ in one bit, so do ] and }
        depths = np.cumsum(step) + depth
        if not depths.size:
            continue
        below = np.flatnonzero(depths < 0)
        closed = bool(below.size)
        if closed:
            if end and start + int(where[below[0]]) > enough:
                return end, False
            return start + int(where[below[0]]), True
        ends = where[(depths == 0) & (step < 0)] + start + 1
        within = ends[ends <= enough]
        if within.size:
            end = int(within[-1])
        if ends.size > within.size:
            return end or int(ends[0]), False
        depth = int(depths[-1])
        if end and start + _SLICE >= enough:
            break
    return end, False
