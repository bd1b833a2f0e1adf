"""Where results lie under a `results_uri`: outside the archive, written with another credential.

    <results_uri>/captures/<namespace>/<job>/<attempt>/<capture id>/   ranks/, summary.json, report.html, …
    <results_uri>/history/<namespace>/<series>/<capture id>.parquet    one row per analysed capture

Pure names; every segment is usable on any store.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from sameshot.model import JobRef

MOST_SHARDS = 64
_LONGEST = 200  # bytes of one segment: file systems take 255, and endings are added


def capture_folder(job: JobRef, capture_id: str) -> str:
    """Below `results_uri`, without a slash at the end."""
    return f"captures/{job.path}/{capture_id}"


def history_folder(namespace: str, series: str) -> str:
    return f"history/{segment(namespace)}/{segment(series)}"


def history_key(namespace: str, series: str, capture_id: str) -> str:
    """Where the row of one capture lies; whoever analyses the capture again writes there again."""
    return f"{history_folder(namespace, series)}/{segment(capture_id)}.parquet"


def ranks_folder(manifest_sha256: str) -> str:
    """Below a capture's folder: what was made of the ranks of this very manifest."""
    return f"ranks/{manifest_sha256[:12]}"


def shards(count: int, most: int = MOST_SHARDS) -> tuple[str, ...]:
    """`("0/3", "1/3", "2/3")`: what to fan out over so that each of `count` ranks is in exactly one shard.

    A rank each, as long as there are no more than `most`; shard i of n takes every n-th archived target from the i-th
    on, in the manifest's order.
    """
    n = min(count, most)
    return tuple(f"{i}/{n}" for i in range(n))


def segment(text: str) -> str:
    """A text of any kind as one segment of a path, another one for each text.

    `.`, `..` and the empty text are no names, readers of datasets skip what begins with `.` or `_`, and no file system
    takes names of any length. A `%` that no two hex digits follow comes from here only.
    """
    quoted = quote(text, safe="")
    if quoted[:1] in (".", "_"):
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if len(quoted) > _LONGEST:
        return f"{quoted[:100].rstrip('%')}%-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return quoted or "%-"
