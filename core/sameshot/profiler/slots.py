"""Who may be given which config now: the broker's decisions, without a socket and without a clock of their own.

Every worker has one slot. A config is *offered* when the agent asks for it, *handed over* when the worker polls, and
the slot stays taken until the window is over. The reason is Kineto (measured on torch 2.13): it holds one request,
drops a second one that comes before the first has started, though it still polls as if it were free ("another profile
request is pending"), and drops one that comes while it records ("profiler busy"). Whether a start can be met is decided
at the moment of the poll, since Kineto drops one that it can't meet without telling anybody.

Kineto can also drop a config for reasons nobody here sees (the program's own profiler cancels it, a tick came late).
But a worker that polls for activities *inside* its own window is not recording, and one that does so after it, without
ever having polled as busy, has not recorded: while it records and writes it polls for events only, until after the file
has its final name (measured). Then the config is offered once more, to begin at once. A duplicate trace is acceptable,
a missed one is the real loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from sameshot.model import CaptureSpec
from sameshot.profiler.config import can_start_at, config_text, expected_window
from sameshot.profiler.daemon import TriggerFact, TriggerRequest, TriggerStatus

NS_PER_S = 1_000_000_000

# A worker polls every 1 to 5 s. One that has not for this long is gone or frozen; stock dynolog waits as long.
GONE_AFTER_NS = 60 * NS_PER_S
FORGET_WORKER_AFTER_NS = 3_600 * NS_PER_S
MAX_WORKERS = 4_096
MAX_RECORDS = 20_000
MAX_OFFERS = 2  # the offer and, where Kineto was seen to have dropped it, one more
# So soon after the expected begin a poll proves nothing: Kineto begins when its thread looks for work, once a second.
# A window that is no longer than this is judged by the polls after its end.
EDGE_NS = 1_250_000_000
OVER_NS = 1_000_000_000  # so long after the expected end a window that began late is over too
TOO_LATE_NS = 15 * NS_PER_S  # after this another window might not be announced in time

Key = tuple[int, int]  # Kineto job id, pid as the worker states it
Target = tuple[str, str]  # capture id, target id


@dataclasses.dataclass(slots=True)
class _Worker:
    """One polling process. `address` is its socket: another one under the same key is another process."""

    key: Key
    address: str
    last_poll_ns: int
    holder: _Record | None = None


@dataclasses.dataclass(slots=True)
class _Record:
    """Everything known about one request."""

    request: TriggerRequest
    status: TriggerStatus
    asked_at_ns: int
    note: str = ""
    offers: int = 0
    wanted: bool = False  # the config is to be handed over at the next suitable poll
    late_start: bool | None = None
    consumed_at_ns: int | None = None
    window_ns: tuple[int, int] = (0, 0)
    was_busy: bool = False  # since it was handed over, the worker has polled as one that warms up, records or writes

    @property
    def target(self) -> Target:
        return self.request.capture_id, self.request.target_id

    def occupies(self, now_ns: int) -> bool:
        return self.wanted or now_ns < self.window_ns[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A config that is to be sent right now. The caller reports back with `handed_over`, or does nothing."""

    text: str
    start_at_ns: int | None
    late_start: bool
    _record: _Record
    _worker: _Worker


