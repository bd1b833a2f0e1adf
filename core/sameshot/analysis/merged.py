"""One trace of several ranks on one clock, to look at in Perfetto (`sameshot merge`).

    ts  = (the rank's CLOCK_REALTIME + its host's offset) - the start of the first window       µs, exact to the ns
    pid = the number of the rank and its process: unique over all ranks, in order of ranks
    id  = what connects flow arrows, numbered anew: ranks use the same numbers for different arrows

Everything else of an event stays as it was recorded. Format: the Trace Event Format in its object form, which
ui.perfetto.dev and chrome://tracing open.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from isal import igzip

from sameshot.analysis.clocks import to_reference
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.matching.hosts import host_of
from sameshot.analysis.results import Clocks, HostClock, RankSummary
from sameshot.analysis.run import Progress, map_capture
from sameshot.analysis.text import ms
from sameshot.errors import UsageError, VerificationFailed
from sameshot.manifest import Manifest, Target
from sameshot.model import Artifact
from sameshot.storage import Storage
from sameshot.trace.capture_check import locate
from sameshot.trace.raw import read_raw_events
from sameshot.trace.verify import Expectation, verify
from sameshot.trace.window import to_ns

_NOT_EVENTS_OF_TIME = frozenset({"M"})
_FLOWS = frozenset({"s", "t", "f"})
_TRACKS = 1_000_000  # pids per rank: far more than processes and devices in a trace
_ENCODE = msgspec.json.Encoder()


class Part(msgspec.Struct, frozen=True):
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


class Merged(msgspec.Struct, frozen=True):
    """A written merged trace. `start_ns` is CLOCK_REALTIME of the reference host at ts = 0."""

    path: str
    start_ns: int
    parts: tuple[Part, ...]


def choose(manifest: Manifest, ranks: Sequence[int] | None) -> list[Target]:
    """The targets of these ranks (None: all with a trace). Raises UsageError for a rank without one."""
    held = [target for target in manifest.targets if target.artifact is not None]
    if ranks is None:
        return held
    have = {target.identity.rank for target in held}
    lacking = sorted(set(ranks) - {rank for rank in have if rank is not None})
    if lacking:
        raise UsageError(
            f"The capture holds no trace of {'rank' if len(lacking) == 1 else 'ranks'} "
            f"{', '.join(map(str, lacking))}; it has {', '.join(sorted(map(str, have)))}."
        )
    return [target for target in held if target.identity.rank in set(ranks)]


def merge_capture(
    location: str,
    out: Path,
    *,
    ranks: Sequence[int] | None = None,
    window_ns: tuple[int | None, int | None] = (None, None),
    progress: Progress | None = None,
) -> Merged:
    """`merge` for the capture at this path or URI, whose clocks are measured first.

    Raises what `analyze` does, and UsageError for a rank without a trace.
    """
    mapped = map_capture(location)
    targets = choose(mapped.manifest, ranks)
    summary = reduce_ranks(mapped.manifest, mapped.ranks)
    storage, key = locate(location)
    folder = key.rpartition("/")[0]
    return merge(
        storage,
        folder + "/" if folder else "",
        targets,
        out,
        clocks=summary.clocks,
        summaries=mapped.ranks,
        window_ns=window_ns,
        progress=progress,
    )


def merge(
    storage: Storage,
    prefix: str,
    targets: Sequence[Target],
    out: Path,
    *,
    clocks: Clocks | None,
    summaries: Sequence[RankSummary],
    window_ns: tuple[int | None, int | None] = (None, None),
    progress: Progress | None = None,
) -> Merged:
    """Write the traces of `targets` into one gzipped trace.

    `prefix` leads to the manifest's folder in `storage`. `clocks` are those of the summary of the same capture.
    `summaries` are of the same targets: they add a track with the inferred steps of each rank. `window_ns` (from, to)
    counts from the start of the first window; spans that reach into it are kept whole. Nothing appears at `out` unless
    all of it was written.

    Raises VerificationFailed where bytes are not those of the manifest, TraceError and StorageError.
    """
    by_target = {summary.target_id: summary for summary in summaries}
    hosts = [host_of(by_target[target.target_id]) for target in targets]
    shown = _shown_clocks(hosts, clocks)
    start_ns = min(
        _moment(clock, _artifact(target).window_start_ns) for target, clock in zip(targets, shown, strict=True)
    )
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    parts = []
    try:
        with igzip.open(part, "wb", compresslevel=1) as file:  # type: ignore[no-untyped-call]
            writer = _Writer(file)
            for number, (target, clock) in enumerate(zip(targets, shown, strict=True)):
                one = _RankWriter(writer, target, hosts[number], clock, number, start_ns, window_ns)
                _read(storage, prefix, target, one)
                one.finish(by_target[target.target_id])
                parts.append(one.part())
                if progress is not None:
                    progress(number + 1, len(targets), target.target_id)
            writer.close({"displayTimeUnit": "ms", "sameshot": {"start_ns": str(start_ns), "ranks": parts}})
        os.replace(part, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return Merged(str(out), start_ns, tuple(parts))


def _read(storage: Storage, prefix: str, target: Target, one: _RankWriter) -> None:
    artifact = _artifact(target)
    with storage.open_read(prefix + artifact.uri) as stream:
        found = verify(stream, Expectation())
    if (found.size, found.sha256) != (artifact.size, artifact.sha256):
        raise VerificationFailed(
            f"The trace of {one.label} ({artifact.uri}) is not the one that the manifest states; nothing was written. "
            "Fetch it again from where it came from."
        )
    one.base_ns = found.base_time_ns or 0
    with storage.open_read(prefix + artifact.uri) as stream:
        read_raw_events(stream, artifact.raw_sha256, one.take)


def _artifact(target: Target) -> Artifact:
    assert target.artifact is not None, target.target_id
    return target.artifact


def _shown_clocks(hosts: Sequence[str], clocks: Clocks | None) -> list[HostClock | None]:
    """The clock of each host; None: it can't be aligned. Ranks of one host share one: there is nothing to align."""
    if len(set(hosts)) == 1:
        same = HostClock(
            hosts[0], component=0, offset=0, drift=None, residual=None, expected_error=None, points=0, note=""
        )
        return [same] * len(hosts)
    found = {clock.host: clock for clock in clocks.hosts if clock.offset is not None} if clocks is not None else {}
    return [found.get(host) for host in hosts]


