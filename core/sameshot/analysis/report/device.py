"""How the GPUs spent the window, why they idled, and how work reached them."""

from __future__ import annotations

from collections.abc import Iterator

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    BarRow,
    Bars,
    Block,
    Cell,
    Fold,
    Piece,
    Section,
    Table,
)
from sameshot.analysis.report.tables import listed, per_rank, with_all
from sameshot.analysis.report.view import View
from sameshot.analysis.results import DeviceTimes, RankRow
from sameshot.analysis.text import ms, percent


def gpus(view: View) -> Section | None:
    """Compute, communication, memory and idle, with what overlapped, and why the GPUs idled."""
    summary, blocks = view.summary, list[Block]()
    if summary.device is None or not summary.device.total:
        return None
    shown = [(rank, rank.device) for rank in view.shown if rank.device is not None]
    present = [word for word in words.DEVICE_PARTS if any(_device(device)[word] for _, device in shown)]
    blocks.append(
        Bars(
            "device-parts",
            "Computing, communication, copying and idle time of each rank's GPUs",
            with_all(
                view,
                device_pieces(summary.device),
                [
                    BarRow(r.label, r.node or "", device_pieces(device), f"{_overlap(device)}", view.marked(r.label))
                    for r, device in shown
                ],
                value=_overlap(summary.device),
            ),
            legend=words.legend(list(present), words.DEVICE_PARTS),
            note=("Right: the share of communication that ran beside compute. " if any(d.overlap is not None for _, d in
                  shown) else "") + view.some,
        )
    )  # fmt: skip
    blocks += [table for table in (_idle(view), _host_bound(view)) if table is not None]
    return Section(
        "gpus",
        "How the GPUs spent the window",
        tuple(blocks),
        note=f"{view.ranks(summary.device_ranks)}. Communication counts only where nothing computes; it includes "
        "waiting for late ranks, which is not useful work.",
        short="GPUs",
    )


def launching(view: View) -> Section | None:
    """How work reached the GPUs."""
    launches, queues, copies = _launches(view), _queues(view), _copies(view)
    blocks: list[Block] = [launches] if launches is not None else []
    blocks += [Fold(table.caption, (table,), open=not blocks) for table in (queues, copies) if table is not None]
    return Section("launching", "Launches, queues and copies", tuple(blocks), short="Launches") if blocks else None


def _device(times: DeviceTimes) -> dict[str, int]:
    return {
        "compute": times.compute - min(times.overlapped, times.compute),
        "overlapped": min(times.overlapped, times.compute),
        "communication": times.communication,
        "memory": times.memory,
        "idle": times.idle,
    }


def device_pieces(times: DeviceTimes) -> tuple[Piece, ...]:
    whole = times.total
    return tuple(
        Piece(word, value / whole, f"{words.DEVICE_PARTS[word]}: {ms(value)} ({percent(value / whole)})")
        for word, value in _device(times).items()
        if whole and value > 0
    )


def _overlap(times: DeviceTimes) -> str:
    return "" if times.overlap is None else f"{percent(times.overlap)}"


def _idle(view: View) -> Table | None:
    def rows(rank: RankRow) -> Iterator[tuple[Cell, ...]]:
        for row in rank.idle:
            pieces = (("host_wait", "not yet launched", row.host_wait), ("kernel_wait", "between kernels",
                      row.kernel_wait), ("other", "other", row.other))  # fmt: skip
            whole = row.host_wait + row.kernel_wait + row.other
            yield (
                Cell(row.stream, css="mono tight"),
                words.time(row.host_wait),
                words.time(row.kernel_wait),
                words.time(row.other),
                Cell("–", pieces=tuple(Piece(c, v / whole, f"{t}: {ms(v)}") for c, t, v in pieces if whole and v > 0)),
            )

    return per_rank(
        view,
        "idle",
        "Why streams were idle",
        (words.words("stream"), words.times("host wait", "The next kernel was not yet launched"),
         words.times("kernel wait", "Launched, and closely following the kernel before"), words.times("other"),
         words.bar("as a bar")),
        rows,
        by=2,
        note="Host wait: nothing was launched yet. Kernel wait: kernels that follow each other at once.",
    )  # fmt: skip


def _host_bound(view: View) -> Table | None:
    def rows(rank: RankRow) -> Iterator[tuple[Cell, ...]]:
        if (found := rank.host_bound) is not None:
            yield (
                words.time(found.total),
                words.share(found.share),
                words.number(found.gaps),
                Cell(listed(found.operators), css="wide mono"),
                Cell(listed(found.python), css="wide mono"),
            )

    return per_rank(
        view,
        "host-bound",
        "GPU idle because the launching thread was busy",
        (words.times("time"), words.numbers("of window"), words.numbers("gaps"), words.words("meanwhile in operators"),
         words.words("in Python")),
        rows,
        by=1,
        note="Gaps that end with a kernel which began at most 20 µs after its launch call returned, without what was "
        "already counted as waiting for data.",
    )  # fmt: skip


def _launches(view: View) -> Table | None:
    def rows(rank: RankRow) -> Iterator[tuple[Cell, ...]]:
        if (found := rank.launches) is not None:
            yield (
                words.number(found.count),
                words.time(found.call.median if found.call else None),
                words.time(found.delay.median if found.delay else None),
                words.time(found.delay.p90 if found.delay else None),
                words.time(found.kernel.median if found.kernel else None),
                words.number(found.longer_than_kernel),
                words.number(found.without_launch),
                words.number(found.graph_launches),
                words.number(found.graph_kernels),
            )

    return per_rank(
        view,
        "launches",
        "Launches",
        (words.numbers("launches"), words.times("call", "Median duration of the launch call"),
         words.times("delay", "Median, end of the call → start on the device"), words.times("delay p90"),
         words.times("kernel", "Median duration on the device"),
         words.numbers("call > kernel", "Launches whose call took longer than what they launched"),
         words.numbers("no launch seen", "Device work whose launch was not recorded"),
         words.numbers("graph launches"), words.numbers("graph kernels")),
        rows,
        by=1,
    )  # fmt: skip


def _queues(view: View) -> Table | None:
    def rows(rank: RankRow) -> Iterator[tuple[Cell, ...]]:
        for row in rank.queues:
            yield (
                Cell(row.stream, css="mono tight"),
                words.real(row.mean),
                words.number(row.maximum),
                words.share(row.empty_share),
            )

    return per_rank(
        view,
        "queues",
        "Queues",
        (words.words("stream"), words.numbers("mean length"), words.numbers("longest"),
         words.numbers("empty", "Share of the window in which nothing was queued")),
        rows,
        by=4,
        note="Work that was launched and not yet finished, weighted by time. An empty queue means that the host does "
        "not run ahead of the GPU.",
    )  # fmt: skip


def _copies(view: View) -> Table | None:
    def rows(rank: RankRow) -> Iterator[tuple[Cell, ...]]:
        for row in rank.copies:
            yield (
                Cell(row.kind, css="tight"),
                words.number(row.count),
                words.time(row.total),
                words.amount(row.bytes),
                words.real(row.gb_per_s),
            )

    return per_rank(
        view,
        "copies",
        "Copies and memsets",
        (words.words("kind"), words.numbers("count"), words.times("time"), words.numbers("size", unit="bytes"),
         words.numbers("GB/s")),
        rows,
        by=3,
    )  # fmt: skip
