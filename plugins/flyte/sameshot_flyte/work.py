"""What the analysis tasks do, whichever SDK runs them: the engine-neutral steps, and what of them tasks hand out.

    made = reduce(manifest_uri, manifest_sha256, results, out=folder)   # folder: a local one of the task's own
    publish(made.page)                                                  # the Deck, also of a report that lacks ranks
    made.accept()                                                       # raises where too few ranks were analysed

`manifest_uri` empty is a capture that was skipped as asked for: there is nothing to do, which is said in words. What
says nothing in a form is a value here, too: 0 (`min_ranks`: all), the empty text, a negative threshold (no comparison).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from sameshot.errors import PartialCapture, SameshotError, UsageError
from sameshot.steps import analyze as steps
from sameshot.steps.compare import compare as compare_step
from sameshot.steps.contract import retryable
from sameshot.steps.results import AnalysisResult
from sameshot_flyte.references import Analysis, Comparison, analysis_of, comparison_of

NOTHING_CAPTURED = "There is no digest of a manifest: the capture was skipped, so there is nothing to analyse."
"""As of a capture that was told to skip. Said of the digest, since a cache's key has that, and no address."""
NO_COMPARISON = "No threshold was given, so nothing is compared."


@dataclass(frozen=True)
class Made:
    """A report: what is said of it, its page, and one row per rank (`ROWS` names the columns). `job` is whose it is,
    `lacking` says of ranks that have a trace why they are not in it, and what to do."""

    analysis: Analysis
    page: str
    report: Path
    rows: list[dict[str, Any]]
    exit_code: int = 0
    job: str = ""
    lacking: tuple[str, ...] = ()

    def accept(self) -> Analysis:
        """Raises PartialCapture where more ranks are needed: no other attempt finds more in the same manifest."""
        if self.exit_code == PartialCapture.exit_code:
            found = self.analysis
            raise PartialCapture(
                f"Capture {found.capture_id} of job {self.job}: {found.message} It is {found.report_uri}. "
                + " ".join(self.lacking[:_MOST_LACKING])
            )
        return self.analysis


_MOST_LACKING = 3  # of which an error says all; the report does of each
_NOT_ANALYSED = "NOT_ANALYSED"  # reason in a summary.json: there is a trace (docs/summary.md)


@dataclass(frozen=True)
class Compared:
    comparison: Comparison
    page: str
    report: Path


def recoverable(error: SameshotError) -> bool:
    """Whether another attempt of an analysis may end better: it reads the same manifest and the same traces again."""
    return retryable(error, reads_only=True)


def analyze_rank(manifest_uri: str, manifest_sha256: str, results: str, shard: str, *, fetch_pattern: str = "") -> str:
    """Summarise the ranks of one shard, and return it: `reduce` is given those that came back, as `analysed`."""
    if _captured(manifest_uri, manifest_sha256):
        steps.analyze_rank(
            manifest_uri, shard, results, expected_sha256=manifest_sha256, fetch_pattern=fetch_pattern or None
        )
    return shard


def reduce(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    *,
    out: Path,
    analysed: Sequence[str | None] = (),
    fetch_pattern: str = "",
    min_ranks: int = 0,
    history: bool = True,
    trained_image: str = "",
    commit: str = "",
) -> Made:
    """The report of all ranks that were analysed; the others are named, and counted as missing.

    A cache may know ranks whose summaries are gone, or were made with another `fetch_pattern` since, so what is not
    there of the shards in `analysed` is analysed here. None in it is a shard that failed.
    """
    if not _captured(manifest_uri, manifest_sha256):
        return _nothing(out)
    result = steps.reduce(
        manifest_uri,
        results,
        expected_sha256=manifest_sha256,
        out=out,
        analysed=[shard for shard in analysed if shard],
        fetch_pattern=fetch_pattern or None,
        **_wishes(min_ranks, history, trained_image, commit),
    )
    return _made(result, out)


def analyze(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    *,
    out: Path,
    min_ranks: int = 0,
    history: bool = True,
    trained_image: str = "",
    commit: str = "",
    fetch_pattern: str = "",
    workers: int = 0,
) -> Made:
    """All of it in one process. `workers` 0: one, more for large traces."""
    if not _captured(manifest_uri, manifest_sha256):
        return _nothing(out)
    result = steps.analyze(
        manifest_uri,
        results,
        expected_sha256=manifest_sha256,
        out=out,
        fetch_pattern=fetch_pattern or None,
        workers=workers or None,
        **_wishes(min_ranks, history, trained_image, commit),
    )
    return _made(result, out)


def compare(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    *,
    out: Path,
    threshold: float,
    before: str = "",
    accept_partial: bool = False,
    min_ranks: int = 0,
) -> Compared:
    """Against the capture before it in its series, or that at `before`. A verdict is a finding, never a failure."""
    if threshold < 0:
        return _uncompared(NO_COMPARISON, out)
    if not _captured(manifest_uri, manifest_sha256):
        return _uncompared(NOTHING_CAPTURED, out)
    result = compare_step(
        manifest_uri,
        results,
        expected_sha256=manifest_sha256,
        out=out,
        threshold=threshold,
        before=before or None,
        accept_partial=accept_partial,
        min_ranks=min_ranks or None,
    )
    comparison, report = comparison_of(result), out / "comparison.html"
    if not report.exists():  # there is no earlier capture
        return _uncompared(result.message, out, comparison)
    return Compared(comparison, report.read_text(), report)


