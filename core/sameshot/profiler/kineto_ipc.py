"""The datagrams between Kineto and its daemon, as pure values: bytes in, bytes out, no socket.

Layout after dynolog's `ipcfabric` headers as vendored in pytorch/kineto (libkineto/third_party/dynolog_headers and
src/IpcFabricConfigClient.cpp): a 40-byte header (uint64 body size, 32-byte NUL-padded type) and a body in the
machine's own byte order. Workers ask with type `req`; the answer has type `req` too and its body is the config text,
empty for "nothing to do". Everything a worker sends is untrusted: what is not exactly such a message is `Malformed`.
"""

from __future__ import annotations

import enum
import struct

import msgspec

HEADER = struct.Struct("=Q32s")
REQUEST = struct.Struct("=iiq")  # type bits, number of pids, job id; then the pids as int32
CONTEXT = struct.Struct("=iiq")  # gpu, pid, job id
_COUNT = struct.Struct("=i")

ENDPOINT = "dynolog"  # the daemon's socket name that is compiled into Kineto
CLIENT_PREFIX = "dynoconfigclient"  # followed by a uuid4
MAX_DATAGRAM = 65_536
MAX_ANCESTORS = 4_096


class Malformed(ValueError):
    """A datagram that is no message of this protocol."""


class Wants(enum.IntFlag):
    """What the asking process could start right now. While it records it does not set ACTIVITIES."""

    NOTHING = 0
    EVENTS = 1
    ACTIVITIES = 2


class Poll(msgspec.Struct, frozen=True):
    """A worker asks for its config. `pids` begins with its own pid, then its ancestors, as it sees them itself."""

    wants: Wants
    job_id: int
    pids: tuple[int, ...]

    @property
    def pid(self) -> int:
        return self.pids[0]


class Context(msgspec.Struct, frozen=True):
    """Registration of one GPU, sent by older Kineto only; it waits for an int32."""

    gpu: int
    pid: int
    job_id: int


def decode(data: bytes) -> Poll | Context:
    """Read one datagram from a worker. Raises `Malformed` for anything else."""
    if len(data) < HEADER.size:
        raise Malformed(f"{len(data)} bytes are shorter than a header")
    size, padded = HEADER.unpack_from(data)
    kind, body = padded.split(b"\0", 1)[0], memoryview(data)[HEADER.size :]
    if size != len(body):
        raise Malformed(f"the header states {size} bytes, {len(body)} came")
    match kind:
        case b"req":
            return _poll(body)
        case b"ctxt":
            if len(body) != CONTEXT.size:
                raise Malformed(f"a context of {len(body)} bytes")
            gpu, pid, job_id = CONTEXT.unpack(body)
            return Context(gpu=gpu, pid=_positive(pid), job_id=job_id)
        case _:
            raise Malformed(f"unknown message type {kind!r}")


def _poll(body: memoryview) -> Poll:
    if len(body) < REQUEST.size:
        raise Malformed(f"a request of {len(body)} bytes")
    wants, count, job_id = REQUEST.unpack_from(body)
    # Bounded before it is used for anything: `count` is the sender's word.
    if not 1 <= count <= MAX_ANCESTORS or len(body) != REQUEST.size + 4 * count:
        raise Malformed(f"{count} pids stated in a body of {len(body)} bytes")
    pids = struct.unpack_from(f"={count}i", body, REQUEST.size)
    _positive(pids[0])
    return Poll(wants=Wants(wants & 3), job_id=job_id, pids=pids)


def _positive(pid: int) -> int:
    if pid <= 0:
        raise Malformed(f"pid {pid}")
    return pid


def encode_reply(config: str) -> bytes:
    """The answer to a `Poll`; an empty text means that there is nothing to do."""
    body = config.encode()
    return HEADER.pack(len(body), b"req") + body


def encode_context_reply(instances: int) -> bytes:
    """The answer to a `Context`: how many processes of the job are known."""
    return HEADER.pack(_COUNT.size, b"ctxt") + _COUNT.pack(instances)
