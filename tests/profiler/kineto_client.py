"""Kineto's side of the datagrams: what a worker sends, and how it reads an answer."""

from __future__ import annotations

import struct

from sameshot.profiler.kineto_ipc import HEADER, REQUEST, Malformed, Poll


def encode_poll(poll: Poll) -> bytes:
    """What a worker sends; the inverse of `kineto_ipc.decode`."""
    body = REQUEST.pack(poll.wants, len(poll.pids), poll.job_id) + struct.pack(f"={len(poll.pids)}i", *poll.pids)
    return HEADER.pack(len(body), b"req") + body


def decode_reply(data: bytes) -> str:
    """What a worker reads from an answer. Raises `Malformed`."""
    if len(data) < HEADER.size:
        raise Malformed(f"{len(data)} bytes are shorter than a header")
    size, padded = HEADER.unpack_from(data)
    if padded.split(b"\0", 1)[0] != b"req" or size != len(data) - HEADER.size:
        raise Malformed("not an answer")
    try:
        return data[HEADER.size :].decode()
    except UnicodeDecodeError as error:
        raise Malformed("an answer that is not UTF-8") from error
