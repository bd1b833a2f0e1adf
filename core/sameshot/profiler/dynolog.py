"""The back end `dynolog`: the stock daemon, over its RPC port.

Its server is one thread without timeouts (dynolog/src/rpc/SimpleJsonServer.cpp), and it is not ours: this client must
neither block it nor kill it. So the whole request is ready before the connection is opened, header and body leave in
one write, and a connection that has to be given up before its answer is *reset* (SO_LINGER on, 0 s): after an ordinary
close the daemon's second write meets a closed peer, and SIGPIPE ends the daemon (measured: 4 times of 5).

What an answer means (dynolog/src/LibkinetoConfigManager.cpp): `processesMatched` were known,
`activityProfilersTriggered` got the config stored for their next poll, and a matched process that is not triggered
still has another config stored. Nothing tells whether a config is ever fetched: QUEUED is the strongest claim. A pid
also matches every process that has it as an ancestor, and dead processes match for one to two minutes, so only our own
pid in the list counts.

A daemon that is restarted has lost what was stored, and no answer of it says so. So a config of which nothing has come
(`TriggerRequest.again`) is sent once more, when every poll has long been: while it is still stored the daemon answers
busy and keeps the one, and if it was fetched after all there is a second trace.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from sameshot.errors import InvalidSpec, SameshotError, Unreachable, UsageError
from sameshot.hostport import parted
from sameshot.profiler.config import can_start_at, config_text
from sameshot.profiler.daemon import BackendName, TriggerFact, TriggerRequest, TriggerStatus

DEFAULT_PORT = 1778
MAX_ANSWER_BYTES = 4 * 1024 * 1024  # the length prefix is the peer's word
MAX_CONFIG_BYTES = 100_000  # about twice this is accepted by the daemon and then lost on the way to Kineto
MAX_RECORDS = 20_000  # the oldest are forgotten
MAX_INT32 = 2**31 - 1
# A stored config is fetched at the next poll, within 5 s; after a daemon's restart Kineto may wait for another 5 s.
SEND_AGAIN_AFTER_NS = 12_000_000_000
# The most processes that one request may trigger. With 1 the one could be a child of the worker instead of the worker.
PROCESS_LIMIT = 1_000

_LENGTH = struct.Struct("=i")
_RESET_ON_CLOSE = struct.pack("@ii", 1, 0)

_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class _NotSent(Unreachable):
    """The connection was refused: nothing can have been executed."""


class _Triggered(msgspec.Struct, frozen=True):
    """The daemon's answer to a request; `status` comes alone, in place of the rest, when it refused."""

    status: str | None = None
    processes_matched: list[int] = msgspec.field(default_factory=list, name="processesMatched")
    triggered: list[int] = msgspec.field(default_factory=list, name="activityProfilersTriggered")


class _Version(msgspec.Struct, frozen=True):
    version: str


@dataclasses.dataclass(slots=True)
class _Record:
    request: TriggerRequest
    fact: TriggerFact
    unanswered: bool = False  # a request for this target got no answer: the daemon may have executed it
    closed: bool = False  # withdrawn: nothing more is sent
    sent_at_ns: int = 0  # when the daemon last answered that a config is stored
    sent_again: bool = False


