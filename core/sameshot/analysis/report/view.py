"""One look at a summary: which ranks are named, which are shown where not all fit, and how they are called."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TypeVar

from sameshot.analysis.report.blocks import Cell
from sameshot.analysis.results import RankRow, Straggler, Summary
from sameshot.analysis.text import count

_T = TypeVar("_T")

MOST_BARS = 40  # more bars than this nobody compares: the ranks that matter are shown, and some typical ones
MOST_ROWS = 200  # of ranks in a table that is not the list of all ranks


class View:
    """Everything that several sections ask of a summary."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.late = frozenset(rank.label for rank in summary.late.ranks)
        self.single = len(summary.ranks) == 1

    @functools.cached_property
    def shown(self) -> list[RankRow]:
        """All ranks, or so many as can be compared at a glance: those that are late or caused most waiting, and others
        evenly spread."""
        ranks = self.summary.ranks
        if len(ranks) <= MOST_BARS:
            return list(ranks)
        keep = {i for i, rank in enumerate(ranks) if rank.label in self.late or rank.label in self.costly}
        room = max(MOST_BARS - len(keep), 2)
        keep |= {round(i * (len(ranks) - 1) / (room - 1)) for i in range(room)}
        return [rank for i, rank in enumerate(ranks) if i in keep]

    @functools.cached_property
    def few(self) -> list[RankRow]:
        """Fewer still, to be looked at closely."""
        named = [rank for rank in self.shown if rank.label in self.late or rank.label in self.costly][:12]
        others = [rank for rank in self.shown if rank not in named]
        room = min(max(16 - len(named), 4), len(others))
        spread = {round(i * (len(others) - 1) / max(room - 1, 1)) for i in range(room)}
        return sorted([*named, *(others[i] for i in spread)], key=self.summary.ranks.index)

    @functools.cached_property
    def costly(self) -> frozenset[str]:
        """The few ranks that made others wait most."""
        found = self.stragglers[:8]
        return frozenset(straggler.label for straggler in found if 10 * straggler.caused >= found[0].caused)

    @functools.cached_property
    def stragglers(self) -> list[Straggler]:
        return sorted((s for s in self.summary.stragglers if s.caused), key=lambda s: -s.caused)

    @property
    def some(self) -> str:
        """What to say below a chart that does not show all ranks."""
        ranks = self.summary.ranks
        if len(self.shown) == len(ranks):
            return ""
        return f"{len(self.shown)} of {count(len(ranks), 'rank')}: the named and the costliest, others evenly spread."

    def marked(self, label: str) -> bool:
        return label in self.late

    def ranks(self, number: int) -> str:
        """ "8 ranks", or "8 of 16 ranks" where that is not all."""
        expected = self.summary.expected_ranks
        return count(number, "rank") if number >= expected else f"{number} of {count(expected, 'rank')}"


def label(rank: RankRow) -> Cell:
    return Cell(rank.label, css="tight", value=rank.rank if rank.rank is not None else rank.label)


def most(items: Iterable[_T], limit: int = MOST_ROWS, what: str = "rows") -> tuple[list[_T], str]:
    """The first of many, and what to say about the rest."""
    every = list(items)
    rest = len(every) - limit
    return every[:limit], f"{rest} more {what} are in summary.json." if rest > 0 else ""
