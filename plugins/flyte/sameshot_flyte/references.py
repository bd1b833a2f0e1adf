"""What tasks hand to each other: small typed values that both Flyte SDKs carry as they are. Large things have URIs."""

from __future__ import annotations

from dataclasses import dataclass, field

from sameshot.steps.results import AnalysisResult, CaptureResult, CompareResult


@dataclass(frozen=True)
class Capture:
    """A capture that is good enough for whoever asked, or (`capture_id` empty) was skipped as asked for.

    `manifest_sha256` is what analyses are cached by. `shards` is what to map `analyze_rank` over.
    """

    capture_id: str = ""
    request_key: str = ""
    job: str = ""
    attempt: int = 0
    series: str = ""
    outcome: str = ""
    manifest_uri: str = ""
    manifest_sha256: str = ""
    expected: int = 0
    archived: int = 0
    missing: str = ""
    shards: list[str] = field(default_factory=list)
    warning: str = ""
    message: str = ""


@dataclass(frozen=True)
class Analysis:
    """A report that was made; times in ns per step, unknown is None."""

    capture_id: str = ""
    manifest_sha256: str = ""
    outcome: str = ""
    expected: int = 0
    analysed: int = 0
    missing: str = ""
    report_uri: str = ""
    summary_uri: str = ""
    history_uri: str = ""
    step_time_ns: int | None = None
    late: str = ""
    trend: str = ""
    findings: list[str] = field(default_factory=list)
    message: str = ""


@dataclass(frozen=True)
class Comparison:
    """A capture against the one before it in its series; `verdict` empty: nothing was compared."""

    verdict: str = ""
    before_capture_id: str = ""
    slowdown: float | None = None
    comparison_uri: str = ""
    sentences: list[str] = field(default_factory=list)
    message: str = ""


def capture_of(result: CaptureResult) -> Capture:
    job = result.job
    return Capture(
        capture_id=result.capture_id,
        request_key=result.request_key,
        job="" if job is None else "/".join(filter(None, (job.namespace, job.name))),
        attempt=0 if job is None else job.attempt,
        series=result.series,
        outcome="" if result.outcome is None else result.outcome.value,
        manifest_uri=result.manifest_uri if result.manifest_sha256 else "",
        manifest_sha256=result.manifest_sha256 or "",
        expected=result.expected,
        archived=result.archived,
        missing=result.missing,
        shards=list(result.shards),
        warning=result.warning,
        message=result.message,
    )


def analysis_of(result: AnalysisResult) -> Analysis:
    return Analysis(
        capture_id=result.capture_id,
        manifest_sha256=result.manifest_sha256,
        outcome=result.outcome.value,
        expected=result.expected,
        analysed=result.analysed,
        missing=result.missing,
        report_uri=result.report_uri,
        summary_uri=result.summary_uri,
        history_uri=result.history_uri,
        step_time_ns=result.headline.step_time_ns,
        late=result.headline.late,
        trend=result.trend,
        findings=list(result.findings),
        message=result.message,
    )


def comparison_of(result: CompareResult) -> Comparison:
    return Comparison(
        verdict=result.verdict.value,
        before_capture_id=result.before_capture_id,
        slowdown=result.slowdown,
        comparison_uri=result.comparison_uri,
        sentences=list(result.sentences),
        message=result.message,
    )
