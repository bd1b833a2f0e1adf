"""Manifest in; findings and a report out.

    summary = analyze("…/manifest.json", Path("report"))     # verified reads; report.html and summary.json
    for line in headline(summary): print(line)

or, fanned out by a workflow engine:

    one = map_target("…/manifest.json", "node/main/0")        # one verified trace → small RankSummary
    write_rank_summary(one, Path("…")); one = read_rank_summary(Path("…"))
    summary = reduce_ranks(manifest, [one, …])                # all of them → job-wide Summary

`frame` holds one trace, `rank` breaks it down (`host`, `device`, `communication`), `align` and `match` find the same
collective on all ranks, `late` decides who is late and `cause` why, `job` puts it together, `report` draws it,
`load` and `run` do the reading and writing.
"""

from __future__ import annotations

from sameshot.analysis.job import headline, reduce_ranks
from sameshot.analysis.results import RANK_SCHEMA, SUMMARY_SCHEMA, RankSummary, Summary
from sameshot.analysis.run import analyze, map_rank, map_target, read_rank_summary, write, write_rank_summary

__all__ = [
    "RANK_SCHEMA",
    "SUMMARY_SCHEMA",
    "RankSummary",
    "Summary",
    "analyze",
    "headline",
    "map_rank",
    "map_target",
    "read_rank_summary",
    "reduce_ranks",
    "write",
    "write_rank_summary",
]
