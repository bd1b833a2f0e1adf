"""The synthetic job is what it claims: its summaries are those of its traces, and its truth holds in both."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from make_job import BASE_NS, MS, US, GpuJob, Run, Slow

from sameshot.analysis import RankSummary, map_rank
from sameshot.analysis.matching.match import match_streams
from sameshot.manifest import Target
from sameshot.model import Artifact, Encoding


def mapped(run: Run, folder: Path) -> list[RankSummary]:
    """The ranks' summaries by way of their traces: bytes, verification, columns, map."""
    found = []
    for rank in range(run.job.world):
        raw = json.dumps(run.trace(rank)).encode()
        packed = gzip.compress(raw, 1, mtime=0)
        path = folder / f"{rank}.json.gz"
        path.write_bytes(packed)
        artifact = Artifact(
            uri=path.name,
            size=len(packed),
            sha256=hashlib.sha256(packed).hexdigest(),
            encoding=Encoding.GZIP,
            raw_size=len(raw),
            raw_sha256=hashlib.sha256(raw).hexdigest(),
            window_start_ns=0,
            window_end_ns=1,
        )
        found.append(map_rank(path, Target(run.target_id(rank), run.identity(rank), artifact=artifact)))
    return found


SHAPES = {
    "groups": GpuJob(hosts=2, gpus=2, tp=2, steps=8, clock_s=3.0, drift_ppm=20.0, lag=40.0, missing=0.02),
    "pipeline": GpuJob(hosts=2, gpus=2, pp=2, steps=6, seq=True, grad_norm=True),
    "no groups": GpuJob(hosts=2, gpus=2, tp=2, steps=6, group_args=False, lag=20.0),
    "graphs": GpuJob(hosts=1, gpus=2, steps=6, graphs=True),
    "gloo": GpuJob(hosts=2, gpus=1, steps=10, backend="gloo", clock_s=1.0, marks="optimizer"),
    "late window": GpuJob(hosts=1, gpus=2, steps=6, from_step=3, slow=(Slow(1, "inherited", 7.5),)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_summaries_made_directly_are_those_of_the_traces(name: str, tmp_path: Path) -> None:
    run = dataclasses.replace(SHAPES[name], seed=5).run()
    for made, real in zip(run.summaries(), mapped(run, tmp_path), strict=True):
        assert (made.window_start_ns, made.window_end_ns) == (real.window_start_ns, real.window_end_ns)
        assert real.identity == made.identity
        assert [stream.key for stream in made.streams] == [stream.key for stream in real.streams]
        for mine, theirs in zip(made.streams, real.streams, strict=True):
            # A gloo span that ends last of all counts as cut off by the end of the recording.
            kept = len(theirs.start)
            assert kept >= len(mine.start) - (run.job.backend == "gloo")
            assert (mine.start[:kept], mine.dur[:kept]) == (theirs.start, theirs.dur)
            assert mine.seq is None or mine.seq == theirs.seq
            assert {text.split()[0] for text in mine.signatures} == {text.split()[0] for text in theirs.signatures}
        assert (real.device is not None) == (run.job.backend == "nccl")
        assert real.trace.oddities == {}


def test_ranks_match_alike_from_traces_and_from_summaries(tmp_path: Path) -> None:
    run = dataclasses.replace(SHAPES["groups"], seed=5).run()
    made, _ = match_streams(run.summaries())
    real, _ = match_streams(mapped(run, tmp_path))
    assert [(one.key, one.ranks, one.dur.tolist()) for one in made] == [
        (one.key, one.ranks, one.dur.tolist()) for one in real
    ]


def test_everything_is_the_same_for_the_same_seed_and_differs_for_another() -> None:
    job = dataclasses.replace(SHAPES["groups"], seed=5)
    assert job.run().trace(3) == job.run().trace(3)
    assert job.run().summaries() == job.run().summaries()
    assert job.run().trace(3) != dataclasses.replace(job, seed=6).run().trace(3)


@pytest.mark.parametrize("cause", ["compute", "host", "data"])
def test_a_planted_straggler_comes_last_and_the_others_wait_for_it(cause: str) -> None:
    run = GpuJob(hosts=2, gpus=4, slow=(Slow(5, cause, 8.0),), seed=2).run()
    arrival = run.truth.arrival["dp"]
    assert (arrival[::4].argmax(axis=1) == 5).mean() > 0.9, "the first bucket of each step"
    (matched,), _ = match_streams(run.summaries())
    first = [i for i, text in enumerate(matched.signatures) if text == "all_reduce 3145728 Float"]
    waits = matched.wait[:, first]
    assert np.median(waits[[0, 1, 2, 3, 4, 6, 7]]) > 5 * MS
    assert np.median(waits[5]) < MS


def test_a_straggler_in_one_group_makes_its_group_late_in_another() -> None:
    """Rank 1 is slow; rank 0 waits for it in their tensor-parallel group and is then late in its data-parallel one."""
    run = GpuJob(hosts=1, gpus=4, tp=2, slow=(Slow(1, "compute", 8.0),), seed=2).run()
    late = run.truth.arrival["dp"][::4]
    assert np.median(late[:, 0] - late[:, 2]) > 5 * MS


def test_an_inherited_delay_lies_before_the_window() -> None:
    run = dataclasses.replace(SHAPES["late window"], seed=1).run()
    first, late = run.summaries()
    begins = late.window_start_ns - first.window_start_ns
    assert 6 * MS < begins < 9 * MS
    assert late.steps.edges[0] == 0
    assert first.streams[0].dur[0] - late.streams[0].dur[0] > 5 * MS


def test_a_slow_group_takes_longer_for_the_same_size() -> None:
    run = GpuJob(hosts=2, gpus=4, tp=4, slow_groups={("dp", 2): 4.0}, seed=1).run()
    matched, _ = match_streams(run.summaries())
    shortest = {one.ranks: int(np.median(one.dur.min(axis=0))) for one in matched if "Float" in one.signatures[0]}
    slow = shortest.pop((2, 6))
    between = [took for ranks, took in shortest.items() if len(ranks) == 2]
    assert slow > 2.5 * max(between)


def test_clocks_are_off_as_the_truth_says() -> None:
    run = GpuJob(hosts=3, gpus=1, clock_s=3.0, drift_ppm=50.0, outliers=0.0, seed=9).run()
    ends = run.truth.end["dp"]
    assert np.ptp(ends, axis=1).max() <= 25 * US, "in true time a collective ends everywhere within its skew"
    for rank, summary in enumerate(run.summaries()):
        stream = summary.streams[0]
        recorded = np.asarray(stream.start) + np.asarray(stream.dur) + summary.window_start_ns - BASE_NS
        assert recorded.tolist() == run.truth.local(rank, ends[:, rank]).tolist()
    assert np.abs(run.truth.clock_ns).max() > 1e9
    assert run.truth.offset_to(0, 0, 5) == 0


def test_nothing_is_random_in_a_clockwork_but_the_skew() -> None:
    run = GpuJob(hosts=2, gpus=1, periodic=True, outliers=0.0, seed=3).run()
    ends = run.truth.end["dp"][::4, 0]
    assert np.ptp(np.diff(ends)) < 60 * US


def test_windows_begin_and_end_at_different_collectives() -> None:
    run = GpuJob(hosts=2, gpus=4, lag=80.0, seed=3).run()
    first = run.truth.kept["dp"].argmax(axis=0)
    assert len(set(first.tolist())) > 3
    assert first.max() > 4


def test_lists_of_ranks_are_cut_as_torch_cuts_them() -> None:
    family = GpuJob(hosts=5, gpus=8).run().truth.families["dp"]
    name, ranks = family.recorded(0, 30)
    assert name == "1"
    assert ranks.startswith("[0, 1, 2, ")
    assert ranks.endswith("28, ..., 39]")
    assert ranks.count(",") == 30
    assert family.recorded(0, 40)[1].count(",") == 39