class Slots:
    """Not thread-safe: the broker holds its lock around every call. All times are CLOCK_REALTIME in ns."""

    def __init__(self) -> None:
        self._workers: dict[Key, _Worker] = {}
        self._records: dict[Target, _Record] = {}

    # --- what the agent asks ---------------------------------------------------------------------------------

    def ask(self, requests: Sequence[TriggerRequest], now_ns: int) -> list[TriggerFact]:
        """Offer these windows. Raises `InvalidSpec` before any of them is taken where one can't be written down."""
        for request in requests:
            config_text(request.spec, request.output_path, request.start_at_ns)
        self._forget(now_ns)
        return [self._fact(self._ask(request, now_ns), now_ns) for request in requests]

    def _ask(self, request: TriggerRequest, now_ns: int) -> _Record:
        known = self._records.get((request.capture_id, request.target_id))
        if known and known.status not in (TriggerStatus.NOT_MATCHED, TriggerStatus.BUSY):
            return known
        record = _Record(request, TriggerStatus.NOT_MATCHED, now_ns)
        self._records[record.target] = record
        worker = self._workers.get((request.kineto_job_id, request.pid))
        if worker is None:
            record.note = f"process {request.pid} with Kineto job id {request.kineto_job_id} has never polled here"
        elif now_ns - worker.last_poll_ns > GONE_AFTER_NS:
            age = (now_ns - worker.last_poll_ns) // NS_PER_S
            record.note = f"process {request.pid} polled {age} s ago for the last time"
        elif worker.holder and worker.holder.occupies(now_ns):
            record.status = TriggerStatus.BUSY
            record.note = f"waits for {_describe(worker.holder, now_ns)}"
        else:
            record.status = TriggerStatus.QUEUED
            record.wanted = True
            worker.holder = record
        return record

    def facts(self, capture_id: str, now_ns: int) -> list[TriggerFact]:
        return [self._fact(record, now_ns) for (owner, _), record in self._records.items() if owner == capture_id]

    def withdraw(self, capture_id: str, target_ids: Iterable[str], now_ns: int) -> list[TriggerFact]:
        """Take back what no worker has fetched, for good: a repeated request does not bring it back."""
        facts = []
        for target_id in target_ids:
            record = self._records.get((capture_id, target_id))
            if record is None:
                # A retry of the dispatch may still be on its way; it must find that it came too late.
                record = _Record(_nobody(capture_id, target_id), TriggerStatus.WITHDRAWN, now_ns)
                self._records[record.target] = record
            elif record.status is not TriggerStatus.CONSUMED:
                record.status, record.note = TriggerStatus.WITHDRAWN, "taken back before the worker fetched it"
            record.wanted, record.offers = False, MAX_OFFERS
            facts.append(self._fact(record, now_ns))
        return facts

    def ages_ns(self, now_ns: int) -> dict[Key, int]:
        self._forget(now_ns)
        return {key: max(0, now_ns - worker.last_poll_ns) for key, worker in self._workers.items()}

    # --- what a worker says ----------------------------------------------------------------------------------

    def poll(self, key: Key, address: str, free: bool, now_ns: int) -> Offer | None:
        """A worker polls. `free`: it says that it could start recording. The offer, if any, must be sent at once."""
        worker = self._workers.get(key)
        if worker is None or worker.address != address:
            if worker is None and len(self._workers) >= MAX_WORKERS and not self._evict(now_ns):
                return None
            if worker is not None:
                _orphan(worker)
            worker = self._workers[key] = _Worker(key, address, now_ns)
        worker.last_poll_ns = max(worker.last_poll_ns, now_ns)
        holder = worker.holder
        if holder is None:
            return None
        if not free:
            holder.was_busy = holder.was_busy or not holder.wanted
            return None
        if not holder.wanted and holder.offers < MAX_OFFERS and (why := _dropped(holder, now_ns)):
            holder.wanted = True
            holder.note = f"{why}: Kineto dropped the first offer"
        if not holder.wanted:
            return None
        spec, offered = holder.request.spec, holder.request.start_at_ns
        late = bool(offered) and not can_start_at(spec, offered, now_ns)
        start = None if late or not offered else offered
        return Offer(config_text(spec, holder.request.output_path, start), start, late, holder, worker)

    def handed_over(self, offer: Offer, now_ns: int) -> None:
        """The offer lies in the worker's socket, which it is reading right now."""
        record = offer._record
        record.wanted = False
        record.offers += 1
        record.status = TriggerStatus.CONSUMED
        record.late_start = offer.late_start
        record.consumed_at_ns = now_ns
        record.window_ns = expected_window(record.request.spec, offer.start_at_ns, now_ns)

    # --- upkeep ----------------------------------------------------------------------------------------------

    def _forget(self, now_ns: int) -> None:
        for key in [k for k, w in self._workers.items() if now_ns - w.last_poll_ns > FORGET_WORKER_AFTER_NS]:
            _orphan(self._workers.pop(key))
        if len(self._records) > MAX_RECORDS:
            done = [r for r in self._records.values() if not r.occupies(now_ns)]
            for record in sorted(done, key=lambda r: r.asked_at_ns)[: len(self._records) - MAX_RECORDS]:
                del self._records[record.target]

    def _evict(self, now_ns: int) -> bool:
        """Make room by dropping the longest silent worker with nothing at stake; it comes back with its next poll."""
        idle = [w for w in self._workers.values() if not (w.holder and w.holder.occupies(now_ns))]
        if idle:
            del self._workers[min(idle, key=lambda w: w.last_poll_ns).key]
        return bool(idle)

    def _fact(self, record: _Record, now_ns: int) -> TriggerFact:
        request = record.request
        worker = self._workers.get((request.kineto_job_id, request.pid))
        return TriggerFact(
            capture_id=request.capture_id,
            target_id=request.target_id,
            status=record.status,
            late_start=record.late_start,
            consumed_at_ns=record.consumed_at_ns,
            last_poll_age_s=None if worker is None else max(0, now_ns - worker.last_poll_ns) / NS_PER_S,
            note=record.note,
        )


def _dropped(record: _Record, now_ns: int) -> str:
    """What a free poll at this moment proves about a config that was handed over; "": nothing."""
    begin, end = record.window_ns
    if begin + EDGE_NS < now_ns < end:
        return "the worker polled inside its window without recording"
    if end + OVER_NS < now_ns < end + TOO_LATE_NS and not record.was_busy:
        return "the worker polled before, during and after its window without recording"
    return ""


def _orphan(worker: _Worker) -> None:
    """Its process is gone and another one has its pid: what it never fetched must not reach the newcomer."""
    if (holder := worker.holder) and holder.wanted:
        holder.wanted = False
        if holder.status is TriggerStatus.QUEUED:
            holder.status = TriggerStatus.NOT_MATCHED
            holder.note = "the process it was meant for is gone and never fetched it"


def _describe(holder: _Record, now_ns: int) -> str:
    if holder.wanted:
        return f"capture {holder.request.capture_id}, which the worker has not fetched yet"
    left = (holder.window_ns[1] - now_ns) / NS_PER_S
    return f"the window of capture {holder.request.capture_id}, over in {left:.1f} s"


def _nobody(capture_id: str, target_id: str) -> TriggerRequest:
    return TriggerRequest(capture_id, target_id, 0, 0, CaptureSpec(), 0, "/withdrawn.json")
