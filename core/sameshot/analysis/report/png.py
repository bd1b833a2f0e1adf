"""A picture of a few colours as PNG, from a matrix of palette indices.

A thousand ranks over five hundred moments are half a million cells: as HTML elements they would be tens of megabytes,
as an indexed PNG they are a few hundred kilobytes that every browser draws without a script. Format: W3C PNG, type 3.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

Colour = tuple[int, int, int, int]
"""Red, green, blue, alpha; each 0 to 255."""


def png(cells: npt.NDArray[np.uint8], palette: tuple[Colour, ...]) -> bytes:
    """`cells` are rows of indices into `palette` (at most 256 colours)."""
    height, width = cells.shape
    lines = np.zeros((height, width + 1), dtype=np.uint8)  # each line begins with its filter: 0, none
    lines[:, 1:] = cells
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"".join(bytes(colour[:3]) for colour in palette)),
            _chunk(b"tRNS", bytes(colour[3] for colour in palette)),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
