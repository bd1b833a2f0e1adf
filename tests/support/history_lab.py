"""Rows of a history, made up, and the odd names that people give."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from sameshot.model import Outcome
from sameshot.steps.history import HistoryRow
from sameshot.steps.results import Headline

FIRST = datetime.datetime(2026, 1, 1)
MS = 1_000_000


def row(number: int = 0, step_ms: float | None = 100.0, **fields: Any) -> HistoryRow:
    """The `number`-th capture of a series, one an hour."""
    values: dict[str, Any] = {
        "namespace": "team",
        "series": "bert",
        "job": f"bert-{number}",
        "job_uid": f"uid-{number}",
        "attempt": 0,
        "capture_id": f"c{number:03d}",
        "captured_at": (FIRST + datetime.timedelta(hours=number)).isoformat() + "Z",
        "manifest_uri": f"s3://traces/team/bert-{number}/0/c{number:03d}/manifest.json",
        "manifest_sha256": f"{number:064x}",
        "outcome": Outcome.SUCCEEDED,
        "expected_ranks": 4,
        "analysed_ranks": 4,
        "world_size": 4,
        "generator": "sameshot 0.0",
        "headline": Headline() if step_ms is None else Headline(step_time_ns=round(step_ms * MS), steps=30),
    }
    return HistoryRow(**(values | fields))


def series(steps_ms: Sequence[float], **fields: Any) -> list[HistoryRow]:
    return [row(number, step_ms, **fields) for number, step_ms in enumerate(steps_ms)]


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)  # no file and no JSON holds half a character
names = st.one_of(
    texts.filter(bool),
    st.sampled_from([".", "..", "../..", "/", "a/b", "_x", ".x", "%2E", "%-", "a=b", "é" * 200, "x" * 300, "*", "a b"]),
)
_counts = st.integers(0, 2**40)
_maybe_counts = st.none() | _counts
_shares = st.none() | st.floats(0, 1)
_maybe_texts = st.none() | texts

headlines = st.builds(
    Headline,
    step_time_ns=_maybe_counts,
    step_spread_ns=_maybe_counts,
    steps=_counts,
    gpu_busy_share=_shares,
    communication_exposed_share=_shares,
    data_wait_share=_shares,
    host_bound_share=_shares,
    waiting_ns=_maybe_counts,
    late=texts,
    lateness=st.sampled_from(["late", "none", "unknown"]),
)
rows = st.builds(
    HistoryRow,
    namespace=names,
    series=names,
    job=texts,
    job_uid=texts,
    attempt=_counts,
    capture_id=names,
    captured_at=st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1)).map(
        lambda moment: moment.isoformat() + "Z"
    ),
    manifest_uri=texts,
    manifest_sha256=texts,
    outcome=st.sampled_from(Outcome),
    expected_ranks=_counts,
    analysed_ranks=_counts,
    world_size=_maybe_counts,
    activities=_maybe_texts,
    with_stack=st.none() | st.booleans(),
    with_flops=st.none() | st.booleans(),
    duration_ms=_maybe_counts,
    image=_maybe_texts,
    commit=_maybe_texts,
    report_uri=_maybe_texts,
    generator=texts,
    headline=headlines,
)
