"""A capture against an earlier one of its series: did a step get slower, by more than noise, by more than is allowed?

Training jobs get a new name per run, so what is compared with is found in the history, by series. The stored summaries
of the ranks are enough: the raw traces of the earlier capture may be gone.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sameshot.analysis.compare import Change, Comparison, Outcome, Side
from sameshot.analysis.compare import compare as compare_sides
from sameshot.analysis.compare.run import write
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.results import RankSummary
from sameshot.analysis.run import archived, map_capture
from sameshot.analysis.text import percent, some_of
from sameshot.errors import CaptureFailed, UnknownCapture, UsageError, VerificationFailed
from sameshot.manifest import Capture, Manifest
from sameshot.model import JobRef
from sameshot.steps.history import HistoryRow, captured_at, previous, rows
from sameshot.steps.places import capture_folder
from sameshot.steps.published import Published, hand_out, open_published
from sameshot.steps.ranks import RankFolder, kept_manifest
from sameshot.steps.results import CompareResult, CompareVerdict, fitted, shortened
from sameshot.steps.store import Folder, open_results

Progress = Callable[[int, int, str], None]

_MOST_SENTENCES = 3
_OPTIONS = ("activities", "with_stack", "record_shapes", "profile_memory", "with_flops")  # what profiling costs
_GONE = (UnknownCapture, VerificationFailed, CaptureFailed)


class _Found(NamedTuple):
    """One side: a manifest, where it is (or was) published, and where results of it are."""

    manifest: Manifest
    uri: str
    results: Folder


def compare(
    manifest: str,
    results_uri: str,
    *,
    expected_sha256: str | None = None,
    before: str | None = None,
    threshold: float = 0.1,
    accept_partial: bool = False,
    out: Path | None = None,
    progress: Progress | None = None,
) -> CompareResult:
    """Compare the capture whose manifest is at this path or URI with an earlier one, and write comparison.html and
    comparison.json into its folder of results.

    `before` is the earlier one's manifest; by default the latest earlier capture of the series in the history that
    succeeded (or is partial, with `accept_partial`) and can still be read. `threshold` is the slowdown that counts as a
    regression, as a share of the earlier step time. The exit code is 0 whatever the verdict: what follows from it is
    the caller's decision. `out`: a local folder for the same files, for engines that take files.

    Raises UsageError, UnknownCapture, ManifestError, VerificationFailed, TraceError, CaptureFailed and StorageError,
    each for the later capture or for an explicit `before`.
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise UsageError(f"A threshold of {threshold} is impossible; 0.1 means 10 % slower.")
    opened = open_published(manifest, results_uri, expected_sha256)
    after = _Found(opened.manifest, opened.uri, opened.results)
    if before is not None:
        given = open_published(before, results_uri)
        earlier = _Found(given.manifest, given.uri, given.results)
        if earlier.manifest.sha256 == after.manifest.sha256:
            raise UsageError(f"{earlier.uri} is the same capture: there is nothing to compare.")
        sides = earlier, _side(earlier, progress)
    else:
        found = _earlier(opened, results_uri, accept_partial, progress)
        if found is None:
            return _first(opened, threshold)
        sides = found
    return _compared(opened, *sides, _side(after, progress), threshold, out)


def verdict(step: Change | None, threshold: float, differences: tuple[str, ...] = ()) -> CompareVerdict:
    """What the change of the time per step means. Pure.

    REGRESSED only where it is slower by more than noise and by `threshold` or more; never where that is not known, or
    where the captures differ in what a step is (`differences`).
    """
    if step is None or differences:
        return CompareVerdict.UNKNOWN
    if step.outcome is Outcome.SLOWER and step.share is not None and step.share >= threshold:
        return CompareVerdict.REGRESSED
    return _VERDICTS[step.outcome]


_VERDICTS = {
    Outcome.SLOWER: CompareVerdict.SLOWER,
    Outcome.FASTER: CompareVerdict.FASTER,
    Outcome.SAME: CompareVerdict.SAME,
    Outcome.UNKNOWN: CompareVerdict.UNKNOWN,
}


def differences(before: Capture, after: Capture) -> tuple[str, ...]:
    """Why times per step of these captures are no measure of each other; empty: nothing is known against it. Pure."""
    found = []
    if before.world_size is not None and after.world_size is not None and before.world_size != after.world_size:
        found.append(f"the jobs had {before.world_size} and {after.world_size} ranks")
    if before.spec is not None and after.spec is not None:
        other = [name for name in _OPTIONS if _option(before, name) != _option(after, name)]
        if other:
            found.append(f"they were recorded with other options ({', '.join(other)}), which cost time themselves")
    return tuple(found)


