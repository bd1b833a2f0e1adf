"""Several groups together: one entry per rank that is to blame, with everyone who waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sameshot.analysis.late.steady import Candidate
from sameshot.analysis.late.words import who
from sameshot.analysis.results import Confidence, LateRank, RankSummary
from sameshot.analysis.waiting.arrivals import Arrivals
from sameshot.analysis.waiting.cause import OTHER_GROUP

_MOST_NAMED = 16
_MOST_WAITS = 64


def merged(
    ranks: Sequence[RankSummary], candidates: Sequence[Candidate], streams: Sequence[Arrivals]
) -> list[LateRank]:
    """One entry per rank that is to blame, latest first; ranks that only passed on a delay are not named."""
    own: dict[int, Candidate] = {}
    for found in candidates:
        if found.root == found.index:
            known = own.get(found.index)
            if known is None or found.late.lateness_per_step > known.late.lateness_per_step:
                own[found.index] = found
    passed = {found.index: found.root for found in candidates if found.root != found.index}
    for found in candidates:
        # Whom it waited for may steadily wait for a third one in turn, whatever single collectives say of it.
        if (
            found.root != found.index
            and not {found.root, passed.get(found.root)} & set(own)
            and _is_late_itself(found, streams)
        ):
            rank = ranks[found.root]
            late = msgspec.structs.replace(
                found.late,
                label=rank.label,
                rank=rank.identity.rank,
                node=rank.identity.node,
                cause=found.root_cause,
                lost=None,
                confidence=Confidence.MEDIUM,
                sentence=f"{who(rank)}{found.late.sentence[found.late.sentence.index(' is late: ') :]}, by way of "
                f"{found.late.label}",
            )
            own[found.root] = msgspec.structs.replace(found, late=late, index=found.root)
    ordered = sorted(own.values(), key=lambda c: (-c.late.lateness_per_step, c.index))
    return [_with_victims(ranks, found, streams) for found in ordered[:_MOST_NAMED]]


def _is_late_itself(found: Candidate, streams: Sequence[Arrivals]) -> bool:
    """Does what the root did for longer itself make up half of the lateness that was passed on?"""
    total = 0
    for one in streams:
        if found.root in one.found.ranks:
            mine = one.significant & (one.last == one.found.ranks.index(found.root)) & (one.cause < OTHER_GROUP)
            total += int(one.lateness[mine].sum())
    return 2 * total >= found.late.lateness_per_step * found.units


def _with_victims(ranks: Sequence[RankSummary], found: Candidate, streams: Sequence[Arrivals]) -> LateRank:
    """Whom a rank keeps waiting in all groups, directly or through others, and for how long in all."""
    victims: Counter[int] = Counter()
    waiting = 0
    for one in streams:
        at = np.flatnonzero(one.significant & (one.root == found.index))
        if len(at):
            waits = one.wait[:, at]
            waiting += int(waits.sum())
            for row in np.flatnonzero((waits > one.noise).any(axis=1)).tolist():
                victims[one.found.ranks[row]] += int(waits[row].sum())
    late = found.late
    del victims[found.index]
    if not victims:
        return late
    inside = late.victims or 0
    more = f"; {len(victims)} ranks in all wait for it, in several groups" if len(victims) > inside else ""
    return msgspec.structs.replace(
        late,
        victims=max(len(victims), inside),
        waiting=waiting,
        sentence=f"{late.sentence}{more}",
        waits=waits_of(ranks, victims),
    )


def waits_of(ranks: Sequence[RankSummary], waited: Mapping[int, int]) -> dict[str, int]:
    """Rank → what it waited, the longest first; of many ranks those that waited longest."""
    longest = sorted(waited.items(), key=lambda item: (-item[1], item[0]))[:_MOST_WAITS]
    return {ranks[index].label: ns for index, ns in longest if ns > 0}
