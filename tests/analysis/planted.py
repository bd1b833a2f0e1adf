"""From a simulated job to summaries and the verdict: as `map` and `reduce` would, without files."""

from __future__ import annotations

import io
import json

from gloo_job import manifest_of
from make_job import GpuJob, Run

from sameshot.analysis import RankSummary, Summary, reduce_ranks
from sameshot.analysis.frame import FrameBuilder
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


def manifest_for(run: Run, ranks: list[RankSummary]) -> Manifest:
    """A manifest of all ranks of the job; what it says of the files is not looked at."""
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
        world_size=run.job.world,
    )


def verdict(job: GpuJob) -> Summary:
    """The whole way, for a job of few ranks."""
    run = job.run()
    ranks = mapped(run)
    return reduce_ranks(manifest_for(run, ranks), ranks)


def quick(job: GpuJob) -> Summary:
    """From summaries that the simulation made itself: for many ranks. They hold no causes."""
    run = job.run()
    ranks = run.summaries()
    return reduce_ranks(manifest_for(run, ranks), ranks)
