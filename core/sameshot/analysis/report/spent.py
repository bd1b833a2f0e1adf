"""Where time went on each rank: main threads, GPUs and why they idled, waiting for data, launches, copies, pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sameshot.analysis.job import DATA_WAIT_CAVEAT
from sameshot.analysis.measures import DeviceTimes
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import BarRow, Bars, Block, Cell, Column, Piece, Row, Section, Table, Text
from sameshot.analysis.report.view import View, label, most
from sameshot.analysis.summary import Part, PartTimes, RankRow
from sameshot.analysis.text import ms, percent


def main_threads(view: View) -> Section | None:
    parts = view.summary.parts
    if not parts.total:
        return None
    present = [part for part in Part if parts.get(part)]
    blocks: list[Block] = [
        Bars(
            "main-parts",
            "Parts of each main thread's window",
            _with_all(view, parts_pieces(parts), [
                BarRow(r.label, r.node or "", parts_pieces(r.parts), ms(r.window), view.marked(r.label))
                for r in view.shown
            ]),
            legend=words.legend(list(present), words.PARTS),
            note=view.some,
        )
    ]  # fmt: skip
    pauses, left_out = most(
        sorted(((r, p) for r in view.summary.ranks for p in r.pauses), key=lambda pair: -pair[1].total)
    )
    if pauses:
        blocks.append(
            Table(
                "pauses",
                "Visible pauses",
                (words.words("rank"), words.words("kind"), words.numbers("count"), words.times("together"),
                 words.times("longest"), words.numbers("event", "Index of the longest one in traceEvents")),
                tuple(
                    Row(
                        (label(r), Cell({"gc": "garbage collection"}.get(p.kind, p.kind)), words.number(p.count),
                         words.time(p.total), words.time(p.longest),
                         Cell(str(p.longest_event), value=p.longest_event)),
                        view.marked(r.label),
                    )
                    for r, p in pauses
                ),
                left_out=left_out,
            )
        )  # fmt: skip
    python = [r for r in view.shown if r.untraced_python]
    if python:
        blocks.append(
            Table(
                "python",
                "Python where no operator ran",
                (words.words("rank"), words.name("function"), words.times("time"), words.numbers("count")),
                tuple(
                    Row(
                        (label(r), Cell(item.name, css="name"), words.time(item.self_time), words.number(item.count)),
                        view.marked(r.label),
                    )
                    for r in python
                    for item in r.untraced_python[:5]
                ),
            )
        )
    caveat = f" {DATA_WAIT_CAVEAT}" if parts.data_wait else ""
    return Section(
        "main-threads",
        "Where the main threads' time went",
        tuple(blocks),
        note="Each moment of a rank's window belongs to exactly one part. Untraced means that no event was recorded: "
        f"Python code, sleeping, or a blocking call.{caveat}",
        short="Main threads",
    )


def parts_pieces(parts: PartTimes) -> tuple[Piece, ...]:
    whole = parts.total
    return tuple(
        Piece(str(part), value / whole, f"{words.title_of(part, words.PARTS)}: {ms(value)} ({percent(value / whole)})")
        for part in Part
        if whole and (value := parts.get(part)) > 0
    )


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
            _with_all(
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
    for table in (_idle(view), _host_bound(view), _launches(view), _queues(view), _copies(view)):
        if table is not None:
            blocks.append(table)
    return Section(
        "gpus",
        "How the GPUs spent the window",
        tuple(blocks),
        note=f"{view.ranks(summary.device_ranks)}. Communication counts only where nothing computes; it includes "
        "waiting for late ranks, which is not useful work.",
        short="GPUs",
    )


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


def _with_all(view: View, pieces: tuple[Piece, ...], rows: list[BarRow], value: str = "") -> tuple[BarRow, ...]:
    """The sum over all ranks first, where there are several."""
    return tuple(rows) if view.single else (BarRow("all ranks", "", pieces, value), *rows)


def _per_rank(
    view: View,
    ident: str,
    caption: str,
    columns: tuple[Column, ...],
    rows: Callable[[RankRow], Iterator[tuple[Cell, ...]]],
    *,
    by: int,
    note: str = "",
    first: int = 12,
) -> Table | None:
    """A table of ranks (or of streams of ranks), those with most of column `by` first; None without any row."""
    found = [(rank, cells) for rank in view.summary.ranks for cells in rows(rank)]
    if len(view.summary.ranks) > 24:
        found.sort(key=lambda pair: -float(pair[1][by - 1].value or 0))
    kept, left_out = most(found)
    if not kept:
        return None
    return Table(
        ident,
        caption,
        (words.words("rank"), *columns),
        tuple(Row((label(rank), *cells), view.marked(rank.label)) for rank, cells in kept),
        note=note,
        first=first,
        left_out=left_out,
    )


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

    return _per_rank(
        view,
        "idle",
        "Why streams were idle",
        (words.words("stream"), words.times("host wait", "The next kernel was not yet launched"),
         words.times("kernel wait", "Launched, and closely following the kernel before"), words.times("other"),
         words.words("")),
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
                Cell(_listed(found.operators), css="wide mono"),
                Cell(_listed(found.python), css="wide mono"),
            )

    return _per_rank(
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


def _listed(items: tuple[object, ...]) -> str:
    return ", ".join(f"{item.name} {ms(item.self_time)}" for item in items[:3]) or "–"  # type: ignore[attr-defined]


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

    return _per_rank(
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

    return _per_rank(
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

    return _per_rank(
        view,
        "copies",
        "Copies and memsets",
        (words.words("kind"), words.numbers("count"), words.times("time"), words.numbers("size", unit="bytes"),
         words.numbers("GB/s")),
        rows,
        by=3,
    )  # fmt: skip


def data(view: View) -> Section | None:
    """Waiting for the next batch; what it does not tell stands beside it."""
    known = [(rank, rank.data_wait) for rank in view.summary.ranks if rank.data_wait is not None]
    if not known:
        return None

    def rows(rank: RankRow) -> Iterator[tuple[Cell, ...]]:
        if (found := rank.data_wait) is not None:
            yield (
                words.number(found.fetches),
                words.time(found.raw),
                words.time(found.felt),
                words.time(found.hidden),
                words.share(found.share),
                words.time(found.felt_per_step.median if found.felt_per_step else None),
                words.time(found.raw_per_step.median if found.raw_per_step else None),
                words.number(found.copies),
                Cell({True: "data-bound", False: "no", None: "can't be said"}[found.bound], css="tight"),
                Cell(found.method),
            )

    table = _per_rank(
        view,
        "data-waits",
        "Waiting for the next batch",
        (words.numbers("fetches"), words.times("in the fetch"), words.times("felt", "Of it, the GPU was idle for it"),
         words.times("hidden", "The GPU had other work meanwhile"), words.numbers("of window"),
         words.times("felt per step", "Median"), words.times("in the fetch per step", "Median"),
         words.numbers("blocking copies", "Host to device, synchronous or pageable"), words.words("bound"),
         words.words("known from")),
        rows,
        by=5,
    )  # fmt: skip
    if table is None:
        return None
    sentences = list(dict.fromkeys(words.capitalised(found.sentence) for _, found in known if found.sentence))[:4]
    return Section(
        "data",
        "Waiting for data",
        (*((Text(tuple(sentences)),) if sentences else ()), table),
        note=DATA_WAIT_CAVEAT,
        short="Data",
    )
