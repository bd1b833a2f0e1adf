"""The history of a series: one row per analysed capture, and what the rows say together.

    uri = append(results_uri, row_of(summary, manifest, report_uri=…))   # by the step that analyses
    known = rows(results_uri, namespace, series)                          # in the order of time
    before = previous(known, row)                                         # what to compare with

`row` is what a row says, `dataset` where rows lie and how they are read, `trend` (pure) what they say together,
`section` shows that in a report. docs/history.md has the columns.
"""

from __future__ import annotations

from sameshot.steps.history.dataset import (
    History,
    SeriesName,
    append,
    earlier,
    previous,
    read,
    rows,
    series_of,
)
from sameshot.steps.history.row import HistoryRow, captured_at, headline_of, row_of

__all__ = [
    "History",
    "HistoryRow",
    "SeriesName",
    "append",
    "captured_at",
    "earlier",
    "headline_of",
    "previous",
    "read",
    "row_of",
    "rows",
    "series_of",
]
