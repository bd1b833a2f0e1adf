"""How often each of a trace's categories or phases occurs, in bounded memory whatever a trace calls them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from sameshot.trace.columns.chunk import Codes

MOST = 1000
LONGEST = 200  # characters
OTHERS = "(others: more than 1,000 different ones)"
"""All occurrences of names that came to be left out, the rarest, in one sum."""


class Tally:
    """Counts by name, cut to `LONGEST`. Whoever sees the same chunks counts the same."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._others = 0

    def add(self, value: str, times: int) -> None:
        """`value` occurred so often."""
        self._counts[value[:LONGEST]] += times
        if len(self._counts) > 2 * MOST:
            self._counts, others = _cut(self._counts)
            self._others += others

    def codes(self, codes: Codes, values: list[str]) -> None:
        """Each of these occurred once."""
        counts = np.bincount(codes, minlength=len(values))
        for code in np.flatnonzero(counts).tolist():
            self.add(values[code], int(counts[code]))

    def result(self) -> Counter[str]:
        """At most `MOST` names, and `OTHERS` where there are more."""
        counts, others = _cut(self._counts)
        if others or self._others:
            counts[OTHERS] += others + self._others
        return counts


def cut(counts: Mapping[str, int]) -> Counter[str]:
    """Counts that somebody else made, in the same bounds."""
    tally = Tally()
    for value, times in counts.items():
        tally.add(value, times)
    return tally.result()


def _cut(counts: Counter[str]) -> tuple[Counter[str], int]:
    if len(counts) <= MOST:
        return Counter(counts), 0
    order: list[tuple[str, int]] = sorted(counts.items(), key=_rank)
    return Counter(dict(order[:MOST])), sum(times for _, times in order[MOST:])


def _rank(item: tuple[str, int]) -> Any:
    return item[0] == OTHERS, -item[1], item[0]