class DynologClient:
    """Speaks to one stock daemon, one request at a time.

    `poll_interval_s` is how often its workers poll (their ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS): a start that a worker
    could learn of too late is not sent, since Kineto would drop the whole request. `clock` gives CLOCK_REALTIME in ns.
    """

    name = BackendName.DYNOLOG

    @classmethod
    def at(cls, address: str, *, poll_interval_s: float = 1.0) -> DynologClient:
        """For a daemon at `host:port`. Raises UsageError where the address is of another form."""
        found = parted(address)
        if found is None:
            raise UsageError(f"The address of the dynolog daemon, {address!r}, is not host:port.")
        return cls(*found, poll_interval_s=poll_interval_s)

    def __init__(
        self,
        host: str = "localhost",
        port: int = DEFAULT_PORT,
        *,
        timeout_s: float = 5.0,
        poll_interval_s: float = 1.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._host, self._port = host, port
        self._timeout_s = timeout_s
        self._poll_interval_ns = int(poll_interval_s * 1e9)
        self._clock = clock
        self._records: dict[tuple[str, str], _Record] = {}
        self._one_at_a_time = asyncio.Lock()

    # --- ProfilerDaemon --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Nothing to start: the daemon runs by itself and connections last for one request."""

    async def close(self) -> None:
        """Nothing to close."""

    async def version(self) -> str:
        """The daemon's version, as a sign of life. Raises `Unreachable`."""
        async with self._one_at_a_time:
            return (await self._call({"fn": "getVersion"}, _Version)).version

    async def trigger(self, requests: Sequence[TriggerRequest]) -> list[TriggerFact]:
        for request in requests:
            _check(request)
        facts = []
        for request in requests:
            async with self._one_at_a_time:
                facts.append(await self._trigger(request))
        return facts

    async def facts(self, capture_id: str) -> list[TriggerFact]:
        return [record.fact for (owner, _), record in self._records.items() if owner == capture_id]

    async def withdraw(self, capture_id: str, target_ids: Sequence[str]) -> list[TriggerFact]:
        """A stored config can't be taken back; what was not stored yet is not sent any more."""
        facts = []
        for target_id in target_ids:
            if record := self._records.get((capture_id, target_id)):
                record.closed = True
                if record.fact.status is not TriggerStatus.QUEUED:
                    record.fact = msgspec.structs.replace(record.fact, note="withdrawn; nothing more is sent")
                facts.append(record.fact)
            else:
                facts.append(TriggerFact(capture_id, target_id, TriggerStatus.NOT_MATCHED, note="never asked for"))
        return facts

    async def registered(self) -> dict[tuple[int, int], float | None]:
        return {}

    # --- one request -----------------------------------------------------------------------------------------

    async def _trigger(self, request: TriggerRequest) -> TriggerFact:
        key = request.capture_id, request.target_id
        record = self._records.get(key)
        if record is None:
            fact = TriggerFact(request.capture_id, request.target_id, TriggerStatus.NOT_MATCHED)
            record = self._records[key] = _Record(request, fact)
            if len(self._records) > MAX_RECORDS:
                del self._records[next(iter(self._records))]
        queued = record.fact.status is TriggerStatus.QUEUED
        if record.closed or (queued and not self._may_send_again(record, request)):
            return record.fact
        record.request = request
        offered = request.start_at_ns
        late = bool(offered) and not can_start_at(request.spec, offered, self._clock() + self._poll_interval_ns)
        message = {
            "fn": "setKinetOnDemandRequest",
            "config": config_text(request.spec, request.output_path, None if late else offered),
            "job_id": request.kineto_job_id,
            "pids": [request.pid],
            "process_limit": PROCESS_LIMIT,
        }
        before = record.unanswered
        record.unanswered = True  # from here on the daemon may execute it, whatever becomes of us
        try:
            answer = await self._call(message, _Triggered)
        except Unreachable as error:
            record.unanswered = before or not isinstance(error, _NotSent)
            record.fact = msgspec.structs.replace(record.fact, note=str(error))
            raise
        record.unanswered = before
        if answer.status is not None:
            raise SameshotError(
                f"The dynolog daemon at {self._where} refused the request for {request.target_id} "
                f"(process {request.pid}): {answer.status!r}. Nothing was triggered."
            )
        fact = _read(request, answer, late_start=True if late else None, doubt=record.unanswered or queued)
        if fact.status is not TriggerStatus.NOT_MATCHED:
            record.sent_at_ns = self._clock()
        if queued and fact.status is not TriggerStatus.QUEUED:
            fact = msgspec.structs.replace(record.fact, note=fact.note)  # what was true once stays so
        elif queued:
            record.sent_again = True
        record.fact = fact
        return record.fact

    def _may_send_again(self, record: _Record, request: TriggerRequest) -> bool:
        waited_ns = self._clock() - max(record.sent_at_ns, request.start_at_ns)
        return request.again and not record.sent_again and waited_ns >= SEND_AGAIN_AFTER_NS

    @property
    def _where(self) -> str:
        return f"{self._host}:{self._port}"

    async def _call(self, message: dict[str, object], kind: type[_Answer]) -> _Answer:
        body = msgspec.json.encode(message)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._exchange(_LENGTH.pack(len(body)) + body)
        except TimeoutError:
            raise Unreachable(
                f"The dynolog daemon at {self._where} gave no answer within {self._timeout_s:g} s (one silent client "
                "blocks it for all); the request may have been executed all the same."
            ) from None
        except OSError as error:
            raise Unreachable(
                f"The dynolog daemon at {self._where} broke off the connection ({error.strerror or error}); the "
                "request may have been executed all the same."
            ) from None
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise Unreachable(
                f"What listens at {self._where} does not answer like dynolog ({error}); the request may have been "
                "executed all the same."
            ) from None

    async def _exchange(self, request: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        why: OSError | str = "no address"
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise _NotSent(f"The dynolog daemon's host {self._host} has no address ({error}).") from None
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as connection:
                connection.setblocking(False)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    await loop.sock_connect(connection, address)
                except OSError as error:
                    why = error.strerror or error
                    continue
                # One write: the daemon reads the four bytes of the length with a single read.
                await loop.sock_sendall(connection, request)
                (length,) = _LENGTH.unpack(await _read_exactly(connection, _LENGTH.size))
                if not 0 < length <= MAX_ANSWER_BYTES:
                    raise ConnectionError(f"it announced an answer of {length} bytes")
                return await _read_exactly(connection, length)
        raise _NotSent(f"No dynolog daemon listens at {self._where} ({why}); nothing was sent.")


async def _read_exactly(connection: socket.socket, size: int) -> bytes:
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < size:
        chunk = await loop.sock_recv(connection, size - len(got))
        if not chunk:
            raise ConnectionError(f"it closed the connection after {len(got)} of {size} bytes")
        got += chunk
    return bytes(got)


def _check(request: TriggerRequest) -> None:
    """Refuse what the daemon would take for something else: it truncates to int32, and pid 0 means every process."""
    for what, value in (("Kineto job id", request.kineto_job_id), ("pid", request.pid)):
        if not 1 <= value <= MAX_INT32:
            raise InvalidSpec(
                f"The {what} {value} of {request.target_id} is outside 1 … 2^31-1; dynolog would take it for another "
                "one, or for all. Nothing was sent."
            )
    if len(config_text(request.spec, request.output_path, request.start_at_ns).encode()) > MAX_CONFIG_BYTES:
        raise InvalidSpec(f"The trace path of {request.target_id} is too long; dynolog would lose the request.")


def _read(request: TriggerRequest, answer: _Triggered, *, late_start: bool | None, doubt: bool) -> TriggerFact:
    notes = []
    if request.pid in answer.triggered:
        status = TriggerStatus.QUEUED
        if doubt:
            notes.append("an earlier request may have been executed too: a second trace is possible")
    elif request.pid in answer.processes_matched:
        status = TriggerStatus.BUSY
        notes.append("another config is stored for this process and has not been fetched yet")
        if doubt:
            notes.append("it may be this capture's own")
    else:
        status = TriggerStatus.NOT_MATCHED
        notes.append(f"the daemon does not know process {request.pid} with Kineto job id {request.kineto_job_id}")
    if others := sorted({*answer.triggered} - {request.pid}):
        notes.append(f"its descendants {others} were triggered along with it")
    return TriggerFact(
        capture_id=request.capture_id,
        target_id=request.target_id,
        status=status,
        late_start=late_start if status is TriggerStatus.QUEUED else None,
        note="; ".join(notes),
    )
