"""What travels between tasks stays below 2 KB, whatever the job's size and names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gloo_job import GlooJob, archive
from hypothesis import example, given
from hypothesis import strategies as st

from sameshot.manifest import Target
from sameshot.model import Failure, FailureReason, Identity, JobRef, Outcome
from sameshot.steps.analyze import analyze, analyze_rank
from sameshot.steps.compare import compare
from sameshot.steps.results import (
    TEXT_LIMIT,
    AnalysisResult,
    CompareResult,
    CompareVerdict,
    Headline,
    RankResult,
    fitted,
    ranges,
    to_builtins,
    to_json,
)

LIMIT = 2048


def sizes(result: Any) -> list[int]:
    """In bytes: as JSON in UTF-8, and with everything but ASCII escaped, as some engines do."""
    return [len(to_json(result)), len(json.dumps(to_builtins(result)))]


names = st.text("abcdefghij0123456789.-", min_size=1, max_size=63)
texts = st.text(max_size=TEXT_LIMIT)
ranks = st.sets(st.integers(0, 4095)).map(ranges)
places = st.integers(0, 52).map(lambda length: "s3://bucket/" + "p" * length)


@given(names, names, places, st.lists(texts, max_size=3), texts, texts, ranks, ranks)
@example(
    "n" * 32,
    "j" * 63,
    "s3://" + "p" * 59,
    ["−" * 240] * 3,
    "−" * 240,
    "µ" * 240,
    ranges(range(0, 4096, 2)),
    ranges(range(0, 4096, 3)),
)
def test_an_analysis_fits_with_its_addresses_whole_and_its_verdict_readable(
    namespace: str, job: str, place: str, findings: list[str], trend: str, message: str, missing: str, late: str
) -> None:
    uri = f"{place}/captures/{namespace}/{job}/0/{'f' * 32}/report.html"
    result = AnalysisResult(
        capture_id="f" * 32,
        job=JobRef(namespace, job, "u" * 36, 17),
        series=job,
        manifest_uri=uri,
        manifest_sha256="a" * 64,
        outcome=Outcome.PARTIAL,
        expected=4096,
        analysed=2048,
        missing=missing,
        report_uri=uri,
        summary_uri=uri,
        history_uri=uri,
        headline=Headline(
            step_time_ns=10**10,
            step_spread_ns=10**10,
            steps=10**6,
            gpu_busy_share=1 / 3,
            communication_exposed_share=1 / 3,
            data_wait_share=1 / 3,
            host_bound_share=1 / 3,
            waiting_ns=10**10,
            late=late,
            lateness="unknown",
        ),
        trend=trend,
        findings=tuple(findings),
        exit_code=3,
        message=message,
    )
    found = fitted(result)
    assert max(sizes(found)) < LIMIT
    kept = ("capture_id", "job", "manifest_uri", "report_uri", "summary_uri", "history_uri", "exit_code")
    assert all(getattr(found, name) == getattr(result, name) for name in kept)
    assert found.headline.step_time_ns == 10**10
    assert bool(found.message) == bool(message)
    if max(sizes(result)) < 1900:
        assert found == result  # nothing is cut without need


@given(names, places, st.lists(texts, max_size=3), texts)
def test_a_comparison_fits(job: str, place: str, sentences: list[str], message: str) -> None:
    uri = f"{place}/captures/local/{job}/0/{'f' * 32}/comparison.html"
    found = fitted(
        CompareResult(
            series=job,
            before_capture_id="b" * 32,
            before_manifest_uri=uri,
            after_capture_id="f" * 32,
            after_manifest_uri=uri,
            verdict=CompareVerdict.REGRESSED,
            threshold=0.1,
            slowdown=1 / 3,
            step_before_ns=10**10,
            step_after_ns=10**10,
            comparison_uri=uri,
            sentences=tuple(sentences),
            message=message,
        )
    )
    assert max(sizes(found)) < LIMIT
    assert found.verdict is CompareVerdict.REGRESSED


@given(st.sets(st.integers(0, 10**6), max_size=500))
def test_ranks_as_text_are_bounded_and_not_cut_without_a_sign(ranks: set[int]) -> None:
    text = ranges(ranks)
    assert len(text) <= TEXT_LIMIT
    if not text.endswith("…"):
        read = set()
        for piece in filter(None, text.split(", ")):
            low, _, high = piece.partition("-")
            read |= set(range(int(low), int(high or low) + 1))
        assert read == ranks


def test_what_fits_is_not_touched() -> None:
    small = RankResult(
        capture_id="c", manifest_uri="m", manifest_sha256="s", shard="0/1", ranks="0-3", summaries_uri="u", message="ok"
    )
    assert fitted(small) is small


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 4,096 ranks, of which three have traces and every name is as long as Kubernetes allows."""
    pod = "p" * 55
    traces = dict(zip((0, 2, 4), GlooJob(seed=1, ranks=3).traces().values(), strict=True))
    missing = tuple(
        Target(
            f"{pod}-{rank}/main/0",
            Identity(rank=rank, pod=f"{pod}-{rank}", node="n" * 63),
            failure=Failure(
                FailureReason.AGENT_UNREACHABLE, f"node {'n' * 63} did not answer for 60 s; it may be gone"
            ),
        )
        for rank in range(4096)
        if rank not in traces
    )
    folder = tmp_path_factory.mktemp("large")
    return archive(folder / "archive", traces, failures=missing, world_size=4096)


def test_the_results_of_a_job_of_4096_ranks_with_long_names_fit(large: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    rank = analyze_rank(str(large), "0/1", str(results))
    whole = analyze(str(large), str(results))
    compared = compare(str(large), str(results))
    assert max(sizes(rank) + sizes(whole) + sizes(compared)) < LIMIT
    assert (whole.exit_code, whole.expected, whole.analysed) == (3, 4096, 3)
    assert whole.missing.startswith("1, 3, 5-")
    assert "3 of " in whole.message
    assert "AGENT_UNREACHABLE" in whole.message
