"""JSON of the API server, whatever its maker put into it. Pure.

Decoders give up on values that are nested about a thousand deep (as Python's own stack is), also where nobody reads
them; API servers take ten thousand levels (the limit of Go's encoding/json), as in `managedFields`. One such object
must not hide all others of its list.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
MOST_LEVELS = 64
"""More than any field that is read here lies deep, in a list of objects, too."""
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]')


def decoded(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """What is nested too deep is null. Raises a MsgspecError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        return msgspec.json.decode(shallow(bytes(data)), type=kind)


def shallow(data: bytes) -> bytes:
    """The same JSON with null for each value that begins below `MOST_LEVELS`; one pass, whatever the depth."""
    kept: list[Any] = []
    depth = begin = 0
    for token in _TOKENS.finditer(data):
        mark = token[0]
        if mark in b"[{":
            depth += 1
            if depth == MOST_LEVELS + 1:
                kept += (data[begin : token.start()], b"null")
        elif mark in b"]}":
            depth -= 1
            if depth == MOST_LEVELS:
                begin = token.end()
    if depth <= MOST_LEVELS:
        kept.append(data[begin:])
    return b"".join(kept)
