"""Calls whose message never ends, over HTTP/2 by hand: gRPC's own clients send messages whole."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from types import TracebackType
from typing import Self

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1


class Unfinished:
    """A TLS connection to a gRPC server; for use in a thread."""

    def __init__(self, address: str, ca: bytes, server_name: str) -> None:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cadata=ca.decode())
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((host, int(port)), timeout=20)
        self._socket = context.wrap_socket(plain, server_hostname=server_name)
        self._next = 1
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(SETTINGS, 0, 0, struct.pack(">HI", 1, 0))  # no table of headers: they come as they are

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def begin(self, method: str, size: int, token: str = "") -> int:
        """Call `/sameshot.v1.<method>` with the first bytes of a message of `size`; gives the stream's number."""
        headers = {
            ":method": "POST", ":scheme": "https", ":path": f"/sameshot.v1.{method}", ":authority": "x",
            "content-type": "application/grpc", "te": "trailers",
        }  # fmt: skip
        if token:
            headers["authorization"] = f"Bearer {token}"
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        stream, self._next = self._next, self._next + 2
        self._send(HEADERS, END_HEADERS, stream, block)
        self._send(DATA, 0, stream, struct.pack(">BI", 0, size) + b"x" * 100)
        return stream

    def answers(self, streams: set[int], within_s: float = 10.0) -> dict[int, str]:
        """stream → the status (a number) with which the server ended it. Raises TimeoutError."""
        found: dict[int, str] = {}
        ends = time.monotonic() + within_s
        while set(found) < streams:
            self._socket.settimeout(max(ends - time.monotonic(), 0.01))
            kind, flags, stream, payload = self._frame()
            if kind in (SETTINGS, PING) and not flags & ACK:
                self._send(kind, ACK, 0, payload if kind == PING else b"")
            if kind == HEADERS and flags & END_STREAM:
                _, _, rest = payload.partition(b"grpc-status")
                found[stream] = rest[1 : 1 + rest[0]].decode()
        return found

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)

    def _frame(self) -> tuple[int, int, int, bytes]:
        head = self._exactly(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return kind, flags, stream, self._exactly(int.from_bytes(head[:3], "big"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            if not (piece := self._socket.recv(count - len(data))):
                raise ConnectionError("the server has closed the connection")
            data += piece
        return data


def _text(value: str) -> bytes:
    """A string of HPACK, as it is."""
    data = value.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, length = len(data) - 127, b"\x7f"
    while rest >= 128:
        length, rest = length + bytes([rest % 128 + 128]), rest // 128
    return length + bytes([rest]) + data
