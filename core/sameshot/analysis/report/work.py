"""What ran: operators, kernels with percentiles, communication by group, kind and size."""

from __future__ import annotations

from collections import defaultdict

from sameshot.analysis import names
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import Cell, Piece, Row, Section, Table
from sameshot.analysis.report.view import View, most
from sameshot.analysis.results import CommunicationRow, KernelRow, NamedTime
from sameshot.analysis.text import ms, percent, size

_NAMES = 200


def operators(view: View) -> Section | None:
    items = view.summary.operators
    if not items:
        return None
    return Section(
        "operators",
        "Operators",
        (_named("operator-times", "Operators by self time", items),),
        note="Time of an operator without the operators inside it, all threads, summed over "
        f"{view.ranks(view.summary.analysed_ranks)}. Orange: communication.",
        short="Operators",
    )


def _named(ident: str, caption: str, items: tuple[NamedTime, ...]) -> Table:
    top = max((item.self_time for item in items), default=0) or 1
    kept, left_out = most(items, _NAMES, "names")
    return Table(
        ident,
        caption,
        (words.name("name"), words.bar("of the longest"), words.times("self time"), words.times("with children"),
         words.numbers("count"), words.times("self time each")),
        tuple(
            Row(
                (
                    Cell(item.name),
                    Cell("–", value=item.self_time, pieces=(_piece(_colour(item.name), item.self_time, top),)),
                    words.time(item.self_time),
                    words.time(item.total),
                    words.number(item.count),
                    words.time(round(item.self_time / item.count) if item.count else None),
                )
            )
            for item in kept
        ),
        first=14,
        left_out=left_out,
    )  # fmt: skip


def _piece(css: str, value: int, top: int) -> Piece:
    return Piece(css, value / top, ms(value))


def _colour(name: str) -> str:
    communicates = names.is_host_communication(name) or names.is_communication_kernel(name)
    return "communication" if communicates else "operators"


def kernels(view: View) -> Section | None:
    summary = view.summary
    detailed = sum(bool(rank.kernel_rows) for rank in summary.ranks)
    merged = _merged([row for rank in summary.ranks for row in rank.kernel_rows])
    if merged:
        kept, left_out = most(merged, _NAMES, "names")
        top = max(total for total, _ in merged) or 1
        table = Table(
            "kernel-times",
            "Kernels by time",
            (words.name("name"), words.bar("of the longest"), words.words("kind"), words.times("time"),
             words.numbers("share", "Of all kernel time of its kind, mean over ranks"), words.numbers("count"),
             words.times("mean"), words.times("p50"), words.times("p90"), words.times("p99"), words.times("longest"),
             words.numbers("ranks")),
            tuple(_kernel(rows, total, top) for total, rows in kept),
            note="" if view.single else "Percentiles: the median of the ranks' own. Longest: over all ranks.",
            first=14,
            left_out=left_out,
        )  # fmt: skip
    elif summary.kernels:
        table = _named("kernel-times", "Kernels by time", summary.kernels)
    else:
        return None
    return Section(
        "kernels",
        "GPU kernels",
        (table,),
        note=f"Summed over {view.ranks(detailed or summary.device_ranks)}. Communication kernels (orange) include "
        "waiting for late ranks.",
        short="Kernels",
    )


def _merged(rows: list[KernelRow]) -> list[tuple[int, list[KernelRow]]]:
    found: defaultdict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in rows:
        found[row.name, row.kind].append(row)
    return sorted(((sum(r.total for r in same), same) for same in found.values()), key=lambda pair: -pair[0])


def _kernel(rows: list[KernelRow], total: int, top: int) -> Row:
    count = sum(row.count for row in rows)
    first = rows[0]
    return Row(
        (
            Cell(names.short(first.name, 400), title=first.name if len(first.name) > 400 else ""),
            Cell("–", value=total, pieces=(_piece(first.kind, total, top),)),
            Cell(first.kind, css="tight"),
            words.time(total),
            words.share(sum(row.share for row in rows) / len(rows)),
            words.number(count),
            words.time(round(total / count) if count else None),
            words.time(_middle([row.p50 for row in rows])),
            words.time(_middle([row.p90 for row in rows])),
            words.time(_middle([row.p99 for row in rows])),
            words.time(max(row.maximum for row in rows)),
            words.number(len(rows)),
        )
    )


def _middle(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def communication(view: View) -> Section | None:
    summary = view.summary
    found: defaultdict[tuple[str, str, str, int | None, str | None], list[CommunicationRow]] = defaultdict(list)
    for rank in summary.ranks:
        for row in rank.communication:
            found[row.source, row.group, row.kind.value, row.bytes, row.dtype].append(row)
    if not found:
        return None
    groups = {group.key: group.name or group.key for group in summary.groups}
    whole = sum(rank.window for rank in summary.ranks if rank.communication) or 1
    kept, left_out = most(sorted(found.values(), key=lambda rows: -sum(row.total for row in rows)))
    return Section(
        "communication",
        "Communication",
        (
            Table(
                "communication-times",
                "Communication by group, kind and size",
                (words.words("kind"), words.words("group"), words.numbers("size", "Per call", unit="bytes"),
                 words.words("type"), words.numbers("ranks"), words.numbers("count"), words.times("time"),
                 words.times("exposed", "Nothing else ran meanwhile"), words.numbers("exposed of window"),
                 words.times("p50"), words.times("p90"), words.words("by")),
                tuple(_communication(rows, groups, whole) for rows in kept),
                first=16,
                left_out=left_out,
            ),
        ),
        note=f"As each rank measured it, summed over {view.ranks(sum(bool(r.communication) for r in summary.ranks))}: "
        "waiting for late ranks is in here. Exposed: nothing else ran on the GPU, or, for gloo, on the main thread.",
        short="Communication",
    )  # fmt: skip


def _communication(rows: list[CommunicationRow], groups: dict[str, str], whole: int) -> Row:
    first = rows[0]
    spreads = [row.duration for row in rows if row.duration is not None]
    exposed = sum(row.exposed for row in rows)
    return Row(
        (
            Cell(first.kind.value, css="tight"),
            Cell(groups.get(first.group, first.group), css="faint", title=first.group),
            words.UNKNOWN if first.bytes is None else Cell(size(first.bytes), value=first.bytes),
            words.text(first.dtype),
            words.number(len(rows)),
            words.number(sum(row.count for row in rows)),
            words.time(sum(row.total for row in rows)),
            words.time(exposed),
            Cell(percent(exposed / whole), value=round(exposed / whole, 6)),
            words.time(_middle([spread.median for spread in spreads]) if spreads else None),
            words.time(_middle([spread.p90 for spread in spreads]) if spreads else None),
            Cell(first.source),
        )
    )
