"""A rank's part of the tables as bytes: how it gets from the task that read the trace to the one that joins all parts.

MessagePack, compressed; a column of numbers is its numpy type and its bytes. Only this version's own tasks read it.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np

from sameshot.analysis.hta.tables import TablePart

_ARRAY = 1
_FAST = 1  # of zlib's levels: launches of a long window are megabytes, and are read once


def to_bytes(part: TablePart) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(part, enc_hook=_plain), _FAST)


def from_bytes(data: bytes) -> TablePart:
    """The inverse. Raises ValueError where these are no such bytes."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=TablePart, ext_hook=_array)
    except (zlib.error, msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufb":
        kind = value.dtype.str.encode()
        return msgspec.msgpack.Ext(_ARRAY, bytes([len(kind)]) + kind + np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value)} in a table")


def _array(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise ValueError(f"extension {code} is not known")
    raw = bytes(data)
    return np.frombuffer(raw[1 + raw[0] :], dtype=np.dtype(raw[1 : 1 + raw[0]].decode()))
