"""Equal ranks are never told apart by chance, however many are looked at; and the bounds are what they say."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from make_job import GpuJob, Slow
from planted import detailed, manifest_for, mapped

from sameshot.analysis import RankSummary, Summary, late, reduce_ranks
from sameshot.analysis.late.chance import bounds, margin, student
from sameshot.analysis.matching.match import match_streams
from sameshot.analysis.results import Confidence, Verdict
from sameshot.analysis.waiting.gather import arrivals

MS = 1_000_000


def summary_of(job: GpuJob) -> Summary:
    run = job.run()
    ranks = mapped(run) if job.backend == "gloo" else detailed(run)
    return reduce_ranks(manifest_for(run, ranks), ranks)


@pytest.mark.parametrize(
    "job",
    [
        GpuJob(hosts=1, gpus=2, jitter=8.0, steps=11, seed=502),
        GpuJob(hosts=1, gpus=4, jitter=8.0, steps=11, seed=423),
        GpuJob(hosts=8, gpus=8, tp=2, jitter=6.0, steps=11, seed=113),
        GpuJob(hosts=8, gpus=8, tp=2, jitter=6.0, steps=12, seed=32),
        GpuJob(hosts=8, gpus=1, islands=4, jitter=6.0, steps=11, seed=40),
    ],
    ids=lambda job: f"{job.world} ranks",
)
def test_a_rank_that_was_late_by_chance_in_most_of_a_few_steps_is_not_named(job: GpuJob) -> None:
    """Each of these was found among hundreds of seeds: nobody is slow, yet one rank was late by far in most steps."""
    summary = summary_of(job)
    assert summary.late.ranks == ()
    assert summary.late.verdict is Verdict.UNKNOWN
    assert "may be chance" in summary.late.reason


SHAPES: list[tuple[int, dict[str, Any]]] = [
    (80, {"hosts": 1, "gpus": 2, "jitter": 5.0, "steps": 5}),
    (60, {"hosts": 1, "gpus": 2, "jitter": 8.0, "steps": 11}),
    (40, {"hosts": 1, "gpus": 3, "jitter": 8.0, "steps": 8}),
    (10, {"hosts": 8, "gpus": 8, "tp": 2, "jitter": 6.0, "steps": 11}),
    (10, {"hosts": 8, "gpus": 8, "tp": 2, "jitter": 4.0, "steps": 6}),
    (40, {"hosts": 1, "gpus": 2, "jitter": 15.0, "steps": 6, "backend": "gloo"}),
]


@pytest.mark.parametrize(("jobs", "shape"), SHAPES)
def test_of_many_clean_jobs_hardly_any_names_somebody(jobs: int, shape: dict[str, Any]) -> None:
    said = Counter(one.confidence for seed in range(jobs) for one in summary_of(GpuJob(seed=seed, **shape)).late.ranks)
    assert said[Confidence.HIGH] == 0
    assert said.total() <= 1, "one of a hundred jobs may"


@pytest.mark.full
def test_of_a_thousand_clean_jobs_none_names_somebody_for_sure() -> None:
    said: Counter[Confidence] = Counter()
    for times, shape in SHAPES:
        for seed in range(1_000, 1_000 + 4 * times):
            said.update(one.confidence for one in summary_of(GpuJob(seed=seed, **shape)).late.ranks)
    assert said[Confidence.HIGH] == 0
    assert said.total() <= 10


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("planted", ["compute", "host", "data"])
def test_a_delay_of_half_that_size_is_still_named_in_as_few_steps(planted: str, seed: int) -> None:
    steady = summary_of(GpuJob(steps=11, seed=seed, slow=(Slow(5, planted, 4.0),)))
    assert [(one.rank, one.confidence) for one in steady.late.ranks] == [(5, Confidence.HIGH)]
    pairs = summary_of(GpuJob(steps=11, tp=2, seed=seed, slow=(Slow(5, planted, 4.0),)))
    assert [one.rank for one in pairs.late.ranks] == [5]


# ---- the bounds


def evidence(noise: npt.NDArray[np.float64], groups: int = 1) -> list[late.Evidence]:
    """Evidence of groups whose ranks are late by this much (ms), rank × step."""
    size, steps = noise.shape
    (one,) = _evidence_of(detailed(GpuJob(hosts=1, gpus=2, steps=8).run()))
    quiet = np.random.default_rng(9).normal(size=(groups - 1, size, steps))
    return [
        msgspec.structs.replace(one, ranks=tuple(range(size)), lateness=(values * MS).astype(np.int64))
        for values in (noise, *quiet)
    ]


def _evidence_of(ranks: list[RankSummary]) -> list[late.Evidence]:
    return late.gather(ranks, arrivals(ranks, match_streams(ranks)[0], len(ranks)))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_a_margin_is_the_distance_to_the_median_of_all_others(ranks: int) -> None:
    lateness = np.random.default_rng(ranks).integers(-20, 20, size=(ranks, 9))
    found = margin(lateness)
    for row in range(ranks):
        others = np.delete(lateness, row, axis=0)
        assert found[row].tolist() == (lateness[row] - np.median(others, axis=0)).tolist()


def test_of_two_ranks_one_margin_is_the_opposite_of_the_other() -> None:
    first, second = margin(np.asarray([[5, 0, 0, 3], [0, 2, 7, 0]]))
    assert first.tolist() == [5, -2, -7, 3]
    assert second.tolist() == [-5, 2, 7, -3]


@pytest.mark.parametrize(
    ("freedom", "chance", "table"), [(10, 0.01, 2.764), (3, 0.001, 10.215), (6, 0.0001, 8.025), (30, 0.001, 3.385)]
)
def test_students_quantile_is_that_of_printed_tables(freedom: int, chance: float, table: float) -> None:
    assert 0.999 * table < student(freedom, chance) < 1.08 * table, "an approximation that asks for rather more"


def test_what_no_number_of_standard_errors_could_prove_is_never_proven() -> None:
    assert student(0.6, 1e-300) == math.inf


def test_the_more_ranks_are_looked_at_the_more_it_takes() -> None:
    noise = np.random.default_rng(3).normal(size=(8, 30))
    alone, among = bounds(evidence(noise))[0], bounds(evidence(noise, groups=500))[0]
    assert (alone.sure > alone.named).all()
    assert (among.sure > among.named).all()
    # One in 400,000 of 4000 ranks is allowed to pass: 4.56 standard errors of a median of 30 normal values, each of
    # which is the distance of two medians, of one rank and of seven. Of eight ranks alone it takes 4.
    error = MS * math.sqrt(math.pi / 2 / 30) * math.sqrt(1 + math.pi / 2 / 7)
    assert 4.3 * error < among.named.min() < 4.8 * error
    assert 3.4 * error < alone.named.min() < 4.2 * error


@pytest.mark.parametrize("steps", [5, 11, 30])
@pytest.mark.parametrize("size", [2, 8])
def test_noise_passes_the_bounds_as_rarely_as_they_promise(size: int, steps: int) -> None:
    """Normal noise, and one rank of it ten times as restless as its peers."""
    rng = np.random.default_rng(size + steps)
    (one,) = _evidence_of(detailed(GpuJob(hosts=1, gpus=2, steps=8).run()))
    named = sure = 0
    for _ in range(1_000):
        noise = rng.normal(size=(size, steps)) * MS
        noise[0] *= 10
        changed = msgspec.structs.replace(one, ranks=tuple(range(size)), lateness=noise.astype(np.int64))
        (found,) = bounds([changed])
        named += bool((found.margin >= found.named).any())
        sure += bool((found.margin >= found.sure).any())
    assert named <= 20
    assert sure <= 1
