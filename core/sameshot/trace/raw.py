"""A trace's events exactly as written, for whoever makes another trace of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import msgspec

from sameshot.errors import TraceError, VerificationFailed
from sameshot.model import InvalidKind
from sameshot.trace.decode import Decode
from sameshot.trace.scan import DocumentScanner
from sameshot.trace.source import Source
from sameshot.trace.verify import BLOCK_SIZE

RawEvents = Callable[[list[dict[str, Any]]], None]

_objects = msgspec.json.Decoder(list[dict[str, Any]])


def read_raw_events(stream: BinaryIO, raw_sha256: str, take: RawEvents, *, whose: str) -> None:
    """Hand all elements of `traceEvents` to `take`, in blocks, in bounded memory.

    For a trace that has been verified before: what is proven here is that these are the same bytes (`raw_sha256` of the
    decoded JSON), and only once this has returned. Raises VerificationFailed where they are not, TraceError for damage.
    """
    digest = hashlib.sha256()

    def decode(block: bytes) -> list[dict[str, Any]]:
        try:
            return _objects.decode(block)
        except msgspec.ValidationError:
            raise TraceError(InvalidKind.NOT_A_TRACE, "an element of traceEvents is not an object") from None

    scanner = DocumentScanner(
        cast("Decode", decode),
        lambda events: take(cast("list[dict[str, Any]]", events)),
        lambda key, raw, offset: None,
        frozenset(),
    )
    for _, block in Source(stream, BLOCK_SIZE).blocks():
        digest.update(block)
        scanner.feed(block)
    scanner.finish()
    if digest.hexdigest() != raw_sha256:
        raise VerificationFailed(
            f"The trace of {whose} decodes to bytes with sha256 {digest.hexdigest()}, the manifest states "
            f"{raw_sha256}; nothing was written. Fetch it again from where it came from."
        )
