"""Cheap, sound checks over a block of proven JSON for what the typed decoder lets pass: depth and huge numbers.

"Sound" means: True is a proof, False only says that the exact check (`strict.py`) must decide. The decoder skips
fields that nobody asked for, and there it accepts `1e400` and any nesting that fits its stack (measured, msgspec 0.23).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

_STRUCTURE = b'"[]{}'
_REST = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_PEELS = 8  # one pass removes at most two levels
_MANY = 1 << 16  # quotes around brackets: more would only cost memory here
_EXPONENT = re.compile(rb"[eE]\+?0*([0-9]{0,3})")
_MANTISSA = re.compile(rb"[-+.0-9]+\Z")
_TO_END = re.compile(rb"[0-9]*(?=[\s,\]}])")
_BEFORE_NUMBER = frozenset(b" \t\n\r,:[")
_EIGHT_TRUE = 0x0101010101010101

PROVEN_DEPTH = 2 * _PEELS


def is_shallow(block: bytes) -> bool:
    """Proof that no bracket of this well-formed JSON text is nested deeper than `PROVEN_DEPTH`.

    Keeps only quotes and brackets. A pair of neighbouring quotes can go without changing on which side of a string any
    bracket lies, so what is left of the quotes encloses just the strings that contain brackets.
    """
    if b"\\" in block:
        block = block.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = block.translate(None, _REST).replace(b'""', b"")
    if quotes := left.count(b'"'):
        if quotes > _MANY:
            return False
        left = b"".join(left.split(b'"')[::2])
    for _ in range(_PEELS):
        left = left.replace(b"{}", b"").replace(b"[]", b"")
        if not left:
            return True
    return False


def has_no_huge_number(block: bytes) -> bool:
    """Proof that no number in this block is beyond float64, whether in a string or not.

    A number can only overflow with an exponent of three digits or with an integer part of more than 200 digits
    (10^209 × 10^99 is below the limit), and such a run contains 64 digits aligned to 64.
    """
    data = np.frombuffer(block, np.uint8)
    digit = (data - 48) < 10
    if digit.size >= 64:
        eights = digit[: digit.size // 64 * 64].view(np.uint64) == _EIGHT_TRUE
        if (eights.view(np.uint64) == _EIGHT_TRUE).any():
            return False
    exponent = (data | 0x20) == 0x65
    marks = exponent[1:-1] & digit[:-2]
    if not marks.any():
        return True
    marks &= digit[2:] | (data[2:] == 0x2B)
    where: npt.NDArray[np.intp] = np.flatnonzero(marks)
    for at in where.tolist():
        match = _EXPONENT.match(block, at + 1)
        if match is not None and len(match[1]) > 2 and _may_be_number(block, at, match.end()):
            return False
    return True


def _may_be_number(block: bytes, at: int, end: int) -> bool:
    """Could the text around a large exponent be a number? Names hold addresses such as 0x7f3e4567 by the thousand."""
    start = max(0, at - 64)
    mantissa = _MANTISSA.search(block, start, at + 1)
    if mantissa is None or (mantissa.start() > start and block[mantissa.start() - 1] not in _BEFORE_NUMBER):
        return False
    return _TO_END.match(block, end) is not None