def _option(capture: Capture, name: str) -> object:
    value = getattr(capture.spec, name)
    return frozenset(value) if isinstance(value, tuple) else value


def _earlier(
    opened: Published, results_uri: str, accept_partial: bool, progress: Progress | None
) -> tuple[_Found, Side] | None:
    """The latest earlier capture of the series that can still be read."""
    capture = opened.manifest.capture
    known = rows(results_uri, capture.job.namespace, opened.series)
    moment = captured_at(opened.manifest), capture.capture_id
    while (row := previous(known, moment, accept_partial=accept_partial)) is not None:
        try:
            found = _of_row(row, results_uri)
            return found, _side(found, progress)
        except _GONE:  # removed since; the one before tells as much
            moment = row.key
    return None


def _of_row(row: HistoryRow, results_uri: str) -> _Found:
    """Raises UnknownCapture or VerificationFailed where the very manifest of the row is nowhere any more."""
    job = JobRef(row.namespace, row.job, row.job_uid, row.attempt)
    results = Folder(open_results(results_uri), capture_folder(job, row.capture_id))
    kept = kept_manifest(results, row.manifest_sha256)
    if kept is None:
        kept = open_published(row.manifest_uri, results_uri, row.manifest_sha256).manifest
    return _Found(kept, row.manifest_uri, results)


def _side(found: _Found, progress: Progress | None) -> Side:
    ranks = _stored(found)
    if ranks is None:
        mapped = map_capture(found.uri, progress=progress)
        if mapped.manifest.sha256 != found.manifest.sha256:
            raise VerificationFailed(f"The manifest at {found.uri} is no longer the one that was analysed.")
        ranks = mapped.ranks
    return Side(reduce_ranks(found.manifest, ranks, location=found.uri), tuple(ranks))


def _stored(found: _Found) -> list[RankSummary] | None:
    """None: they are not all there, or are not what was written. The traces say the same, if they are there."""
    try:
        return RankFolder(found.results, found.manifest, archived(found.manifest)).load().summaries
    except VerificationFailed:
        return None


def _compared(
    opened: Published, earlier: _Found, before: Side, after: Side, threshold: float, out: Path | None
) -> CompareResult:
    found = compare_sides(before, after)
    with tempfile.TemporaryDirectory(prefix="sameshot-") as name:
        write(found, Path(name))
        opened.results.put_all(Path(name))
        if out is not None:
            hand_out(Path(name), out)
    lacking = [
        f"The {which} capture lacks {some_of(side.summary.missing_ranks)}"
        for which, side in (("earlier", before), ("later", after))
        if side.summary.missing
    ]
    unlike = differences(earlier.manifest.capture, opened.manifest.capture)
    judged = verdict(found.step, threshold, unlike)
    return fitted(
        CompareResult(
            series=opened.series,
            before_capture_id=earlier.manifest.capture.capture_id,
            before_manifest_uri=earlier.uri,
            after_capture_id=opened.manifest.capture.capture_id,
            after_manifest_uri=opened.uri,
            verdict=judged,
            threshold=threshold,
            slowdown=None if found.step is None else found.step.share,
            step_before_ns=None if found.step is None else found.step.before,
            step_after_ns=None if found.step is None else found.step.after,
            comparison_uri=opened.results.uri("comparison.html"),
            sentences=tuple(shortened(sentence) for sentence in (*found.sentences[:_MOST_SENTENCES], *lacking)),
            message=shortened(_message(found, judged, threshold, unlike)),
        )
    )


def _message(found: Comparison, judged: CompareVerdict, threshold: float, unlike: tuple[str, ...]) -> str:
    against = f"against capture {found.before.capture_id}"
    if unlike:
        return f"Not judged {against}: {'; '.join(unlike)}."
    first = found.sentences[0]
    if judged is CompareVerdict.REGRESSED:
        return f"Regression {against}, {percent(threshold)} or more are too much. {first}."
    return f"{judged.value.capitalize()} {against}. {first}."


def _first(opened: Published, threshold: float) -> CompareResult:
    capture = opened.manifest.capture
    return fitted(
        CompareResult(
            series=opened.series,
            after_capture_id=capture.capture_id,
            after_manifest_uri=opened.uri,
            verdict=CompareVerdict.FIRST,
            threshold=threshold,
            message=shortened(
                f"The history has no earlier usable capture of series {capture.job.namespace}/{opened.series}."
            ),
        )
    )
