"""HolisticTraceAnalysis' own tables, in the same page: what it says, on which ranks, and what it could not do."""

from __future__ import annotations

from sameshot.analysis.hta import ANALYSES, HtaResult
from sameshot.analysis.report.blocks import Block, Fold, Notice, Section, Text
from sameshot.analysis.report.facts import plain_table
from sameshot.analysis.report.view import View

_ROWS = 200


def section(view: View, found: HtaResult) -> Section:
    blocks: list[Block] = []
    if found.failures:
        blocks.append(
            Notice(
                "warning",
                f"HTA could not do everything ({len(found.failures)}).",
                "What it lost is not in its numbers.",
                (Text(tuple(failure.sentence for failure in found.failures[:50]), points=True),),
            )
        )
    for table in found.tables:
        title = ANALYSES.get(table.name, table.name.replace("_", " "))
        rest = table.row_count - min(len(table.rows), _ROWS)
        blocks.append(
            Fold(
                title[:1].upper() + title[1:],
                (
                    plain_table(
                        f"hta-{table.name}",
                        f"HTA: {title}",
                        table.columns,
                        table.rows[:_ROWS],
                        left_out=f"{rest} more rows are in {table.file}." if rest else "",
                    ),
                ),
            )
        )
    version = f" {found.version}" if found.version else ""
    return Section(
        "hta",
        "HolisticTraceAnalysis",
        tuple(blocks),
        note=f"The results of HTA{version} on the same verified files, {view.ranks(len(found.ranks))}: "
        "as it gives them, times in µs and rounded by its own rules.",
        short="HTA",
    )
