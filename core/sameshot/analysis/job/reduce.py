"""All ranks together."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

import sameshot
from sameshot.analysis import late
from sameshot.analysis.clocks import measure as measure_clocks
from sameshot.analysis.clocks import to_reference
from sameshot.analysis.job.capture import capture_info, missing_ranks
from sameshot.analysis.job.cautions import notes_on, warnings
from sameshot.analysis.job.findings import findings
from sameshot.analysis.job.imbalance import imbalance
from sameshot.analysis.job.rows import NOTABLE, rank_rows
from sameshot.analysis.job.sums import merge_named, sum_devices, sum_parts
from sameshot.analysis.matching.hosts import host_of
from sameshot.analysis.matching.match import match_streams
from sameshot.analysis.results import (
    Clocks,
    RankSummary,
    Summary,
)
from sameshot.analysis.stats import spread
from sameshot.analysis.waiting.bandwidth import bandwidth, slow_links
from sameshot.analysis.waiting.collectives import collective_rows, with_waits
from sameshot.analysis.waiting.gather import arrivals
from sameshot.analysis.waiting.moments import costliest
from sameshot.analysis.waiting.stragglers import exposed_waiting, stragglers, waiting, with_causes
from sameshot.manifest import Manifest

_MOST_ROWS = 1_000


def reduce_ranks(
    manifest: Manifest,
    summaries: list[RankSummary],
    *,
    location: str = "",
    not_analysed: Mapping[str, str] | None = None,
) -> Summary:
    """Compare the ranks of one capture.

    Ranks of the manifest for which no summary is given are missing; so are those that it lists as failed.
    `location` only says in the report where the manifest was read, `not_analysed` (by target id) why a target that
    has a trace is missing.
    """
    ranks = sorted(summaries, key=lambda s: (s.identity.rank is None, s.identity.rank or 0, s.target_id))
    targets = {target.target_id: target for target in manifest.targets}
    missing = missing_ranks(manifest, {rank.target_id for rank in ranks}, not_analysed)
    common = _common_window(ranks, None)
    # Windows that share no time by one clock share none; by the clocks of several hosts, collectives have to tell.
    several = len({host_of(rank) for rank in ranks}) > 1
    matched, alignments = match_streams(ranks) if common is not None and (common > 0 or several) else ([], [])
    clocks = measure_clocks(ranks, matched) if ranks else None
    common = _common_window(ranks, clocks)
    cross_rank = len(ranks) > 1 and common is not None and (common > 0 or bool(matched))
    expected = max(manifest.totals.expected, manifest.capture.world_size or 0)
    labels = _labels(ranks)
    came = arrivals(ranks, matched, expected)
    evidence = late.gather(ranks, came)
    verdict = late.judge(ranks, evidence, cross_rank=cross_rank, common=common, world=expected, clocks=clocks)
    blamed = with_causes(stragglers(ranks, came, labels), verdict.ranks)
    rates = bandwidth(ranks, came)
    uneven = imbalance(ranks, labels)
    notable = {*(r.label for r in verdict.ranks), *(b.label for b in blamed[:NOTABLE]), *(u.label for u in uneven)}
    rows = rank_rows(ranks, targets, labels, evidence, notable, _begins(ranks, clocks))
    devices = [rank.device for rank in ranks if rank.device is not None]
    summary = Summary(
        generator=f"sameshot {sameshot.__version__}",
        generated_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        capture=capture_info(manifest, location),
        expected_ranks=expected,
        analysed_ranks=len(ranks),
        missing=missing,
        warnings=tuple(warnings(manifest, ranks, targets, common, compared=cross_rank)),
        findings=(),
        common_window=common,
        cross_rank=cross_rank,
        late=verdict,
        step_time=spread(np.concatenate([np.diff(r.steps.edges) for r in ranks if r.steps.count]))
        if any(r.steps.count for r in ranks)
        else None,
        step_ranks=sum(r.steps.count > 0 for r in ranks),
        parts=sum_parts(rank.parts for rank in ranks if rank.main_thread is not None),
        device=sum_devices(devices),
        device_ranks=len(devices),
        ranks=tuple(rows),
        operators=merge_named(rank.operators for rank in ranks),
        kernels=merge_named(rank.kernels for rank in ranks),
        collectives=tuple(with_waits(collective_rows(ranks, matched), came, labels)),
        alignments=tuple(alignments),
        notes=tuple(notes_on(ranks)),
        clocks=clocks,
        stragglers=tuple(blamed),
        waiting=waiting(came),
        waiting_exposed=exposed_waiting(came),
        bandwidth=tuple(rates[:_MOST_ROWS]),
        slow_links=tuple(slow_links(ranks, came, rates, labels)),
        imbalance=tuple(uneven),
        groups=tuple({group.key: group for rank in ranks for group in rank.groups}.values()),
        moments=tuple(costliest(ranks, came, labels)),
    )
    return msgspec.structs.replace(summary, findings=tuple(findings(summary)))


def _begins(ranks: Sequence[RankSummary], clocks: Clocks | None) -> list[int]:
    """When each window began: by the reference clock if all hosts could be aligned with it, else by their own."""
    of_host = {clock.host: clock for clock in clocks.hosts} if clocks is not None else {}
    aligned = [
        None if (clock := of_host.get(host_of(rank))) is None else to_reference(clock, rank.window_start_ns)
        for rank in ranks
    ]
    if any(begin is None for begin in aligned):
        return [rank.window_start_ns for rank in ranks]
    return [begin for begin in aligned if begin is not None]


def _common_window(ranks: Sequence[RankSummary], clocks: Clocks | None) -> int | None:
    """Time that all analysed windows share, by aligned clocks as far as there are any; negative: the gap between
    them."""
    if not ranks:
        return None
    begins = _begins(ranks, clocks)
    return min(begin + rank.window for begin, rank in zip(begins, ranks, strict=True)) - max(begins)


def _labels(ranks: Sequence[RankSummary]) -> list[str]:
    """What each rank is called; a rank that two traces claim, by its target as well."""
    doubles = {label for label, times in Counter(rank.label for rank in ranks).items() if times > 1}
    return [f"{rank.label} {rank.target_id}" if rank.label in doubles else rank.label for rank in ranks]
