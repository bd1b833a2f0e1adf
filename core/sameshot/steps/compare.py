"""A capture against an earlier one of its series: did a step get slower, by more than noise, by more than is allowed?

Training jobs get a new name per run, so what is compared with is found in the history, by series. The stored summaries
of the ranks are enough: the raw traces of the earlier capture may be gone.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sameshot.analysis.compare import Change, Comparison, Outcome, Side
from sameshot.analysis.compare import compare as compare_sides
from sameshot.analysis.compare.run import write
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.run import archived, map_manifest
from sameshot.analysis.text import percent, some_of
from sameshot.errors import (
    CaptureFailed,
    Forbidden,
    ManifestError,
    NotFound,
    SameshotError,
    TraceError,
    UnknownCapture,
    UsageError,
    VerificationFailed,
)
from sameshot.manifest import Capture, Manifest
from sameshot.model import JobRef
from sameshot.steps.history import HistoryRow, alike, captured_at, earlier, rows
from sameshot.steps.published import Published, hand_out, open_published, results_of
from sameshot.steps.ranks import RankFolder, Stored, kept_manifest
from sameshot.steps.results import TEXT_LIMIT, CompareResult, CompareVerdict, fitted, shortened
from sameshot.steps.store import Folder
from sameshot.trace.capture_check import locate

Progress = Callable[[int, int, str], None]

_MOST_SENTENCES = 3
_UNUSABLE = (
    UnknownCapture, ManifestError, VerificationFailed, TraceError, CaptureFailed, UsageError, NotFound, Forbidden,
)  # fmt: skip
"""What is wrong with an earlier capture for good. A store that does not answer is none of it: the next try would
compare with another capture."""


class _Found(NamedTuple):
    """One side: a manifest, where it is (or was) published, and where results of it are."""

    manifest: Manifest
    uri: str
    results: Folder


class _Side(NamedTuple):
    side: Side
    fetch_pattern: str | None


class _Passed(NamedTuple):
    """An earlier capture that is nothing to compare with, and why."""

    capture_id: str
    why: str


def compare(
    manifest: str,
    results_uri: str,
    *,
    expected_sha256: str | None = None,
    before: str | None = None,
    threshold: float = 0.1,
    accept_partial: bool = False,
    min_ranks: int | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> CompareResult:
    """Compare the capture whose manifest is at this path or URI with an earlier one, and write comparison.html and
    comparison.json into its folder of results.

    `before` is the earlier one's manifest; by default the latest earlier capture of the series in the history that
    succeeded (or is partial, with `accept_partial` or `min_ranks`: whoever is content with some ranks of a capture is
    so of the one that it is compared with), was recorded alike (options and world size) and can still be read. Which
    were passed over is said. Where there are earlier ones and none of them will do, the verdict is UNKNOWN, and the
    files show the latest one that can be read. `threshold` is the slowdown that counts as a regression, as a share of
    the earlier step time. The exit code is 0 whatever the verdict: what follows from it is the caller's decision.
    `out`: a local folder for the same files, for engines that take files.

    Raises UsageError, UnknownCapture, ManifestError, VerificationFailed, TraceError, CaptureFailed and StorageError,
    each for the later capture or for an explicit `before`; an earlier one of the history that is gone or damaged is
    passed over, except for StorageError where its store does not answer.
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise UsageError(f"A threshold of {threshold} is impossible; 0.1 means 10 % slower.")
    accept_partial = accept_partial or min_ranks is not None
    opened = open_published(manifest, results_uri, expected_sha256)
    after = _Found(opened.manifest, opened.uri, opened.results)
    own = _stored(after)
    side = partial(_side, progress=progress, partial=accept_partial, like=None if own is None else own.fetch_pattern)
    passed: list[_Passed] = []
    if before is not None:
        given = open_published(before, results_uri)
        named = _Found(given.manifest, given.uri, given.results)
        if named.manifest.sha256 == after.manifest.sha256:
            raise UsageError(f"{named.uri} is the same capture: there is nothing to compare.")
        sides: tuple[_Found, _Side] | None = (named, side(named))
    else:
        sides, passed = _earlier(opened, results_uri, accept_partial, side)
    if sides is None:
        return _alone(opened, threshold, passed)
    against, first = sides
    later = _side(after, progress, partial=accept_partial, like=first.fetch_pattern)
    return _compared(opened, against, first, later, threshold, out, passed)


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
    return alike.differences(alike.recorded(before), alike.recorded(after))


def _earlier(
    opened: Published, results_uri: str, accept_partial: bool, side: Callable[[_Found], _Side]
) -> tuple[tuple[_Found, _Side] | None, list[_Passed]]:
    """The latest earlier capture of the series that was recorded alike and can still be read, and the later ones that
    were passed over; where none was recorded alike, the latest that can be read.

    Of rows that state how they were recorded nothing is fetched to find out that they differ; of others the manifest.
    """
    capture = opened.manifest.capture
    own = alike.recorded(capture)
    known = rows(results_uri, capture.job.namespace, opened.series)
    passed: list[_Passed] = []
    otherwise: list[HistoryRow] = []
    for row in earlier(known, (captured_at(opened.manifest), capture.capture_id), accept_partial=accept_partial):
        try:
            found = None if alike.differences(row, own) else _of_row(row, results_uri)
            unlike = alike.differences(row if found is None else alike.recorded(found.manifest.capture), own)
            if found is not None and not unlike:
                return (found, side(found)), passed
        except _UNUSABLE as error:  # removed or damaged since; the one before tells as much
            passed.append(_Passed(row.capture_id, _why(error)))
        else:
            otherwise.append(row)
            passed.append(_Passed(row.capture_id, "; ".join(unlike)))
    for row in otherwise:  # not judged, and shown all the same
        try:
            found = _of_row(row, results_uri)
            return (found, side(found)), [each for each in passed if each.capture_id != row.capture_id]
        except _UNUSABLE:
            continue
    return None, passed


