"""Which ranks, by which clocks, into which file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from isal import igzip

from sameshot.analysis.files import replacing
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.matching.hosts import host_of
from sameshot.analysis.merged.write import MergedRank, RankWriter, Writer, moment_of
from sameshot.analysis.results import Clocks, HostClock, RankSummary
from sameshot.analysis.run import Progress, map_capture
from sameshot.errors import UsageError
from sameshot.manifest import Manifest, Target
from sameshot.model import Artifact
from sameshot.storage import Storage
from sameshot.trace.capture_check import locate
from sameshot.trace.raw import read_raw_events


class Merged(msgspec.Struct, frozen=True):
    """A written merged trace. `start_ns` is CLOCK_REALTIME of the reference host at ts = 0."""

    path: str
    start_ns: int
    parts: tuple[MergedRank, ...]


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
        moment_of(clock, _artifact(target).window_start_ns) for target, clock in zip(targets, shown, strict=True)
    )
    parts = []
    with (
        replacing(out) as part,
        igzip.open(part, "wb", compresslevel=1) as file,  # type: ignore[no-untyped-call]
    ):
        writer = Writer(file)
        for number, (target, clock) in enumerate(zip(targets, shown, strict=True)):
            summary, artifact = by_target[target.target_id], _artifact(target)
            base_ns = summary.trace.base_time
            one = RankWriter(writer, target, hosts[number], clock, number, base_ns, start_ns, window_ns)
            with storage.open_read(prefix + artifact.uri) as stream:
                read_raw_events(stream, artifact.raw_sha256, one.take, whose=f"{one.label} ({artifact.uri})")
            one.finish(summary)
            parts.append(one.part())
            if progress is not None:
                progress(number + 1, len(targets), target.target_id)
        writer.close({"displayTimeUnit": "ms", "sameshot": {"start_ns": str(start_ns), "ranks": parts}})
    return Merged(str(out), start_ns, tuple(parts))


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
