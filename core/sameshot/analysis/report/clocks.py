"""The clocks of the hosts, and how collectives of different ranks were matched."""

from __future__ import annotations

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    Block,
    Cell,
    Row,
    Section,
    Table,
)
from sameshot.analysis.report.view import View, most


def clocks(view: View) -> Section | None:
    """Clocks of the hosts, and how collectives of different ranks were matched."""
    summary, blocks = view.summary, list[Block]()
    note = ""
    if (found := summary.clocks) is not None and len(found.hosts) > 1:
        note = found.note
        hosts, left_out = most(found.hosts, what="hosts")
        blocks.append(
            Table(
                "hosts",
                f"Clocks against {found.reference}" if found.reference else "Clocks of the hosts",
                (
                    words.words("host"),
                    words.times("offset", "Add it to this host's times"),
                    words.numbers("drift ns/s"),
                    words.times("residual", "Median, at the points that were matched"),
                    words.times("expected error"),
                    words.numbers("points"),
                    words.numbers("component", "Only hosts of one component can be compared"),
                    words.words("remark"),
                ),
                tuple(
                    Row(
                        (
                            Cell(host.host),
                            Cell("unaligned") if host.offset is None else words.time(host.offset),
                            words.real(host.drift),
                            words.time(host.residual),
                            words.time(host.expected_error),
                            words.number(host.points),
                            words.number(host.component),
                            words.text(host.note, "faint wide"),
                        )
                    )
                    for host in hosts
                ),
                first=12,
                left_out=left_out,
            )
        )
    if summary.alignments:
        kept, left_out = most(summary.alignments, 100, "pairs")
        blocks.append(
            Table(
                "alignments",
                "How collectives were matched",
                (
                    words.words("rank"),
                    words.words("group"),
                    words.words("compared with"),
                    words.words("matched by"),
                    words.numbers("shift", "Its first collective is the reference's so many-th"),
                    words.numbers("matched"),
                    words.times("misfit", "Median difference of the times between ends"),
                    words.times("ends later by", "By the hosts' clocks"),
                    words.words("remark"),
                ),
                tuple(
                    Row(
                        (
                            Cell(a.label, css="tight"),
                            words.text(a.stream, "faint tight"),
                            Cell(a.reference, css="tight"),
                            Cell(a.method),
                            words.number(a.lag),
                            words.number(a.matched),
                            words.time(a.residual),
                            words.time(a.clock_offset),
                            words.text(a.note, "faint wide"),
                        )
                    )
                    for a in kept
                ),
                first=12,
                left_out=left_out,
            )
        )
    return Section("clocks", "Clocks and matching", tuple(blocks), note=note, short="Clocks") if blocks else None