def _moment(clock: HostClock | None, at_ns: int) -> int:
    """On the reference's clock; as it is where the host is unaligned."""
    moved = None if clock is None else to_reference(clock, at_ns)
    return at_ns if moved is None else moved


class _Writer:
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


class _RankWriter:
    """Moves one rank's events onto the common clock, under processes of its own."""

    def __init__(
        self,
        writer: _Writer,
        target: Target,
        host: str,
        clock: HostClock | None,
        number: int,
        start_ns: int,
        window_ns: tuple[int | None, int | None],
    ) -> None:
        rank = target.identity.rank
        self.label = target.target_id if rank is None else f"rank {rank}"
        self.base_ns = 0
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

    def part(self) -> Part:
        return Part(
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
        begin = self._relative_ns(self.base_ns + at)
        length = max(to_ns(event.get("dur")) or 0, 0)
        if not self._wanted(begin, begin + length):
            self._left_out += 1
            return False
        event["ts"] = begin / 1000
        if "dur" in event:
            event["dur"] = length / 1000
        event["pid"] = self._pid(event.get("pid"))
        if phase in _FLOWS and "id" in event:
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
        return _moment(self._clock, at_ns) - self._start_ns

    def _wanted(self, begin: int, end: int) -> bool:
        return (self._from is None or end >= self._from) and (self._to is None or begin <= self._to)


def _metadata(name: str, pid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": 0, "args": arguments}