def _captured(manifest_uri: str, manifest_sha256: str) -> bool:
    """Raises UsageError for one without the other: of a manifest without its digest a cache would know what it is for
    any other, and of a digest without its manifest that there is nothing to do."""
    if manifest_sha256 and not manifest_uri:
        raise UsageError(
            f"Where the manifest with the digest {manifest_sha256} is, is not given. It is the `manifest_uri` of the "
            "capture; only where nothing was captured are both empty."
        )
    if manifest_uri and not manifest_sha256:
        raise UsageError(
            f"The digest of the manifest at {manifest_uri} is not given. Analyses are cached by it, so it is needed: "
            "it is the field `sha256` of the manifest, and `manifest_sha256` of the capture."
        )
    return bool(manifest_uri)


def _wishes(min_ranks: int, history: bool, trained_image: str, commit: str) -> dict[str, Any]:
    return {
        "min_ranks": min_ranks or None,
        "history": history,
        "image": trained_image or None,
        "commit": commit or None,
    }


def _made(result: AnalysisResult, out: Path) -> Made:
    report = out / "report.html"
    summary = json.loads((out / "summary.json").read_bytes())
    return Made(
        analysis_of(result),
        report.read_text(),
        report,
        rank_rows(summary),
        result.exit_code,
        f"{result.job.namespace}/{result.job.name}",
        tuple(f"{_label(each)}: {each['detail']}" for each in summary["missing"] if each["reason"] == _NOT_ANALYSED),
    )


def _nothing(out: Path) -> Made:
    report = _note(NOTHING_CAPTURED, out / "report.html")
    return Made(Analysis(message=NOTHING_CAPTURED), report.read_text(), report, [])


def _uncompared(why: str, out: Path, comparison: Comparison | None = None) -> Compared:
    report = _note(why, out / "comparison.html")
    return Compared(comparison or Comparison(message=why), report.read_text(), report)


def note(text: str) -> str:
    """A page that only says this."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f'<title>sameshot</title><link rel="icon" href="data:,"><p style="font-family:sans-serif">{escape(text)}</p>\n'
    )


def _note(text: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(note(text))
    return path


_FACTS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "rank": (int, ("rank",)),
    "label": (str, ("label",)),
    "node": (str, ("node",)),
    "pod": (str, ("pod",)),
    "missing": (str, ("reason",)),
    "window_ns": (int, ("window_ns",)),
    "steps": (int, ("step_count",)),
    "step_ns": (int, ("step_time", "median_ns")),
    "step_p10_ns": (int, ("step_time", "p10_ns")),
    "step_p90_ns": (int, ("step_time", "p90_ns")),
    "waited_ns": (int, ("waited_ns",)),
    "last_arrivals": (int, ("last_arrivals",)),
    "lateness_per_step_ns": (int, ("lateness_per_step_ns",)),
    "operators_ns": (int, ("parts", "operators_ns")),
    "communication_ns": (int, ("parts", "communication_ns")),
    "data_wait_ns": (int, ("parts", "data_wait_ns")),
    "runtime_ns": (int, ("parts", "runtime_ns")),
    "backward_thread_ns": (int, ("parts", "backward_thread_ns")),
    "untraced_ns": (int, ("parts", "untraced_ns")),
    "device_compute_ns": (int, ("device", "compute_ns")),
    "device_communication_ns": (int, ("device", "communication_ns")),
    "device_memory_ns": (int, ("device", "memory_ns")),
    "device_idle_ns": (int, ("device", "idle_ns")),
    "events": (int, ("trace", "events")),
}
"""Columns of the table of ranks: their type, and where in summary.json (docs/summary.md) each is found."""

ROWS: Mapping[str, type] = {name: kind for name, (kind, _) in _FACTS.items()}


def table(rows: list[dict[str, Any]]) -> Any:
    """`Made.rows` as an arrow table, also of no rows with all columns."""
    import pyarrow as pa

    kinds = {int: pa.int64(), str: pa.string()}
    return pa.Table.from_pylist(rows, pa.schema([(name, kinds[kind]) for name, kind in ROWS.items()]))


def rank_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each rank of the job, analysed or `missing` (the reason): `ranks` and `missing` of a summary.json,
    flat. None where it is unknown or does not apply. Pure."""
    found = [*summary["ranks"], *({"label": _label(each), **each} for each in summary["missing"])]
    rows = [{name: _at(each, path) for name, (_, path) in _FACTS.items()} for each in found]
    return sorted(rows, key=lambda row: (row["rank"] is None, row["rank"] or 0))


def _label(missing: Mapping[str, Any]) -> str:
    return str(missing["target_id"]) if missing["rank"] is None else f"rank {missing['rank']}"


def _at(facts: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        facts = facts.get(name) if isinstance(facts, Mapping) else None
    return facts
