"""Clocks of hosts: planted offsets and drifts are recovered within the stated error, or refused."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hand_made import group, reduced, stream
from hand_made import rank as written
from hypothesis import given, settings
from hypothesis import strategies as st
from make_job import BASE_NS, MS, GpuJob, Run

from sameshot.analysis import Summary, clocks
from sameshot.analysis.matching.match import match_streams
from sameshot.analysis.results import Clocks, HostClock, RankSummary

LIMIT = 50_000  # ns: what may be stated under the noise of `GpuJob`: 5 to 30 µs end skew, 5 % outliers


def measured(run: Run, ranks: list[RankSummary] | None = None) -> Clocks:
    ranks = run.summaries() if ranks is None else ranks
    return clocks.measure(ranks, match_streams(ranks)[0])


def number(host: str) -> int:
    return int(host.rpartition("-")[2])


def error_of(run: Run, reference: str, clock: HostClock, ranks: list[RankSummary]) -> float:
    """The worst true error of an aligned clock at the borders of the windows of its ranks, in ns."""
    truth, host = run.truth, number(clock.host)
    rate = truth.drift_ppm[host] * 1e-6
    worst = 0.0
    for rank, summary in enumerate(ranks):
        if run.job.host_of(rank) == host:
            for local in (summary.window_start_ns, summary.window_end_ns):
                true = (local - BASE_NS - int(truth.clock_ns[host]) + rate * truth.middle_ns) / (1 + rate)
                wanted = int(truth.local(number(reference), round(true))) + BASE_NS
                found = clocks.to_reference(clock, local)
                assert found is not None
                worst = max(worst, abs(found - wanted))
    return worst


def check(run: Run) -> Clocks:
    ranks = run.summaries()
    found = measured(run, ranks)
    assert found.reference is not None
    for clock in found.hosts:
        if clock.offset is not None:
            assert clock.expected_error is not None
            assert clock.expected_error < LIMIT, clock
            assert error_of(run, found.reference, clock, ranks) <= clock.expected_error, clock
    return found


NOISY = GpuJob(hosts=3, gpus=2, clock_s=3.0, drift_ppm=20.0, lag=60.0, missing=0.01)

SHAPES = {
    "groups": NOISY,
    "no groups": dataclasses.replace(NOISY, group_args=False),
    "numbers": dataclasses.replace(NOISY, seq=True),
    "numbers of a clockwork": dataclasses.replace(NOISY, seq=True, periodic=True, outliers=0.0),
    "several groups": dataclasses.replace(NOISY, hosts=4, gpus=4, tp=2),
    "a chain of groups": dataclasses.replace(NOISY, hosts=6, gpus=2, tp=4, layers=4),
    "graphs": dataclasses.replace(NOISY, graphs=True),
    "long": dataclasses.replace(NOISY, steps=90, drift_ppm=50.0),
    "short": dataclasses.replace(NOISY, steps=14, lag=10.0),
}


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_planted_offsets_and_drifts_are_recovered_within_the_stated_error(name: str, seed: int) -> None:
    found = check(dataclasses.replace(SHAPES[name], seed=seed).run())
    assert all(clock.offset is not None for clock in found.hosts), found


def test_the_stated_error_is_no_mere_upper_bound() -> None:
    """Over many runs the true error comes near what is stated: typically a tenth to a half of it."""
    shares: list[float] = []
    for seed in range(30):
        run = dataclasses.replace(NOISY, seed=seed).run()
        ranks = run.summaries()
        found = measured(run, ranks)
        assert found.reference is not None
        shares += [
            error_of(run, found.reference, clock, ranks) / clock.expected_error
            for clock in found.hosts
            if clock.expected_error
        ]
    assert 0.05 < float(np.median(shares)) < 0.5
    assert max(shares) <= 1.0


def test_a_drift_is_told_where_it_is_resolved_and_only_there() -> None:
    long = dataclasses.replace(NOISY, steps=90, drift_ppm=50.0, seed=4).run()
    found = measured(long)
    for clock in found.hosts[1:]:
        planted = (long.truth.drift_ppm[number(str(found.reference))] - long.truth.drift_ppm[number(clock.host)]) * 1000
        assert clock.drift is not None
        assert abs(clock.drift - planted) < 2_000, "ns per s"
    islands = measured(dataclasses.replace(NOISY, steps=90, drift_ppm=50.0, hosts=4, islands=2, seed=4).run())
    assert [clock.drift is None for clock in islands.hosts] == [True, False, True, True], "the reference, and unaligned"
    short = measured(dataclasses.replace(NOISY, steps=8, lag=0.0, seed=4).run())
    assert [clock.drift for clock in short.hosts] == [None] * 3
    assert "too few to tell a drift" in short.hosts[1].note


@pytest.mark.parametrize("seed", range(8))
def test_hosts_that_no_group_connects_are_unaligned_and_never_zero(seed: int) -> None:
    found = check(dataclasses.replace(NOISY, hosts=5, islands=5, gpus=2, seed=seed).run())
    assert [clock.offset for clock in found.hosts[1:]] == [None] * 4
    islands = check(dataclasses.replace(NOISY, hosts=4, islands=2, gpus=2, seed=seed).run())
    assert [clock.component for clock in islands.hosts] == [0, 0, 1, 1]
    assert [clock.offset is None for clock in islands.hosts] == [False, False, True, True]
    assert all(clocks.to_reference(clock, BASE_NS) is None for clock in islands.hosts[2:])
    assert all("unaligned" in clock.note and clock.expected_error is None for clock in islands.hosts[2:])
    assert "2 hosts unaligned" in islands.note


def test_sends_and_receives_measure_no_clock() -> None:
    """They are matched, but ranks may leave them early."""
    ranks = dataclasses.replace(NOISY, hosts=2, gpus=2, tp=2, pp=2, seed=1).run().summaries()
    matched, _ = match_streams(ranks)
    assert any(one.ranks == (0, 2) for one in matched)
    assert [clock.offset for clock in clocks.measure(ranks, matched).hosts] == [0, None]


@pytest.mark.parametrize("seed", range(6))
def test_offsets_that_drift_are_compared_at_one_moment_in_all_groups(seed: int) -> None:
    """Windows differ by a second, so the middles of what groups have in common do, too: 200 µs at 200 ppm."""
    job = dataclasses.replace(
        NOISY, hosts=6, gpus=2, tp=4, steps=90, drift_ppm=200.0, lag=1000.0, missing=0.0, seed=seed
    )
    found = check(job.run())
    assert any(clock.drift is not None for clock in found.hosts)


@pytest.mark.parametrize("group_args", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_a_clockwork_job_is_refused(group_args: bool, seed: int) -> None:
    job = dataclasses.replace(NOISY, periodic=True, outliers=0.0, group_args=group_args, seed=seed)
    found = measured(job.run())
    assert [clock.offset for clock in found.hosts] == [0, None, None]
    assert "could not be compared" in found.note


def test_matches_that_assume_clocks_do_not_measure_them() -> None:
    job = GpuJob(hosts=2, gpus=2, periodic=True, outliers=0.0, clock_s=0.001, lag=0.0, seed=1)
    ranks = job.run().summaries()
    matched, _ = match_streams(ranks)
    assert any(one.assumes_clocks for one in matched)
    found = clocks.measure(ranks, matched)
    assert found.hosts[1].offset is None
    assert "assuming that their clocks agree" in found.note


def test_one_host_has_one_clock() -> None:
    found = measured(GpuJob(hosts=1, gpus=4).run())
    assert [(clock.host, clock.offset, clock.expected_error) for clock in found.hosts] == [("host-0", 0, 0)]
    assert "one host" in found.note


def test_no_ranks_have_no_clock() -> None:
    assert clocks.measure([], []) == Clocks(None, (), "No rank was analysed.")


def test_ranks_without_a_host_stand_alone_and_are_still_compared() -> None:
    run = dataclasses.replace(NOISY, named_hosts=False, seed=2).run()
    found = measured(run)
    assert len(found.hosts) == run.job.world
    offsets = [clock.offset for clock in found.hosts]
    assert all(offset is not None for offset in offsets)
    together = [abs((offsets[r] or 0) - (offsets[r + 1] or 0)) for r in range(0, run.job.world, run.job.gpus)]
    assert max(together) < 2 * LIMIT, "ranks of one host have one clock, whether we know of it or not"


def test_the_node_stands_for_an_unknown_host() -> None:
    ranks = [
        msgspec.structs.replace(rank, identity=msgspec.structs.replace(rank.identity, host=None))
        for rank in dataclasses.replace(NOISY, seed=2).run().summaries()
    ]
    found = clocks.measure(ranks, match_streams(ranks)[0])
    assert [clock.host for clock in found.hosts] == ["node-0", "node-1", "node-2"]


def test_a_process_that_is_off_its_host_is_named() -> None:
    run = dataclasses.replace(NOISY, hosts=2, gpus=4, seed=3, missing=0.0).run()
    ranks = run.summaries()
    moved = tuple(
        msgspec.structs.replace(one, start=tuple(start + MS // 2 for start in one.start)) for one in ranks[5].streams
    )
    ranks[5] = msgspec.structs.replace(ranks[5], streams=moved)
    found = measured(run, ranks)
    assert "rank 5 by " in found.hosts[1].note
    assert "rank" not in found.hosts[0].note
    clean = measured(run)
    assert all("other times" not in clock.note for clock in clean.hosts)


def test_the_reference_is_the_first_host_of_the_largest_component() -> None:
    run = dataclasses.replace(NOISY, hosts=4, islands=2, seed=1).run()
    ranks = [rank for rank in run.summaries() if rank.identity.rank != 0]
    kept = [rank for rank in ranks if rank.identity.host != "host-0"]
    found = clocks.measure(kept, match_streams(kept)[0])
    assert found.reference == "host-2"
    assert [(clock.host, clock.component) for clock in found.hosts] == [("host-1", 1), ("host-2", 0), ("host-3", 0)]


def test_one_group_that_contradicts_the_others_is_outvoted() -> None:
    """A group whose ends are matched one step off, amid three that are right."""
    run = dataclasses.replace(NOISY, hosts=2, gpus=8, tp=4, layers=1, drift_ppm=0.0, seed=6).run()
    ranks = run.summaries()
    matched, _ = match_streams(ranks)
    between = [one for one in matched if len({run.job.host_of(rank) for rank in one.ranks}) > 1]
    assert len(between) == 4
    wrong = between[0]
    start = wrong.start.copy()
    start[[run.job.host_of(rank) == 1 for rank in wrong.ranks]] += 3 * MS
    others = [one for one in matched if one is not wrong]
    found = clocks.measure(ranks, [*others, msgspec.structs.replace(wrong, start=start)])
    assert found.reference is not None
    clock = found.hosts[1]
    assert clock.expected_error is not None
    assert error_of(run, found.reference, clock, ranks) <= clock.expected_error
    assert "contradict" in clock.note


def two_hosts(count: int, *, ahead: float = 3e6, step: float = 0.0, after: float = 0.6) -> Summary:
    """Two hosts with one rank each and `count` numbered collectives, 8 ms apart by turns of 6 to 10; the second one's
    clock is so many µs ahead, and by `step` more from `after` of the collectives on. Ends differ by up to 20 µs."""
    ends = [10_000.0 + 8_000 * k + 2_000 * (k % 3 - 1) for k in range(count)]
    ranks = []
    for number in range(2):
        mine = [end + number * (7 * k % 20 + (step if k >= after * count else 0)) for k, end in enumerate(ends)]
        durs = [500.0 + 13 * (k * (number + 3) % 7) for k in range(count)]
        key = "group 1 [0, 1]"
        made = written(
            number, [stream(key, ["all_reduce 10 Float"] * count, mine, durs)], [group(key, 2)], node=f"n{number}"
        )
        moved = round(number * ahead * 1_000)
        ranks.append(
            msgspec.structs.replace(
                made, window_start_ns=made.window_start_ns + moved, window_end_ns=made.window_end_ns + moved
            )
        )
    return reduced(ranks)


@pytest.mark.parametrize("step", [300, 5_000])  # µs
def test_a_clock_that_is_set_inside_the_window_is_told_and_the_error_holds_it(step: int) -> None:
    steady, stepped = (two_hosts(60, step=by).clocks for by in (0, step))
    assert steady is not None
    assert stepped is not None
    one, other = steady.hosts[1], stepped.hosts[1]
    assert one.expected_error is not None
    assert other.expected_error is not None
    assert one.expected_error < 200_000
    assert "set meanwhile" not in one.note
    assert other.expected_error >= step * 1_000
    assert "set meanwhile, or ran at another rate" in other.note


def test_clocks_that_too_few_collectives_compare_are_called_so_and_the_warning_agrees_with_the_verdict() -> None:
    summary = two_hosts(4)
    assert summary.clocks is not None
    assert "only 4 collectives could be matched (it takes 5)" in summary.clocks.note
    assert "only 4 collectives could be matched" in summary.clocks.hosts[1].note
    assert summary.clocks.hosts[1].offset is None
    assert summary.cross_rank
    (warning,) = (text for text in summary.warnings if "share no time" in text)
    assert "ranks are compared by these" in warning
    apart = two_hosts(0)
    assert not apart.cross_rank
    (warning,) = (text for text in apart.warnings if "share no time" in text)
    assert "not compared" in warning
    assert apart.clocks is not None
    assert "no symmetric collective" in apart.clocks.note
