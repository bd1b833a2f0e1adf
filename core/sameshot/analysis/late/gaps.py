"""Who was not compared: a verdict that nobody is late needs whole groups."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sameshot.analysis.late.evidence import Evidence
from sameshot.analysis.results import RankSummary
from sameshot.analysis.text import count, some_of
from sameshot.analysis.waiting.arrivals import Arrivals


def gap(ranks: Sequence[RankSummary], evidence: Sequence[Evidence], world: int) -> str | None:
    """In words: whose absence from a group leaves open whether it is the one that all wait for. None: nobody's."""
    open_groups = [one.arrivals for one in evidence if not _whole(one.arrivals, ranks, world)]
    if not open_groups:
        return None
    first = open_groups[0]
    more = f" ({count(len(open_groups) - 1, 'other group')} as well)" if len(open_groups) > 1 else ""
    members = _members(first, world)
    absent = None if first.size is None else first.size - len(first.found.ranks)
    if absent is None:
        return f"How many ranks {first.where} has is not known, so whoever all wait for may be missing{more}."
    analysed = {rank.identity.rank for rank in ranks}
    gone = (
        [] if members is None or None in analysed else sorted(members - {rank for rank in analysed if rank is not None})
    )
    one = absent == 1
    if len(gone) == absent:
        who = f"{some_of([f'rank {number}' for number in gone])} of {first.where} {'has' if one else 'have'} no trace"
    else:
        who = f"{absent} of {count(first.size or 0, 'rank')} of {first.where} could not be compared"
    may = "may be the one that all wait for" if one else "one of them may be the one that all wait for"
    return f"{who}{' and' if one else ';'} {may}{more}."


def _whole(one: Arrivals, ranks: Sequence[RankSummary], world: int) -> bool:
    if one.size is None:  # not recorded: whole if no rank is missing, and all that have it were compared
        having = sum(any(s.key in (one.found.key, *one.found.streams) for s in rank.streams) for rank in ranks)
        return len(ranks) >= world and having <= len(one.found.ranks)
    return one.complete


def _members(one: Arrivals, world: int) -> set[int] | None:
    """Which ranks the group has, where that is known."""
    if one.size is not None and one.size == world:
        return set(range(world))
    listed = one.group.ranks if one.group is not None else None
    if not listed or "..." in listed:
        return None
    return {int(number) for number in re.findall(r"\d+", listed)}
