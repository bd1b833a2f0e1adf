"""Copies and memsets by direction and kind of host memory, with their bandwidth."""

from __future__ import annotations

import numpy as np

from sameshot.analysis import names
from sameshot.analysis.device.work import Work
from sameshot.analysis.frame import Rows
from sameshot.analysis.results import CopyRow


def copy_rows(work: Work, words: list[str]) -> tuple[CopyRow, ...]:
    """The longest first. One GB/s is one byte per ns."""
    memory = work.rows[work.memory]
    kinds: dict[str, list[int]] = {}
    for code in np.unique(memory.name).tolist():
        kinds.setdefault(names.copy_kind(words[code]), []).append(code)
    rows = [_row(kind, memory[np.isin(memory.name, codes)]) for kind, codes in kinds.items()]
    return tuple(sorted(rows, key=lambda row: (-row.total, row.kind)))


def _row(kind: str, rows: Rows) -> CopyRow:
    sized = rows.bytes >= 0  # not stated is not 0
    size = int(rows.bytes[sized].sum())
    time = int(rows.dur[sized].sum())
    return CopyRow(
        kind=kind,
        count=len(rows),
        total=int(rows.dur.sum()),
        bytes=size if sized.any() else None,
        gb_per_s=size / time if time else None,
    )
