"""One rank's events moved onto the common clock, under processes of its own."""

from __future__ import annotations

import itertools
from typing import Any, BinaryIO

import msgspec

from sameshot.analysis.clocks import to_reference
from sameshot.analysis.results import HostClock, RankSummary
from sameshot.analysis.text import ms
from sameshot.manifest import Target
from sameshot.trace.window import to_ns

_NOT_EVENTS_OF_TIME = frozenset({"M"})
_JOINED = frozenset("stfbne")  # flows and async spans: what states the same id belongs together
_HALVES = frozenset("BEbe")  # which half lies in a window is no matter: both are kept
_TRACKS = 1_000_000  # pids per rank: far more than processes and devices in a trace
_ENCODE = msgspec.json.Encoder()


class MergedRank(msgspec.Struct, frozen=True):
    """What the merged trace holds of one rank."""

    label: str
    target_id: str
    host: str
    offset_ns: int | None  # added to its clock; None: its host could not be aligned, its own clock is shown
    expected_error_ns: int | None
    events: int  # written
    left_out: int  # outside the window that was asked for

    @property
    def clock(self) -> str:
        """How its clock was aligned, in words."""
        if self.offset_ns is None:
            return "clock not aligned: its host shares no proven synchronisation with the others"
        error = "" if self.expected_error_ns is None else f" ± {ms(self.expected_error_ns)}"
        return f"clock moved by {ms(self.offset_ns)}{error}" if self.offset_ns else f"clock as it is{error}"


def moment_of(clock: HostClock | None, at_ns: int) -> int:
    """On the reference's clock; as it is where the host is unaligned."""
    moved = None if clock is None else to_reference(clock, at_ns)
    return at_ns if moved is None else moved


class Writer:
    """The JSON text around events."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._first = True
        self._flows = 0
        file.write(b'{"traceEvents":[\n')

    def write(self, events: list[dict[str, Any]]) -> None:
        if events:
            lines = b",\n".join(_ENCODE.encode(event) for event in events)
            self._file.write(lines if self._first else b",\n" + lines)
            self._first = False

    def flow(self) -> int:
        self._flows += 1
        return self._flows

    def close(self, members: dict[str, Any]) -> None:
        self._file.write(b"\n]," + _ENCODE.encode(members)[1:] + b"\n")


class RankWriter:
    """Moves one rank's events onto the common clock, under processes of its own."""

    def __init__(
        self,
        writer: Writer,
        target: Target,
        host: str,
        clock: HostClock | None,
        number: int,
        base_ns: int,
        start_ns: int,
        window_ns: tuple[int | None, int | None],
    ) -> None:
        rank = target.identity.rank
        self.label = target.target_id if rank is None else f"rank {rank}"
        self._base_ns = base_ns
        self._writer = writer
        self._target = target
        self._host = host
        self._clock = clock
        self._number = number
        self._start_ns = start_ns
        self._from, self._to = window_ns
        self._pids: dict[Any, int] = {}
        self._flows: dict[Any, int] = {}
        self._named: set[int] = set()
        self._events = 0
        self._left_out = 0

    def take(self, events: list[dict[str, Any]]) -> None:
        kept = [event for event in events if self._move(event)]
        self._events += len(kept)
        self._writer.write(kept)

    def finish(self, summary: RankSummary) -> None:
        """Names for processes that the trace does not name, and the inferred steps."""
        extra: list[dict[str, Any]] = []
        for given, pid in self._pids.items():
            if pid not in self._named:
                extra.append(_metadata("process_name", pid, {"name": self._title(str(given))}))
            extra.append(_metadata("process_sort_index", pid, {"sort_index": pid}))
        if summary.steps.count:
            pid = self._pid("steps")
            extra.append(_metadata("process_name", pid, {"name": self._title("steps (inferred)")}))
            extra.append(_metadata("process_sort_index", pid, {"sort_index": self._number * _TRACKS}))
            edges = [self._relative_ns(summary.window_start_ns + edge) for edge in summary.steps.edges]
            for index, (begin, end) in enumerate(itertools.pairwise(edges)):
                if self._wanted(begin, end):
                    extra.append(
                        {"ph": "X", "cat": "sameshot", "name": f"step {index}", "pid": pid, "tid": 0}
                        | {"ts": begin / 1000, "dur": (end - begin) / 1000}
                        | {"args": {"method": summary.steps.method, "confidence": summary.steps.confidence}}
                    )
        self._writer.write(extra)

    def part(self) -> MergedRank:
        return MergedRank(
            label=self.label,
            target_id=self._target.target_id,
            host=self._host,
            offset_ns=None if self._clock is None else self._clock.offset,
            expected_error_ns=None if self._clock is None else self._clock.expected_error,
            events=self._events,
            left_out=self._left_out,
        )

    def _move(self, event: dict[str, Any]) -> bool:
        phase = event.get("ph")
        if phase in _NOT_EVENTS_OF_TIME:
            return self._move_metadata(event)
        at = to_ns(event.get("ts"))
        if at is None:
            self._left_out += 1  # nowhere to draw it
            return False
        begin = self._relative_ns(self._base_ns + at)
        stated = to_ns(event.get("dur"))
        length = max(stated or 0, 0)
        if phase not in _HALVES and not self._wanted(begin, begin + length):
            self._left_out += 1
            return False
        event["ts"] = begin / 1000
        if stated is not None:
            event["dur"] = length / 1000
        event["pid"] = self._pid(event.get("pid"))
        if phase in _JOINED and "id" in event:
            key = msgspec.json.encode((event.get("cat"), event["id"]))
            if key not in self._flows:
                self._flows[key] = self._writer.flow()
            event["id"] = self._flows[key]
        return True

    def _move_metadata(self, event: dict[str, Any]) -> bool:
        if event.get("name") == "process_sort_index":
            return False  # ours orders by rank
        given = event.get("pid")
        pid = event["pid"] = self._pid(given)
        event.pop("ts", None)
        if event.get("name") == "process_name":
            arguments = event.get("args")
            name = arguments.get("name") if isinstance(arguments, dict) else None
            event["args"] = {"name": self._title(f"{name} {given}" if name else str(given))}
            self._named.add(pid)
        return True

    def _title(self, what: str) -> str:
        where = f" on {self._target.identity.node}" if self._target.identity.node else ""
        clock = "" if self._clock is not None else " (clock not aligned)"
        return f"{self.label}{where}: {what}{clock}"

    def _pid(self, given: Any) -> int:
        key = msgspec.json.encode(given)
        if key not in self._pids:
            self._pids[key] = self._number * _TRACKS + len(self._pids) + 1
        return self._pids[key]

    def _relative_ns(self, at_ns: int) -> int:
        return moment_of(self._clock, at_ns) - self._start_ns

    def _wanted(self, begin: int, end: int) -> bool:
        return (self._from is None or end >= self._from) and (self._to is None or begin <= self._to)


def _metadata(name: str, pid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": 0, "args": arguments}
