"""HTA's results as a part of the report."""

from __future__ import annotations

from typing import Any

from sameshot.analysis.hta.result import ANALYSES, HtaResult, HtaTable
from sameshot.analysis.report.blocks import Block, Cell, Column, Fold, Row, Section, Table, Text
from sameshot.analysis.text import count

_ROWS = 200

_TITLES = {
    **{name: title[0].upper() + title[1:] for name, title in ANALYSES.items()},
    "gpu_kernel_breakdown": "Kernel breakdown by name",
    "gpu_kernel_type_breakdown": "Kernel breakdown by type",
}


def hta_section(found: HtaResult) -> Section:
    """What HTA says, and first what it could not say."""
    blocks: list[Block] = []
    if found.failures:
        blocks.append(Text(tuple(failure.sentence for failure in found.failures), points=True))
    blocks += [Fold(_TITLES.get(table.name, table.name), (_table(table),)) for table in found.tables]
    version = f" {found.version}" if found.version else ""
    return Section(
        "hta",
        f"HolisticTraceAnalysis{version}",
        tuple(blocks),
        note=f"Numbers of HTA itself, from {count(len(found.ranks), 'rank')}, in µs: it rounds starts up and ends down "
        "to whole µs and leaves out the last ProfilerStep. All other sections are our own exact numbers.",
        short="HTA",
    )


def _table(table: HtaTable) -> Table:
    shown = table.rows[:_ROWS]
    numeric = [not any(isinstance(row[i], str) for row in shown) for i in range(len(table.columns))]
    left = table.row_count - len(shown)
    return Table(
        f"hta-{table.name}",
        _TITLES.get(table.name, table.name),
        tuple(Column(name, numeric=number) for name, number in zip(table.columns, numeric, strict=True)),
        tuple(Row(tuple(_cell(value) for value in row)) for row in shown),
        note=f"All of it is in tables/{table.file}.",
        first=10,
        left_out=f"{count(left, 'further row')} in tables/{table.file}" if left else "",
    )


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell("–")
    if isinstance(value, str):
        return Cell(value)
    return Cell(f"{value:,.2f}".removesuffix(".00") if isinstance(value, float) else f"{value}", value=float(value))
