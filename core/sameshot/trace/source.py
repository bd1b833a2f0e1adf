"""The bytes of one trace file: what is on disk, and what it decodes to.

The encoding is found in the content, never in the name: Kineto writes plain JSON into files called `.json.gz`. A gzip
file must be exactly one whole member: a second one, or anything after it, is how interleaved writers and broken
copies look, and readers disagree about what it means. The same holds for zstd frames, which traces from elsewhere may
be packed in: they are read, never written.
"""

from __future__ import annotations

import enum
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import igzip_lib, isal_zlib

from sameshot.errors import TraceError
from sameshot.model import Encoding, InvalidKind

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # its stub declares an instance
_LEVEL = 1  # ISA-L: level 1 and 2 compress traces as well as level 3 at a third of its CPU (measured)
# The smallest window of output, of 1..9: more is 0.3 ms/MB faster, but then output comes in large pieces, each grown by
# reallocation, and the heap frays: 45 MiB after 1 GB of trace against 4 MiB (measured, isal 1.9).
_MEMORY = 1
# The decoder keeps the whole window of a frame: 2 to 8 MiB as traces are packed, at most 128 MiB, which is also where
# the zstd program stops unless told otherwise (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
_ZSTD_WINDOW_LOG = 27


class Packing(enum.Enum):
    """How the bytes on disk are packed: what an archive may hold (`encoding`), or something that is only read."""

    PLAIN = Encoding.IDENTITY
    GZIP = Encoding.GZIP
    ZSTD = None

    @property
    def encoding(self) -> Encoding | None:
        """None: no archive holds traces in this form."""
        return None if self is Packing.ZSTD else Encoding(self.value)


class Source:
    """Reads a file once, from its current position; `packed` counts and digests what is stored on disk."""

    def __init__(self, file: BinaryIO, block_size: int) -> None:
        self._file = file
        self._block_size = block_size
        self._head = _read(file, block_size)
        self.packing = (
            Packing.GZIP
            if self._head.startswith(_GZIP)
            else Packing.ZSTD
            if self._head.startswith(_ZSTD)
            else Packing.PLAIN
        )
        self.size = 0
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of the stored bytes read so far; for a plain file the caller's digest of the same bytes is as good."""
        return self._hash.hexdigest()

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Pairs of (stored bytes, decoded bytes), both in order; the same object twice where nothing is packed.

        Raises `TraceError` (compression) where the stream is broken; the offset is that of the decoded bytes so far.
        """
        return self._plain() if self.packing is Packing.PLAIN else self._unpacked(self.packing is Packing.ZSTD)

    def _stored(self) -> Iterator[bytes]:
        block, self._head = self._head, b""
        while block:
            self.size += len(block)
            yield block
            block = _read(self._file, self._block_size)

    def _plain(self) -> Iterator[tuple[bytes, bytes]]:
        for block in self._stored():
            yield block, block

    def _unpacked(self, is_zstd: bool) -> Iterator[tuple[bytes, bytes]]:
        member = _zstd_frame() if is_zstd else igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        what = "zstd frame" if is_zstd else "gzip member"
        stream = "zstd" if is_zstd else "gzip"
        second = f"bytes after the end of the {what} (a second {what.rpartition(' ')[2]}?)"
        done = 0
        for packed in self._stored():
            self._hash.update(packed)
            fresh = packed
            while True:
                if member.eof:
                    raise self._broken(second, done)
                try:
                    block: bytes = member.decompress(fresh, self._block_size)
                except (_IsalError, zstd.ZstdError) as error:
                    raise self._broken(f"the {stream} stream is damaged: {error}", done) from None
                done += len(block)
                yield packed if fresh else b"", block
                fresh = b""
                if member.eof and member.unused_data:
                    raise self._broken(second, done)
                if member.eof or member.needs_input:
                    break
        if not member.eof:
            raise self._broken(f"the {stream} stream ends in the middle", done)

    def _broken(self, detail: str, done: int) -> TraceError:
        return TraceError(InvalidKind.COMPRESSION, detail, byte_offset=done)


def _zstd_frame() -> zstd.ZstdDecompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})


def _read(file: BinaryIO, size: int) -> bytes:
    """`size` bytes, or fewer at the end: raw files and pipes may hand out less at a time."""
    block = file.read(size)
    while len(block) < size and (more := file.read(size - len(block))):
        block += more
    return block


class Store:
    """Writes verified bytes, packed as asked; the file exists only as long as nobody calls `discard`."""

    def __init__(self, path: Path, *, compress: bool) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o640), "wb", buffering=0)
        # No name and no time in the header, so equal traces are stored as equal bytes.
        self._packer = isal_zlib.compressobj(level=_LEVEL, wbits=31, memLevel=_MEMORY) if compress else None
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, block: bytes) -> None:
        """Raises OSError, for example when the disk is full."""
        self._put(self._packer.compress(block) if self._packer else block)

    def _put(self, block: bytes) -> None:
        if not block:
            return
        self._hash.update(block)
        self.size += len(block)
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        if self._packer:
            self._put(self._packer.flush())
        self._file.close()

    def discard(self) -> None:
        """Close and remove; never raises for a file that is already gone."""
        self._file.close()
        self._path.unlink(missing_ok=True)
