"""Where results lie under a `results_uri`: outside the archive, written with another credential.

    <results_uri>/captures/<namespace>/<job>/<attempt>/<capture id>/   ranks/, summary.json, report.html, …
    <results_uri>/history/<namespace>/<series>/<capture id>.parquet    one row per analysed capture

Pure names; every segment is usable on any store.
"""

from __future__ import annotations

from urllib.parse import quote

from sameshot.model import JobRef

MOST_SHARDS = 64


def capture_folder(job: JobRef, capture_id: str) -> str:
    """Below `results_uri`, without a slash at the end."""
    return f"captures/{job.path}/{capture_id}"


def history_folder(namespace: str, series: str) -> str:
    return f"history/{_segment(namespace)}/{_segment(series)}"


def shards(count: int, most: int = MOST_SHARDS) -> tuple[str, ...]:
    """`("0/3", "1/3", "2/3")`: what to fan out over so that each of `count` ranks is in exactly one shard.

    A rank each, as long as there are no more than `most`; shard i of n takes every n-th archived target from the i-th
    on, in the manifest's order.
    """
    n = min(count, most)
    return tuple(f"{i}/{n}" for i in range(n))


def _segment(text: str) -> str:
    """A text of any kind as one segment of a path; `.` and `..` are no names."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if set(quoted) <= {"."} else quoted
