"""Analysis as steps: `analyze_rank` over shards and `reduce`, or `analyze` for all of it in one process.

    for shard in capture.shards: analyze_rank(manifest, shard, results_uri)    # on any machines, in any order, again
    reduce(manifest, results_uri)                                              # of all of them, or names who lacks

What an engine keeps of tasks outlives what the tasks made: its cache says of a shard that it was analysed when the
summaries were deleted, or made anew with another fetch pattern. So `reduce` is told the pattern and takes no other
summaries, and told which shards `analyze_rank` came back with, it analyses itself what is not there of those.

Both ways write the same below the capture's folder in `results_uri`: summary.json, report.html, tables/*.parquet, the
ranks' summaries (for comparisons later), and a row of the series' history. Everything may be run again.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sameshot.analysis.hta.tables import Rounding, TablePart, tables_of, write_tables
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.load import who
from sameshot.analysis.results import NOT_ANALYSED, RankSummary, Summary
from sameshot.analysis.run import archived, map_manifest, map_targets, write
from sameshot.analysis.text import count, some_of
from sameshot.errors import PartialCapture, SameshotError, TraceError, TryAgain, UsageError
from sameshot.manifest import Target
from sameshot.steps.history import HistoryRow, append, headline_of, read, row_of
from sameshot.steps.history.trend import trend
from sameshot.steps.published import Published, hand_out, open_published
from sameshot.steps.ranks import Lack, RankFolder
from sameshot.steps.results import AnalysisResult, RankResult, fitted, ranges, shortened

if TYPE_CHECKING:
    from sameshot.analysis.report.blocks import Section

Progress = Callable[[int, int, str], None]
"""Called after each rank with (ranks done, ranks in all, the target just done)."""

_MOST_FINDINGS = 3
_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")


def analyze_rank(
    manifest: str,
    shard: str,
    results_uri: str,
    *,
    expected_sha256: str | None = None,
    fetch_pattern: str | None = None,
    progress: Progress | None = None,
) -> RankResult:
    """Summarise the ranks of one shard: of `i/n`, every n-th archived target from the i-th on.

    `manifest` is its path or URI, `expected_sha256` its digest where the caller knows it. What was summarised before an
    error is kept. `fetch_pattern` is that of `sameshot analyze`; all shards need the same.

    Raises UsageError for a shard or a place that is none, VerificationFailed and TraceError where the bytes are not
    what the manifest states (naming the rank), CaptureFailed where nothing is archived, UnknownCapture, ManifestError
    and StorageError.
    """
    split(shard, 0)  # refused before anything is read
    opened = open_published(manifest, results_uri, expected_sha256)
    targets = archived(opened.manifest)
    folder = RankFolder(opened.results, opened.manifest, targets)
    mine = split(shard, len(targets))
    for done, index in enumerate(mine, 1):
        target = targets[index]
        try:
            _map(opened, folder, index, target, shard, fetch_pattern)
        except SameshotError as error:
            if isinstance(error, TraceError) or target.target_id in str(error):
                raise  # it names the rank, and where in its trace
            raise type(error)(f"Analysing {who(target)}: {error}") from error
        if progress is not None:
            progress(done, len(mine), target.target_id)
    return fitted(
        RankResult(
            capture_id=opened.manifest.capture.capture_id,
            manifest_uri=opened.uri,
            manifest_sha256=opened.manifest.sha256,
            shard=shard,
            ranks=ranges(rank for index in mine if (rank := targets[index].identity.rank) is not None),
            summaries_uri=folder.uri,
            message=f"{count(len(mine), 'rank')} of {len(targets)} analysed.",
        )
    )


def reduce(
    manifest: str,
    results_uri: str,
    *,
    expected_sha256: str | None = None,
    fetch_pattern: str | None = None,
    analysed: Sequence[str] = (),
    min_ranks: int | None = None,
    history: bool = True,
    image: str | None = None,
    commit: str | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> AnalysisResult:
    """Make the job-wide summary and report of all ranks that were analysed by `analyze_rank`.

    A rank whose summary is missing or damaged, because its task failed or was killed, or was made with another
    `fetch_pattern` than this one, counts as missing, like one without a trace, and the report names it. Except for the
    shards in `analysed`, with which `analyze_rank` came back: what is not there of those is analysed here, one rank
    after the other. `min_ranks`: so many analysed ranks are enough (None: all of the job); with fewer the result's exit
    code is 3, and all is written all the same. `history`: add the capture's row to its series, and the trend to the
    report. `image` and `commit` are kept with the row. `out`: a local folder for the same summary.json, report.html and
    tables, for engines that take files.

    Raises as `analyze_rank` does (but a trace that can't be analysed here makes its rank a missing one), and
    VerificationFailed where not a single rank was analysed.
    """
    _check(min_ranks)
    for shard in analysed:
        split(shard, 0)
    opened = open_published(manifest, results_uri, expected_sha256)
    targets = archived(opened.manifest)
    folder = RankFolder(opened.results, opened.manifest, targets)
    stored, parts = folder.tables(folder.load_made_with(fetch_pattern))
    known = dict(zip(stored.indices, zip(stored.summaries, parts, strict=True), strict=True))
    if progress is not None and known:
        progress(len(known), len(targets), targets[stored.indices[-1]].target_id)
    lacking = dict(stored.lacking)
    gone = {index: shard for shard in analysed for index in split(shard, len(targets)) if index in lacking}
    for index, shard in sorted(gone.items()):
        try:
            known[index] = _map(opened, folder, index, targets[index], shard, fetch_pattern)
        except (TryAgain, UsageError):  # of no rank
            raise
        except SameshotError as error:
            lacking[index] = folder.failed(index, str(error), shard)
            continue
        del lacking[index]
        if progress is not None:
            progress(len(known), len(targets), targets[index].target_id)
    if not known:
        raise folder.none(lacking)
    found = [known[index] for index in sorted(known)]
    return _finish(
        opened,
        folder,
        [summary for summary, _ in found],
        [part for _, part in found],
        results_uri,
        lacking={targets[index].target_id: lack for index, lack in lacking.items()},
        min_ranks=min_ranks,
        history=history,
        image=image,
        commit=commit,
        out=out,
    )


def analyze(
    manifest: str,
    results_uri: str,
    *,
    expected_sha256: str | None = None,
    min_ranks: int | None = None,
    history: bool = True,
    image: str | None = None,
    commit: str | None = None,
    out: Path | None = None,
    fetch_pattern: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> AnalysisResult:
    """All of it at once: what `analyze_rank` of every shard and then `reduce` write and return.

    `workers` processes read traces, as for `sameshot analyze`. Raises as both do.
    """
    _check(min_ranks)
    if workers is not None and workers < 1:
        raise UsageError(f"workers is {workers}; ask for at least one process, or leave it out.")
    opened = open_published(manifest, results_uri, expected_sha256)
    targets = archived(opened.manifest)
    mapped = map_manifest(
        opened.storage,
        opened.key,
        opened.manifest,
        workers=workers,
        progress=progress,
        tables=Rounding.EXACT,
        fetch_pattern=fetch_pattern,
    )
    folder = RankFolder(opened.results, opened.manifest, targets)
    indexed = list(zip(range(len(targets)), mapped.ranks, mapped.tables, strict=True))
    folder.save(indexed, shard="0/1", fetch_pattern=fetch_pattern)
    return _finish(
        opened,
        folder,
        mapped.ranks,
        mapped.tables,
        results_uri,
        min_ranks=min_ranks,
        history=history,
        image=image,
        commit=commit,
        out=out,
    )


def split(shard: str, of: int) -> range:
    """Which of so many archived targets are in shard `i/n`: every n-th from the i-th on. Raises UsageError. Pure."""
    match = _SHARD.fullmatch(shard)
    if match is None or not int(match[1]) < int(match[2]):
        raise UsageError(f"{shard!r} is no shard; write i/n with i from 0 to n - 1, for example 0/4.")
    return range(int(match[1]), of, int(match[2]))


def _check(min_ranks: int | None) -> None:
    if min_ranks is not None and min_ranks < 1:
        raise UsageError(f"min_ranks is {min_ranks}; ask for at least one rank, or leave it out for all.")


def _map(
    opened: Published, folder: RankFolder, index: int, target: Target, shard: str, fetch_pattern: str | None
) -> tuple[RankSummary, TablePart]:
    """Analyse one target and keep what was found, or why it could not be."""
    try:
        ((_, summary, part),) = map_targets(
            opened.storage, opened.key, [target], tables=Rounding.EXACT, fetch_pattern=fetch_pattern
        )
        assert part is not None  # tables were asked for
        folder.save([(index, summary, part)], shard=shard, fetch_pattern=fetch_pattern)
    except SameshotError as error:
        if not isinstance(error, TryAgain | UsageError):
            folder.note(index, str(error))
        raise
    return summary, part


def _finish(
    opened: Published,
    folder: RankFolder,
    ranks: list[RankSummary],
    parts: Iterable[TablePart],
    results_uri: str,
    *,
    min_ranks: int | None,
    history: bool,
    image: str | None,
    commit: str | None,
    out: Path | None,
    lacking: Mapping[str, Lack] | None = None,
) -> AnalysisResult:
    """The row of history comes last: what it points at is there then. Whatever the history's trouble, the report is
    written first."""
    why = {target: lack.detail for target, lack in (lacking or {}).items()}
    summary = reduce_ranks(opened.manifest, ranks, location=opened.uri, not_analysed=why)
    report = opened.results.uri("report.html")
    row = row_of(summary, opened.manifest, report_uri=report, image=image, commit=commit)
    said, trouble = "", None
    more: list[Section] = []
    if history:
        try:
            said, more = _trend(results_uri, row)
        except SameshotError as error:
            trouble = error
    folder.save_manifest()
    with tempfile.TemporaryDirectory(prefix="sameshot-") as name:
        local = Path(name)
        write_tables(tables_of(list(parts)), local / "tables")
        write(summary, local, more=more)
        opened.results.put_all(local)
        if out is not None:
            hand_out(local, out)
    if trouble is not None:
        raise trouble
    history_uri = append(results_uri, row) if history else ""
    exit_code, message = enough(summary, min_ranks, lacking or {})
    capture = opened.manifest.capture
    return fitted(
        AnalysisResult(
            capture_id=capture.capture_id,
            job=capture.job.ref,
            series=opened.series,
            manifest_uri=opened.uri,
            manifest_sha256=opened.manifest.sha256,
            outcome=capture.outcome,
            expected=summary.expected_ranks,
            analysed=summary.analysed_ranks,
            missing=_missing(summary),
            report_uri=report,
            summary_uri=opened.results.uri("summary.json"),
            history_uri=history_uri,
            headline=headline_of(summary),
            trend=shortened(said),
            findings=tuple(shortened(each.sentence) for each in summary.findings[:_MOST_FINDINGS]),
            exit_code=exit_code,
            message=shortened(message),
        )
    )


def enough(summary: Summary, min_ranks: int | None, lacking: Mapping[str, Lack]) -> tuple[int, str]:
    """Exit code and sentence: are these ranks enough for who asked for `min_ranks` (None: for all)? `lacking`: why
    targets that have a trace were not analysed. Pure."""
    if not summary.missing:
        return 0, f"All {count(summary.expected_ranks, 'rank')} analysed."
    named = list(zip(summary.missing_ranks, summary.missing, strict=True))
    failed = [f"{name} ({each.reason})" for name, each in named if each.reason != NOT_ANALYSED]
    unread = [name for name, each in named if each.reason == NOT_ANALYSED]
    reason = next(
        (f"{shortened(lack.reason, 90)}; once that is mended, " for lack in lacking.values() if lack.reason), ""
    )
    have = f"{summary.analysed_ranks} of {count(summary.expected_ranks, 'rank')} analysed"
    without = "; ".join(
        [
            *([f"not analysed: {some_of(unread)} ({reason}run its analyze_rank again)"] if unread else []),
            *([f"without a verified trace: {some_of(failed)}"] if failed else []),
        ]
    )
    if min_ranks is not None and summary.analysed_ranks >= min_ranks:
        return 0, f"{have}, which is enough (at least {min_ranks} asked for); {without}."
    needed = "all are needed" if min_ranks is None else f"at least {min_ranks} are needed"
    return PartialCapture.exit_code, f"{have}, {needed}; {without}. The report of the others is written."


def _missing(summary: Summary) -> str:
    """Ranks, and targets where no rank is known."""
    known = ranges(each.rank for each in summary.missing if each.rank is not None)
    unknown = [each.target_id for each in summary.missing if each.rank is None]
    return shortened(", ".join([*([known] if known else []), *unknown]))


def _trend(results_uri: str, row: HistoryRow) -> tuple[str, list[Section]]:
    """What the series says with this capture in it: a sentence, and a section for the report."""
    from sameshot.steps.history.section import section

    found = read(results_uri, row.namespace, row.series)
    known = [each for each in found.rows if each.capture_id != row.capture_id]
    shown = section([*known, row], current=row.capture_id, warnings=found.warnings)
    return trend([*known, row]).sentence, [] if shown is None else [shown]
