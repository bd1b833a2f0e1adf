"""Bytes from a socket to a websocket of the API server's port-forward, and back.

The websocket's subprotocol is `v4.channel.k8s.io`: channel 0 carries the bytes, channel 1 an error in words, both begin
with the port in two bytes, and neither can be half-closed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Any

_BLOCK = 256 << 10
_MOST = 4 << 20  # bytes on their way in one direction; then the other side waits

_DATA, _ERROR = 0, 1


class Pump:
    """Of one connection. What is on its way is bounded."""

    def __init__(self, near: socket.socket, far: Any) -> None:
        self._near = near
        self._far = far
        self._wire: socket.socket = far.sock
        self._out, self._in = bytearray(), bytearray()
        self._begun = [False, False]
        self._said = ""
        self._channel = _DATA
        self._far_ended = False

    def run(self) -> str:
        """Until either ends. What the other side said was wrong; empty: it ended as connections do."""
        from websocket import WebSocketException

        near, wire = self._near, self._wire
        near.setblocking(False)
        self._far.settimeout(0)
        try:
            self._loop(near, wire)
        except (OSError, WebSocketException) as error:
            self._said = self._said or f"the connection broke: {error}"
        return self._said

    def _loop(self, near: socket.socket, wire: socket.socket) -> None:
        poll, at_near, at_wire = select.poll(), near.fileno(), wire.fileno()
        registered: dict[int, int] = {}
        self._read_far()  # what came with the handshake's last bytes is in no socket any more
        while not (self._far_ended and not self._in):
            wanted = {
                at_near: _mask(len(self._out) < _MOST and not self._far_ended, bool(self._in)),
                # Nothing is asked of a socket that nothing is wanted of: poll would tell of its end again and again.
                at_wire: 0 if self._far_ended else _mask(len(self._in) < _MOST, bool(self._out)),
            }
            for each, mask in wanted.items():
                if mask and registered.get(each) != mask:
                    poll.register(each, mask)
                elif not mask and registered.get(each):
                    poll.unregister(each)
                registered[each] = mask
            ready = dict(poll.poll())
            on_near, on_wire = ready.get(at_near, 0), ready.get(at_wire, 0)
            if self._in and on_near and not self._write_near():
                return
            if on_near & ~select.POLLOUT and not self._far_ended and not self._read_near():
                return
            if on_wire & ~select.POLLOUT:
                self._read_far()
            if self._out and not self._far_ended:
                self._write_far()

    def _read_near(self) -> bool:
        """False: nobody is there any more."""
        try:
            data = self._near.recv(_BLOCK)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if data:
            self._frame(bytes((_DATA,)) + data)
        return bool(data)

    def _write_near(self) -> bool:
        """False: nobody is there any more."""
        with contextlib.suppress(BlockingIOError):
            try:
                del self._in[: self._near.send(self._in)]
            except ConnectionError:
                return False
        return True

    def _write_far(self) -> None:
        with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while self._out:
                del self._out[: self._wire.send(bytes(self._out[:_BLOCK]))]

    def _read_far(self) -> None:
        """All that is there: TLS keeps what it has decoded, and `poll` can't see it."""
        from websocket import ABNF, WebSocketConnectionClosedException

        try:
            while len(self._in) < _MOST or _pending(self._wire):
                frame = self._far.recv_frame()
                if frame.opcode == ABNF.OPCODE_CLOSE:
                    self._far_ended = True
                    return
                if frame.opcode == ABNF.OPCODE_PING:
                    self._frame(frame.data, ABNF.OPCODE_PONG)
                elif frame.opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT, ABNF.OPCODE_CONT):
                    self._take(bytes(frame.data), goes_on=frame.opcode == ABNF.OPCODE_CONT)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (WebSocketConnectionClosedException, ConnectionError, ssl.SSLError, ssl.SSLEOFError) as error:
            self._far_ended = True
            self._said = self._said or f"the connection to the API server broke: {error}"

    def _take(self, data: bytes, *, goes_on: bool) -> None:
        if not goes_on:
            if not data or data[0] not in (_DATA, _ERROR):
                return
            self._channel, data = data[0], data[1:]
            if not self._begun[self._channel]:
                self._begun[self._channel] = True  # the port, as it was asked for
                data = data[2:]
        if self._channel == _DATA:
            self._in += data
        else:
            self._said += data.decode(errors="replace")

    def _frame(self, data: bytes, opcode: int | None = None) -> None:
        from websocket import ABNF

        self._out += ABNF.create_frame(data, ABNF.OPCODE_BINARY if opcode is None else opcode).format()


def _mask(read: bool, write: bool) -> int:
    return (select.POLLIN if read else 0) | (select.POLLOUT if write else 0)


def _pending(wire: socket.socket) -> bool:
    return isinstance(wire, ssl.SSLSocket) and wire.pending() > 0
