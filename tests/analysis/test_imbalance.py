"""How unevenly ranks are loaded."""

from __future__ import annotations

import msgspec
from hand_made import rank, reduced
from make_job import GpuJob, Slow
from planted import verdict

from sameshot.analysis.job.imbalance import imbalance
from sameshot.analysis.results import DeviceTimes, PartTimes, RankSummary

MS = 1_000_000


def loaded(number: int, compute: int, *, window: int = 1000) -> RankSummary:
    """Times in ms."""
    one = rank(number, (), ())
    return msgspec.structs.replace(
        one,
        window_end_ns=one.window_start_ns + window * MS,
        parts=PartTimes(operators=compute * MS, untraced=(window - compute) * MS),
        device=DeviceTimes(
            compute=compute * MS, communication=0, memory=0, idle=(window - compute) * MS, kernels=1, overlapped=0
        ),
    )


def test_the_maximum_is_compared_with_the_median_and_its_rank_is_named() -> None:
    rows = {
        row.measure: row for row in reduced([loaded(i, ms) for i, ms in enumerate((400, 500, 420, 410, 400))]).imbalance
    }
    row = rows["GPU computing"]
    assert (row.median, row.maximum, row.label, row.ranks) == (410 * MS, 500 * MS, "rank 1", 5)
    assert row.excess == round(90 / 410, 4)
    assert rows["GPU idle"].label == "rank 0"
    assert rows["main thread in operators"].maximum == 500 * MS


def test_measures_that_do_not_differ_or_are_not_known_have_no_row() -> None:
    rows = {row.measure for row in reduced([loaded(i, 400) for i in range(3)]).imbalance}
    assert rows == set()
    one = [loaded(0, 400), msgspec.structs.replace(loaded(1, 500), device=None)]
    assert {row.measure for row in imbalance(one, ["a", "b"])} == {"main thread in operators", "main thread untraced"}
    assert imbalance(one[:1], ["a"]) == []


def test_a_longer_recording_is_not_more_work() -> None:
    assert imbalance([loaded(0, 400), loaded(1, 800, window=2000), loaded(2, 400)], ["a", "b", "c"]) == []


def test_the_step_time_and_the_wait_for_data_are_compared_too() -> None:
    summary = verdict(GpuJob(steps=10, slow=(Slow(3, "data", 8.0),)))
    rows = {row.measure: row for row in summary.imbalance}
    assert rows["data wait"].label == "rank 3"
    assert rows["data wait"].ranks == 8
    assert rows["main thread in the DataLoader"].label == "rank 3"
    assert rows["step time"].excess is not None
    assert rows["step time"].excess < 0.2, "all ranks of a synchronous job take the same time per step"
