"""The events that the report names as evidence are the ones in the trace, and the waits are theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gloo_job import GlooJob, archive

from sameshot.analysis import analyze

MS = 1_000_000


def test_the_costliest_moments_point_at_the_events_on_both_sides(tmp_path: Path) -> None:
    traces = GlooJob(seed=1, late={2: 30.0}, buckets=2).traces()
    summary = analyze(str(archive(tmp_path / "capture", traces)), None)
    assert len(summary.moments) == 24
    costs = [moment.waiting for moment in summary.moments]
    assert costs == sorted(costs, reverse=True)
    assert {moment.last for moment in summary.moments} == {"rank 2"}
    for moment in summary.moments:
        late = spans(traces, moment.last)[moment.event]
        victim = spans(traces, moment.victim)[moment.victim_event]
        assert late["name"] == victim["name"] == "gloo:all_reduce"
        assert moment.kind == "all_reduce"
        assert ns(late["dur"]) == moment.transfer
        assert ns(victim["dur"]) - ns(late["dur"]) == moment.victim_wait
        assert ns(late["ts"]) - first(traces, moment.last) == moment.start
        assert ns(victim["ts"]) - first(traces, moment.victim) == moment.victim_start
        # The collective that ends at the same moment on every rank, up to the skew of ends.
        same = [
            min(spans(traces, f"rank {rank}").values(), key=lambda event: abs(end(event) - end(late)))
            for rank in range(4)
        ]
        assert moment.waiting == sum(ns(event["dur"]) - ns(late["dur"]) for event in same)


def test_where_nobody_comes_last_by_more_than_noise_there_is_no_moment(tmp_path: Path) -> None:
    calm = GlooJob(seed=1, jitter=0.0, skew=0.01).traces()
    assert analyze(str(archive(tmp_path / "capture", calm)), None).moments == ()


def spans(traces: dict[int, dict[str, Any]], label: str) -> dict[int | None, dict[str, Any]]:
    events = traces[int(label.removeprefix("rank "))]["traceEvents"]
    return {index: event for index, event in enumerate(events) if event["name"] == "gloo:all_reduce"}


def first(traces: dict[int, dict[str, Any]], label: str) -> int:
    return min(ns(event["ts"]) for event in traces[int(label.removeprefix("rank "))]["traceEvents"])


def end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def ns(us: float) -> int:
    return round(us * 1000)