def _why(error: SameshotError) -> str:
    if isinstance(error, UnknownCapture | NotFound):
        return "it is not there any more"
    if isinstance(error, Forbidden):
        return "it may not be read"
    return f"it can't be used ({shortened(str(error), 80)})"


def _of_row(row: HistoryRow, results_uri: str) -> _Found:
    """Raises one of `_UNUSABLE` where the very manifest of the row is nowhere any more."""
    job = JobRef(row.namespace, row.job, row.job_uid, row.attempt)
    results = results_of(results_uri, job, row.capture_id)
    kept = kept_manifest(results, row.manifest_sha256)
    if kept is None:
        kept = open_published(row.manifest_uri, results_uri, row.manifest_sha256).manifest
    return _Found(kept, row.manifest_uri, results)


def _side(found: _Found, progress: Progress | None, *, partial: bool, like: str | None = None) -> _Side:
    """From the summaries that are kept, else from the traces, with the fetch pattern of those, or `like` the others.

    `partial`: those that were enough for a report are enough here, if some ranks could not be analysed.
    """
    stored = _stored(found)
    reduced = partial and kept_manifest(found.results, found.manifest.sha256) is not None
    if stored is not None and (reduced or not stored.lacking):
        ranks, pattern = stored.summaries, stored.fetch_pattern
    else:
        pattern = like if stored is None else stored.fetch_pattern
        storage, key = locate(found.uri)  # each trace is proven by this very manifest
        ranks = map_manifest(storage, key, found.manifest, progress=progress, fetch_pattern=pattern).ranks
    return _Side(Side(reduce_ranks(found.manifest, ranks, location=found.uri), tuple(ranks)), pattern)


def _stored(found: _Found) -> Stored | None:
    """None: not a sound one is there. Of those that lack the traces say the same, if they are there."""
    stored = RankFolder(found.results, found.manifest, archived(found.manifest)).load()
    return stored if stored.indices else None


def _compared(
    opened: Published,
    against: _Found,
    first: _Side,
    later: _Side,
    threshold: float,
    out: Path | None,
    passed: Sequence[_Passed],
) -> CompareResult:
    before, after = first.side, later.side
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
    if first.fetch_pattern != later.fetch_pattern:
        lacking.append("Waiting for data is no measure here: the captures were analysed with different fetch patterns")
    unlike = differences(against.manifest.capture, opened.manifest.capture)
    judged = verdict(found.step, threshold, unlike)
    return fitted(
        CompareResult(
            series=opened.series,
            before_capture_id=against.manifest.capture.capture_id,
            before_manifest_uri=against.uri,
            after_capture_id=opened.manifest.capture.capture_id,
            after_manifest_uri=opened.uri,
            verdict=judged,
            threshold=threshold,
            slowdown=None if found.step is None else found.step.share,
            step_before_ns=None if found.step is None else found.step.before,
            step_after_ns=None if found.step is None else found.step.after,
            comparison_uri=opened.results.uri("comparison.html"),
            sentences=tuple(shortened(sentence) for sentence in (*found.sentences[:_MOST_SENTENCES], *lacking)),
            message=_with(_message(found, judged, threshold, unlike), _passed_over(passed)),
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


def _passed_over(passed: Sequence[_Passed]) -> str:
    """Which, and why: the latest one by its id. Empty: none was."""
    if not passed:
        return ""
    more = f" (and {len(passed) - 1} more)" if len(passed) > 1 else ""
    return f"Passed over: capture {passed[0].capture_id}{more}: {passed[0].why}."


def _with(message: str, note: str) -> str:
    """Both within the limit: what was passed over is never what is cut off."""
    note = shortened(note, TEXT_LIMIT * 2 // 3)
    return f"{shortened(message, TEXT_LIMIT - len(note) - 1)} {note}" if note else shortened(message)


def _alone(opened: Published, threshold: float, passed: Sequence[_Passed]) -> CompareResult:
    """Nothing to compare with: it is the first, or nobody can tell."""
    capture = opened.manifest.capture
    series = f"{capture.job.namespace}/{opened.series}"
    if passed:
        verdict, said = CompareVerdict.UNKNOWN, f"No earlier capture of series {series} is comparable."
    else:
        verdict, said = CompareVerdict.FIRST, f"The history has no earlier usable capture of series {series}."
    return fitted(
        CompareResult(
            series=opened.series,
            after_capture_id=capture.capture_id,
            after_manifest_uri=opened.uri,
            verdict=verdict,
            threshold=threshold,
            message=_with(said, _passed_over(passed)),
        )
    )
