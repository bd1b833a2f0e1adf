"""Cheap, sound checks over a block of proven JSON for what the typed decoder lets pass: depth and huge numbers.

"Sound" means: True is a proof, False only says that the exact check (`strict.py`) must decide. The decoder skips
fields that nobody asked for, and there it accepts `1e400` and any nesting that fits its stack (measured, msgspec 0.23).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from sameshot.trace.outline import blank_escapes
from sameshot.trace.strict import MAX_DEPTH

_STRUCTURE = b'"[]{}'
_REST = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_PEELS = 8  # one pass removes at most two levels
_OVERLAP = 8  # an exponent at a slice's border is whole in one of its two slices
_SLICE = 1 << 19  # bounds the index arrays, which are eight times as large
_EXPONENT = re.compile(rb"[eE][+]?[0-9]+(?=[ \t\n\r,\]}])")
_MANTISSA = re.compile(rb"[-+.0-9]+\Z")
_BEFORE_NUMBER = frozenset(b" \t\n\r,:[")
_EIGHT_TRUE = 0x0101010101010101

PROVEN_DEPTH = MAX_DEPTH - 1
"""Of a block's own brackets: its outermost are the array of events, around which the document may be an object."""


def is_shallow(block: bytes) -> bool:
    """Proof that no bracket of this well-formed JSON text is nested deeper than `PROVEN_DEPTH`."""
    brackets = left = _brackets(block)
    for _ in range(_PEELS):  # quicker than counting, for what nearly all blocks hold
        left = left.replace(b"{}", b"").replace(b"[]", b"")
        if not left:
            return True
    return _depth(brackets) <= PROVEN_DEPTH


def _depth(brackets: bytes) -> int:
    marks = np.frombuffer(brackets, np.uint8)
    depth = deepest = 0
    for start in range(0, marks.size, _SLICE):
        part = marks[start : start + _SLICE]
        steps = np.where((part == 0x5B) | (part == 0x7B), 1, -1)
        levels = np.cumsum(steps)
        deepest = max(deepest, depth + int(levels.max()))
        depth += int(levels[-1])
    return deepest


def _brackets(block: bytes) -> bytes:
    """The brackets of a JSON text that stand outside its strings: an even number of quotes goes before them."""
    if b"\\" in block:
        block = blank_escapes(block)
    marks = np.frombuffer(block.translate(None, _REST), np.uint8)
    found = []
    for start in range(0, marks.size, _SLICE):
        part = marks[start : start + _SLICE]
        where = np.flatnonzero(part != 0x22)
        brackets = part[where]
        before = where - np.arange(where.size)  # quotes of this part
        if start:
            before += int(np.count_nonzero(marks[:start] == 0x22))
        found.append(brackets[(before & 1) == 0].tobytes())
    return b"".join(found)


def has_no_huge_number(block: bytes) -> bool:
    """Proof that no number in this block is beyond float64.

    A number can only overflow with an exponent of three digits or with an integer part of more than 200 digits
    (10^209 × 10^99 is below the limit), and such a run contains 64 digits aligned to 64. The block must not begin or
    end with a number.
    """
    data = np.frombuffer(block, np.uint8)
    return all(
        _has_no_huge_number(block, data[start : start + _SLICE + _OVERLAP], start)
        for start in range(0, data.size, _SLICE)
    )


def _has_no_huge_number(block: bytes, part: npt.NDArray[np.uint8], start: int) -> bool:
    digit = (part - 48) < 10
    if digit.size >= 64:
        eights = digit[: digit.size // 64 * 64].view(np.uint64) == _EIGHT_TRUE
        if (eights.view(np.uint64) == _EIGHT_TRUE).any():
            return False
    exponent = (part | 0x20) == 0x65
    marks = exponent[1:-1] & digit[:-2]
    if not marks.any():
        return True
    mantissa_end: npt.NDArray[np.intp] = np.flatnonzero(marks)
    power = mantissa_end + 2
    power += part[power] == 0x2B
    last = digit.size - 1
    # Where the part ends too early for an exponent, the next part has it whole.
    large = digit[np.minimum(power, last)] & digit[np.minimum(power + 1, last)] & digit[np.minimum(power + 2, last)]
    return not any(_may_be_number(block, start + at) for at in mantissa_end[large].tolist())


def _may_be_number(block: bytes, at: int) -> bool:
    """Could the exponent behind `at` belong to a number? Names hold addresses like 0x7f3e4567 by the thousand."""
    start = max(0, at - 64)
    mantissa = _MANTISSA.search(block, start, at + 1)
    if mantissa is None or (mantissa.start() > start and block[mantissa.start() - 1] not in _BEFORE_NUMBER):
        return False
    return _EXPONENT.match(block, at + 1) is not None
