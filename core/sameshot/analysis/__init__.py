"""Manifest in; findings and a report out.

    summary = analyze("…/manifest.json", Path("report"))     # verified reads; report.html and summary.json
    for line in headline(summary): print(line)

A workflow engine fans out with `sameshot.steps.analyze`, which keeps what `map_targets` makes of single ranks.

Where things are, in the order in which they work:

    run, load       reading and writing: verified traces in, summaries and reports out
    frame/          one trace as tables, one per kind of event (`names/`: what events are called)
    rank            map: what one rank did, from
      host/           its main thread: parts, steps, data wait, pauses
      device/         its GPUs: kernels, copies, launches, idle time
      communication/  its collectives: groups, sizes, and the sequences to be matched
    job/            reduce: all ranks together, with warnings, findings and rows of tables, from
      matching/       the same collective on all ranks
      clocks/         the hosts' clocks against each other, from matched collectives
      waiting/        who came last to each, what that cost, and why
      late/           which rank is late
    results/        every value that map returns or reduce makes
    report/         the page; compare/ two captures; hta/ HTA's analyses; merged/ all ranks as one trace

`intervals`, `nesting`, `stats`, `text` and `files` are tools that know nothing of training.
"""

from __future__ import annotations

from sameshot.analysis.job import headline, reduce_ranks
from sameshot.analysis.results import RANK_SCHEMA, SUMMARY_SCHEMA, RankSummary, Summary
from sameshot.analysis.run import analyze, map_rank, write

__all__ = [
    "RANK_SCHEMA",
    "SUMMARY_SCHEMA",
    "RankSummary",
    "Summary",
    "analyze",
    "headline",
    "map_rank",
    "reduce_ranks",
    "write",
]
