"""Two captures side by side: what got slower, by how much, where, and whether that is more than noise.

    found = compare(before, after)          # two `Side`s: a job-wide summary and its ranks
    for line in found.sentences: print(line)

`samples` takes the numbers of each step, call and rank out of the summaries, `change` decides what differs, `page`
draws it.
"""

from __future__ import annotations

from sameshot.analysis.compare.change import COMPARISON_SCHEMA, Change, Comparison, Outcome
from sameshot.analysis.compare.compare import compare
from sameshot.analysis.compare.samples import Side

__all__ = ["COMPARISON_SCHEMA", "Change", "Comparison", "Outcome", "Side", "compare"]
