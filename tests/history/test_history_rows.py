"""What a row says of a capture: facts of its manifest, numbers of its summary, and nothing about the analysis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from history_lab import row
from hypothesis import given
from hypothesis import strategies as st
from made_up import full
from make_job import GpuJob, Slow
from manifests import START_NS, archived, failed, make_capture
from planted import manifest_for, mapped, verdict

from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.results import DataWait, DeviceTimes, HostBound, Spread, Summary, Verdict
from sameshot.errors import UsageError
from sameshot.manifest import Job, Provenance, build
from sameshot.model import Activity, CaptureSpec, Outcome
from sameshot.steps.history import captured_at, headline_of, row_of
from sameshot.steps.history.row import canonical

MS = 1_000_000


def of_ranks(change: Callable[[int], dict[str, Any]], **fields: Any) -> Summary:
    """A made-up summary of two ranks, with these fields instead."""
    made = full(3)
    return msgspec.structs.replace(
        made,
        ranks=tuple(msgspec.structs.replace(rank, **change(number)) for number, rank in enumerate(made.ranks[:2])),
        **fields,
    )


def device(busy: int, communication: int, whole: int = 1000) -> DeviceTimes:
    return DeviceTimes(busy - communication - 10, communication, 10, whole - busy, 3, 0)


def wait(raw: int, felt: int | None) -> DataWait:
    return DataWait("dataloader", 3, raw, felt, None, 0, 0.5, None, None, None, "")


def test_the_numbers_are_these_by_hand() -> None:
    """Two ranks: windows of 1000 and 3000, GPU time 1000 and 3000, of which busy 600 and 2400."""
    summary = of_ranks(
        lambda number: {
            "window": (1000, 3000)[number],
            "device": (device(600, 100), device(2400, 500, 3000))[number],
            "data_wait": (wait(90, 100), wait(400, 300))[number],
            "host_bound": HostBound((40, 360)[number], 0.1, 5, (), ()),
            "waited": (50, 150)[number],
        },
        device=DeviceTimes(490 + 1890, 600, 20, 400 + 600, 6, 0),
        step_time=Spread(40, 100, 90, 130, 80, 200),
        waiting=200,
    )
    found = headline_of(summary)
    assert (found.step_time_ns, found.step_spread_ns, found.steps) == (100, 40, 40)
    assert found.gpu_busy_share == pytest.approx(3000 / 4000)
    assert found.communication_exposed_share == pytest.approx(600 / 4000)
    assert found.data_wait_share == pytest.approx(400 / 4000), "what the GPU felt, not the time in the fetch"
    assert found.host_bound_share == pytest.approx(400 / 4000)
    assert found.waiting_ns == 5, "a twentieth of the time, of steps of 100"
    assert (found.late, found.lateness) == ("2", "late")


def test_without_a_gpu_data_wait_is_the_time_in_the_fetch_and_gpu_numbers_are_unknown() -> None:
    summary = of_ranks(
        lambda number: {
            "window": 1000, "device": None, "host_bound": None, "waited": None,
            "data_wait": wait(250, None) if number else None,
        },
        device=None, waiting=None,
    )  # fmt: skip
    found = headline_of(summary)
    assert found.data_wait_share == 0.25, "of the rank in which fetches were seen"
    unknown = (found.gpu_busy_share, found.communication_exposed_share, found.host_bound_share, found.waiting_ns)
    assert unknown == (None, None, None, None)


def test_what_nobody_measured_is_unknown_and_never_zero() -> None:
    summary = of_ranks(
        lambda _: {"device": None, "data_wait": None, "host_bound": None, "waited": None},
        device=None, waiting=700 * MS, step_time=None,
    )  # fmt: skip
    found = headline_of(summary)
    assert found.steps == 0
    assert found.step_time_ns is found.step_spread_ns is found.data_wait_share is found.waiting_ns is None
    one = headline_of(msgspec.structs.replace(summary, step_time=Spread(1, 5, 5, 5, 5, 5)))
    assert (one.step_time_ns, one.step_spread_ns, one.steps) == (5, None, 1), "one step has no spread"
    assert headline_of(msgspec.structs.replace(summary, waiting=None)).waiting_ns is None


def test_nobody_late_is_an_empty_list_with_the_verdict_beside_it() -> None:
    made = full(3)
    calm = msgspec.structs.replace(made.late, verdict=Verdict.NONE, ranks=())
    found = headline_of(msgspec.structs.replace(made, late=calm))
    assert (found.late, found.lateness) == ("", "none")
    late = made.late.ranks[0]
    several = tuple(
        msgspec.structs.replace(late, rank=number, label=f"rank {number}" if number is not None else "pod-x/main/0")
        for number in (7, 0, None, 1)
    )
    many = msgspec.structs.replace(made.late, ranks=several)
    assert headline_of(msgspec.structs.replace(made, late=many)).late == "0-1, 7, pod-x/main/0"


def test_step_time_and_waiting_are_those_of_a_simulated_job_whose_truth_is_known() -> None:
    """Rank 1 fetches 8 ms longer: the others wait about that long in each step."""
    job = GpuJob(hosts=1, gpus=4, steps=20, slow=(Slow(rank=1, cause="data", ms=8),), jitter=0.2, seed=4)
    run = job.run()
    ranks = mapped(run)
    found = headline_of(reduce_ranks(manifest_for(run, ranks), ranks))
    truth = run.truth
    steps = np.diff(truth.edges, axis=1)
    assert found.step_time_ns == pytest.approx(float(np.median(steps)), rel=0.02)
    waited = sum(
        float((arrival.max(axis=1, keepdims=True) - arrival).sum())
        for arrival in truth.arrival.values()
        if len(arrival)
    )
    assert found.waiting_ns == pytest.approx(waited / steps.size, rel=0.15)
    assert (found.waiting_ns or 0) > 5 * MS, "three of four ranks wait some 8 ms, and a little elsewhere"
    assert (found.late, found.lateness) == ("1", "late")


def test_a_calm_job_has_a_step_time_and_hardly_any_waiting() -> None:
    found = headline_of(verdict(GpuJob(hosts=1, gpus=4, steps=20, periodic=True)))
    assert found.step_time_ns is not None
    assert found.late == ""
    assert found.waiting_ns is not None
    assert found.waiting_ns < 0.02 * found.step_time_ns


# -- the facts


def test_a_row_repeats_what_the_manifest_says_and_knows_nothing_of_the_analysis() -> None:
    manifest = build(
        make_capture(
            job=Job("team", "bert-x7", "uid", 2, "bert"), world_size=3, outcome=Outcome.PARTIAL,
            frozen_at="2026-09-21T14:13:18.25Z",
        ),
        [archived(0), archived(1), failed(2)],
    )  # fmt: skip
    made = full(3, missing=1)
    first = row_of(made, manifest, report_uri="https://r/1", image="img", commit="")
    later = row_of(
        msgspec.structs.replace(made, generated_at="2030-01-01T00:00:00Z"),
        manifest,
        report_uri="https://r/1",
        image="img",
    )
    assert first == later
    assert (first.namespace, first.series, first.job, first.job_uid, first.attempt) == (
        "team",
        "bert",
        "bert-x7",
        "uid",
        2,
    )
    assert (first.capture_id, first.captured_at) == ("0192f0c1", "2026-09-21T14:13:18.250000Z")
    assert (first.manifest_uri, first.manifest_sha256) == (made.capture.manifest, manifest.sha256)
    assert (first.outcome, first.expected_ranks, first.analysed_ranks, first.world_size) == (Outcome.PARTIAL, 4, 3, 3)
    assert (first.image, first.commit, first.report_uri) == ("img", None, "https://r/1")
    assert first.headline == headline_of(made)
    assert (first.activities, first.with_stack, first.duration_ms) == ("cpu,cuda", False, 1000)


def test_a_row_says_what_the_capture_was_recorded_with() -> None:
    spec = CaptureSpec(duration_ms=3000, activities=(Activity.CUDA, Activity.CPU), with_stack=True, with_flops=True)
    found = row_of(full(3), build(make_capture(spec=spec, world_size=1), [archived(0)]))
    assert (found.activities, found.duration_ms) == ("cpu,cuda", 3000)
    flags = (found.with_stack, found.record_shapes, found.profile_memory, found.with_flops)
    assert flags == (True, False, False, True)
    imported = row_of(
        full(3), build(make_capture(spec=None, provenance=Provenance.IMPORTED, world_size=1), [archived(0)])
    )
    assert (imported.activities, imported.with_stack, imported.duration_ms) == (None, None, None)


def test_a_job_without_a_series_is_its_own() -> None:
    manifest = build(make_capture(job=Job("team", "bert-x7", "uid", 0, None)), [archived(0), archived(1)])
    assert row_of(full(3), manifest).series == "bert-x7"


def test_imported_traces_were_captured_when_the_first_window_began_not_when_they_were_imported() -> None:
    capture = make_capture(
        provenance=Provenance.IMPORTED, frozen_at=None, start_at_ns=None, spec=None, converged_at="2030-01-01T00:00:00Z"
    )
    # START_NS, cut to µs, by date -u -d @1790000000
    assert captured_at(build(capture, [archived(0), archived(1)])) == "2026-09-21T14:13:20.000000Z"
    assert START_NS // 1000 == 1_790_000_000_000_000
    nothing = msgspec.structs.replace(capture, outcome=Outcome.FAILED)
    assert captured_at(build(nothing, [failed(0), failed(1)])) == "2030-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("given_as", "kept_as"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000Z"),
        ("2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.500000Z"),
        ("2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123456Z"),
        ("2026-01-31T13:30:00+01:30", "2026-01-31T12:00:00.000000Z"),
    ],
)
def test_moments_are_kept_in_one_form_so_that_they_sort_as_texts(given_as: str, kept_as: str) -> None:
    assert row(captured_at=given_as).captured_at == kept_as


@pytest.mark.parametrize("moment", ["", "yesterday", "2026-01-31", "2026-01-31T12:00:00", "0001-01-01T00:00:00+14:00"])
def test_what_is_no_moment_in_utc_is_refused(moment: str) -> None:
    with pytest.raises(UsageError, match="no moment"):
        row(captured_at=moment)


@pytest.mark.parametrize("field", ["namespace", "series", "capture_id"])
def test_a_row_that_could_not_be_found_again_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match="is empty"):
        row(**{field: ""})


@given(st.lists(st.datetimes(timezones=st.timezones()), min_size=2, max_size=5))
def test_canonical_moments_sort_as_the_moments_do(moments: list[Any]) -> None:
    known = [each for each in moments if 2 < each.year < 9998]
    ordered = sorted(known, key=lambda each: each.timestamp())
    texts = [canonical(each.isoformat()) for each in ordered]
    assert all(a <= b for a, b in itertools.pairwise(texts))
