"""What Flyte's tasks hand to each other: plain values, of a bounded size, which say nothing that is not known."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from sameshot.model import JobRef, Outcome
from sameshot.steps.results import AnalysisResult, CaptureResult, CompareResult, CompareVerdict, Headline, fitted
from sameshot_flyte.references import Analysis, Capture, Comparison, analysis_of, capture_of, comparison_of

JOB = JobRef("ml", "bert", "u1", 2)
CAPTURED = CaptureResult(
    capture_id="0" * 32,
    request_key="flyte/ml/development/f1d2/n0/-1",
    n=1,
    job=JOB,
    series="nightly",
    outcome=Outcome.PARTIAL,
    published=True,
    manifest_uri="s3://archive/ml/bert/2/0/manifest.json",
    manifest_sha256="a" * 64,
    expected=4,
    archived=3,
    missing="2",
    shards=("0/2", "1/2"),
    message="3 of 4 ranks have a verified trace.",
    warning="1 of 4 ranks of bert have no verified trace: 2.",
)


def test_a_capture_that_is_good_enough() -> None:
    assert capture_of(CAPTURED) == Capture(
        capture_id="0" * 32,
        request_key="flyte/ml/development/f1d2/n0/-1",
        job="ml/bert",
        attempt=2,
        series="nightly",
        outcome="PARTIAL",
        manifest_uri="s3://archive/ml/bert/2/0/manifest.json",
        manifest_sha256="a" * 64,
        expected=4,
        archived=3,
        missing="2",
        shards=["0/2", "1/2"],
        warning="1 of 4 ranks of bert have no verified trace: 2.",
        message="3 of 4 ranks have a verified trace.",
    )


def test_a_skipped_one_has_nothing_to_analyse() -> None:
    skipped = capture_of(CaptureResult(request_key="k", message="Skipped: it has ended."))
    assert skipped == Capture(request_key="k", message="Skipped: it has ended.")
    assert (skipped.manifest_uri, skipped.shards, skipped.outcome) == ("", [], "")


def test_what_was_not_read_has_no_address_that_an_analysis_would_cache_by() -> None:
    unread = dataclasses.asdict(capture_of(CaptureResult(capture_id="0" * 32, manifest_uri="s3://a/manifest.json")))
    assert (unread["manifest_uri"], unread["manifest_sha256"]) == ("", "")


def test_a_report_leaves_open_what_is_not_known() -> None:
    result = AnalysisResult(
        capture_id="0" * 32,
        job=JOB,
        manifest_uri="m",
        manifest_sha256="a" * 64,
        outcome=Outcome.SUCCEEDED,
        expected=4,
        analysed=4,
        report_uri="s3://r/report.html",
        summary_uri="s3://r/summary.json",
        headline=Headline(),
    )
    made = analysis_of(result)
    assert made == Analysis(
        capture_id="0" * 32,
        manifest_sha256="a" * 64,
        outcome="SUCCEEDED",
        expected=4,
        analysed=4,
        report_uri="s3://r/report.html",
        summary_uri="s3://r/summary.json",
    )
    assert made.step_time_ns is None  # never 0


def test_a_comparison_leaves_open_what_is_not_known() -> None:
    result = CompareResult(
        after_capture_id="0" * 32, after_manifest_uri="m", verdict=CompareVerdict.FIRST, threshold=0.1, message="None."
    )
    made = comparison_of(result)
    assert made == Comparison(verdict="first", message="None.")
    assert made.slowdown is None


@pytest.mark.parametrize("kind", [Capture, Analysis, Comparison])
def test_they_are_plain_values_with_defaults(kind: Any) -> None:
    plain = dataclasses.asdict(kind())
    assert kind(**json.loads(json.dumps(plain))) == kind()
    assert dataclasses.fields(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().message = "x"


def test_a_capture_of_thousands_of_ranks_stays_small() -> None:
    large = fitted(
        CaptureResult(
            capture_id="0" * 32,
            request_key="flyte/" + "k" * 200,
            job=JobRef("n" * 32, "j" * 63, "u" * 36, 0),
            series="s" * 63,
            outcome=Outcome.PARTIAL,
            manifest_uri=f"s3://{'b' * 63}/{'n' * 32}/{'j' * 63}/0/{'0' * 32}/manifest.json",
            manifest_sha256="a" * 64,
            expected=4096,
            archived=2048,
            missing="0, 2, 4" * 30,
            shards=tuple(f"{index}/64" for index in range(64)),
            warning="w" * 240,
            message="m" * 240,
        )
    )
    assert len(json.dumps(dataclasses.asdict(capture_of(large)))) < 2048
