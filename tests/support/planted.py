"""From a simulated job to summaries and the verdict: as `map` and `reduce` would, without files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from gloo_job import manifest_of
from make_job import FETCH, GpuJob, Run

from sameshot.analysis import RankSummary, Summary, reduce_ranks
from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.intervals import Spans, union
from sameshot.analysis.rank import summarise
from sameshot.manifest import Manifest, Target
from sameshot.model import Artifact, Encoding
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.read import read_trace


def mapped(run: Run) -> list[RankSummary]:
    """Every rank's trace, written as JSON and read again."""
    return [_mapped(run, rank) for rank in range(run.job.world)]


def _mapped(run: Run, rank: int) -> RankSummary:
    frames = FrameBuilder()
    found = read_trace(io.BytesIO(json.dumps(run.trace(rank)).encode()), ColumnBuilder(frames))
    return summarise(
        frames.frame(),
        target_id=run.target_id(rank),
        identity=run.identity(rank),
        base_ns=found.base_time_ns or 0,
        window_ns=(found.window_start_ns, found.window_end_ns),
        raw_size=found.raw_size,
        raw_sha256=found.raw_sha256,
    )


def manifest_for(run: Run, ranks: Sequence[RankSummary]) -> Manifest:
    """A manifest of all ranks of the job."""
    return manifest_of_ranks(ranks, run.job.world)


def manifest_of_ranks(ranks: Sequence[RankSummary], world_size: int | None = None) -> Manifest:
    """A manifest of these ranks; what it says of the files is not looked at."""
    return manifest_of(
        [
            Target(
                rank.target_id,
                rank.identity,
                artifact=Artifact(
                    uri=f"rank{rank.identity.rank}.json",
                    size=1,
                    sha256="0" * 64,
                    encoding=Encoding.IDENTITY,
                    raw_size=1,
                    raw_sha256="0" * 64,
                    window_start_ns=rank.window_start_ns,
                    window_end_ns=rank.window_end_ns,
                ),
            )
            for rank in ranks
        ],
        world_size=world_size,
    )


def verdict(job: GpuJob) -> Summary:
    """The whole way, for a job of few ranks."""
    run = job.run()
    ranks = mapped(run)
    return reduce_ranks(manifest_for(run, ranks), ranks)


def detailed(run: Run) -> list[RankSummary]:
    """The summaries that the simulation makes itself, with what each device did between the collectives of a group, as
    `map` finds it in a trace. Fast enough for thousands of ranks."""
    return [_detailed(run, rank, summary) for rank, summary in enumerate(run.summaries())]


def _detailed(run: Run, rank: int, summary: RankSummary) -> RankSummary:
    inside = [record for record in run.records if record.end[rank] >= run.begin[rank]]
    work = _spans(rank, [record for record in inside if record.what in ("kernel", "copy")])
    fetching = _spans(rank, [record for record in inside if record.name == FETCH])
    busy = union((work, _spans(rank, [record for record in inside if record.what == "nccl"])))
    first = min(int(record.start[rank]) for record in inside)
    streams = []
    for stream in summary.streams:
        name = next(n for n in run.truth.families if _key_of(run, n, rank) == stream.key)
        kept = np.flatnonzero(run.truth.kept[name][:, rank])
        start, end = run.truth.arrival[name][kept, rank], run.truth.end[name][kept, rank]
        since = np.concatenate(([first], start[:-1]))
        exposed = end - start - (work.before(end) - work.before(start))
        compute = work.before(start) - work.before(since)
        own = np.concatenate(([0], exposed[:-1]))
        idle = fetching - busy
        streams.append(
            msgspec.structs.replace(
                stream,
                exposed=tuple(exposed.tolist()),
                compute=tuple(compute.tolist()),
                other=tuple(np.maximum(busy.before(start) - busy.before(since) - compute - own, 0).tolist()),
                data=tuple((idle.before(start) - idle.before(since)).tolist()),
            )
        )
    return msgspec.structs.replace(summary, streams=tuple(streams))


def _spans(rank: int, records: list[Any]) -> Spans:
    return Spans.of([int(r.start[rank]) for r in records], [int(r.end[rank]) for r in records])


def _key_of(run: Run, family: str, rank: int) -> str:
    found = run.truth.families[family]
    label, members = found.recorded(int(found.group[rank]), run.job.truncate)
    return f"group {label} {members}"
