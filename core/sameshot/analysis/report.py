"""`report.html`: one self-contained page that a person likes to read.

No script, no font, no link leaves the page: it can be mailed, archived, and opened in ten years. What is missing comes
first, and every job-wide number says on how many ranks it rests. The template (`templates/report.html.j2`) only places
what is computed here.
"""

from __future__ import annotations

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from sameshot.analysis import names
from sameshot.analysis.cause import because
from sameshot.analysis.job import DATA_WAIT_CAVEAT, PART_WORDS
from sameshot.analysis.measures import DeviceTimes, NamedTime
from sameshot.analysis.summary import (
    Cause,
    CollectiveRow,
    LateRank,
    Part,
    PartTimes,
    RankRow,
    Summary,
    Verdict,
)
from sameshot.analysis.text import count, ms, percent, size

_MOST_LANES = 64  # more ranks than this do not fit on a page; the late ones are always shown
_WIDTH = 1000.0

PART_TITLES: dict[Part, str] = {
    Part.OPERATORS: "operators",
    Part.COMMUNICATION: "communication",
    Part.DATA_WAIT: "data wait",
    Part.RUNTIME: "CUDA calls",
    Part.BACKWARD_THREAD: "waiting for the backward thread",
    Part.UNTRACED: "untraced",
}

CAUSE_TITLES: dict[Cause, str] = {
    Cause.OPERATORS: "slower operators",
    Cause.DATA_WAIT: "waiting for data",
    Cause.UNTRACED: "untraced time",
    Cause.UNKNOWN: "unknown",
}


class Bar(msgspec.Struct, frozen=True):
    """One piece of a stacked bar; `share` is of the whole, 0 to 1."""

    css: str
    title: str
    share: float
    text: str


class Box(msgspec.Struct, frozen=True):
    """A rectangle in a drawing."""

    x: float
    width: float
    css: str
    title: str


class Lane(msgspec.Struct, frozen=True):
    label: str
    late: bool
    y: float
    boxes: tuple[Box, ...]


class Tick(msgspec.Struct, frozen=True):
    x: float
    text: str


class SpreadLine(msgspec.Struct, frozen=True):
    """Where one rank's step times lie, in percent of the drawing's width."""

    label: str
    late: bool
    low: float
    p10: float
    median: float
    p90: float
    high: float
    text: str


class Tile(msgspec.Struct, frozen=True):
    title: str
    value: str
    detail: str


def render(summary: Summary) -> str:
    """The whole page as text."""
    environment = Environment(
        loader=PackageLoader("sameshot.analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(ms=ms, percent=percent, size=size)
    shown = _shown(summary)
    lanes, ticks = _timeline(summary, shown)
    page: str = environment.get_template("report.html.j2").render(
        s=summary,
        shown=shown,
        hidden=len(summary.ranks) - len(shown),
        late_labels=_late_labels(summary),
        verdict_class=_VERDICT_CLASS[summary.late.verdict],
        verdict_title=_verdict_title(summary),
        lead=_lead,
        cause_title=lambda rank: CAUSE_TITLES[rank.cause],
        excess=_excess,
        tiles=_tiles(summary),
        legend=_legend(summary),
        part_titles=PART_TITLES,
        caveat=DATA_WAIT_CAVEAT if summary.parts.data_wait else "",
        parts=parts_bars,
        device=device_bars,
        lanes=lanes,
        ticks=ticks,
        lane_height=_LANE,
        timeline_height=_LANE * len(lanes) + 22,
        spreads=_spreads(shown, _late_labels(summary)),
        slowest_step=max((rank.step_time.maximum for rank in shown if rank.step_time is not None), default=0),
        operators=_named(summary.operators),
        kernels=_named(summary.kernels),
        collectives=summary.collectives[:24],
        split=_split,
        count=count,
        ranks=lambda number: count(number, "rank"),
    )
    return page


_VERDICT_CLASS = {Verdict.LATE: "bad", Verdict.NONE: "good", Verdict.UNKNOWN: "open"}


def _verdict_title(summary: Summary) -> str:
    found = summary.late
    if found.verdict is Verdict.NONE:
        return "No rank is late"
    if summary.analysed_ranks < 2:
        return "One rank, nothing to compare"
    if found.verdict is Verdict.UNKNOWN:
        return "Which rank is late can't be said"
    *others, last = (rank.label for rank in found.ranks)
    return _capitalised(f"{', '.join(others)} and {last} are late" if others else f"{last} is late")


def _lead(summary: Summary, rank: LateRank) -> str:
    """The sentence below the title, without what the title says already."""
    sentence = rank.sentence.partition(": ")[2] if len(summary.late.ranks) == 1 else rank.sentence
    why = because(rank)
    return _capitalised(f"{sentence}{'; ' + why if why else ''}.")


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _late_labels(summary: Summary) -> frozenset[str]:
    return frozenset(rank.label for rank in summary.late.ranks)


def _shown(summary: Summary) -> list[RankRow]:
    """All ranks, or so many as fit on a page: the late ones, and the others evenly spread."""
    if len(summary.ranks) <= _MOST_LANES:
        return list(summary.ranks)
    labels = _late_labels(summary)
    keep = {i for i, rank in enumerate(summary.ranks) if rank.label in labels}
    room = max(_MOST_LANES - len(keep), 1)
    keep |= {round(i * (len(summary.ranks) - 1) / (room - 1 or 1)) for i in range(room)}
    return [rank for i, rank in enumerate(summary.ranks) if i in keep]


def parts_bars(parts: PartTimes) -> list[Bar]:
    whole = parts.total
    return [
        Bar(f"p-{part}", PART_TITLES[part], value / whole, f"{ms(value)} {PART_WORDS[part]}")
        for part in Part
        if whole and (value := parts.get(part)) > 0
    ]


def device_bars(device: DeviceTimes) -> list[Bar]:
    whole = device.total
    pieces = (
        ("d-compute", "computing", device.compute),
        ("d-communication", "only communicating", device.communication),
        ("d-memory", "only copying", device.memory),
        ("d-idle", "idle", device.idle),
    )
    return [
        Bar(css, title, value / whole, f"{ms(value)} {title}") for css, title, value in pieces if whole and value > 0
    ]


def _legend(summary: Summary) -> list[Part]:
    return [part for part in Part if summary.parts.get(part)]


def _tiles(summary: Summary) -> list[Tile]:
    tiles = []
    if (step := summary.step_time) is not None:
        spread = f"8 of 10 between {ms(step.p10)} and {ms(step.p90)}; " if step.count >= 10 else ""
        tiles.append(
            Tile(
                "step time",
                ms(step.median),
                f"median; {spread}{count(step.count, 'step')}, {count(summary.step_ranks, 'rank')}",
            )
        )
    else:
        tiles.append(Tile("step time", "unknown", "no training steps could be recognised"))
    whole = summary.parts.total
    for part, caveat in ((Part.COMMUNICATION, ""), (Part.DATA_WAIT, f". {DATA_WAIT_CAVEAT}"), (Part.OPERATORS, "")):
        if whole:
            tiles.append(
                Tile(
                    PART_TITLES[part],
                    percent(summary.parts.get(part) / whole),
                    f"of main-thread time, {count(summary.analysed_ranks, 'rank')}{caveat}",
                )
            )
    if (device := summary.device) is not None and device.total:
        tiles.append(
            Tile(
                "GPU idle", percent(device.idle / device.total), f"of the window, {count(summary.device_ranks, 'rank')}"
            )
        )
    common = summary.common_window
    tiles.append(
        Tile(
            "common window",
            "none" if common is None or common <= 0 else ms(common),
            f"shared by {count(summary.analysed_ranks, 'rank')}"
            + (f"; {ms(summary.capture.asked_window)} asked for" if summary.capture.asked_window else ""),
        )
    )
    return tiles


_LANE = 26.0


def _timeline(summary: Summary, shown: list[RankRow]) -> tuple[list[Lane], list[Tick]]:
    whole = max((rank.starts_after + rank.window for rank in shown), default=0)
    if not whole or whole > 100 * max(rank.window for rank in shown):
        whole = max((rank.window for rank in shown), default=1) or 1
        starts = {rank.target_id: 0 for rank in shown}  # clocks too far apart to draw one axis
    else:
        starts = {rank.target_id: rank.starts_after for rank in shown}
    labels, lanes = _late_labels(summary), []
    for number, rank in enumerate(shown):
        boxes, at = [], float(starts[rank.target_id])
        if rank.timeline is not None:
            for part, buckets in rank.timeline.runs:
                length = rank.window * buckets / rank.timeline.buckets
                boxes.append(
                    Box(
                        round(at / whole * _WIDTH, 2),
                        round(length / whole * _WIDTH, 2),
                        f"p-{part}",
                        f"{rank.label}: {PART_TITLES[Part(part)]} for about {ms(length)}",
                    )
                )
                at += length
        lanes.append(Lane(rank.label, rank.label in labels, number * _LANE, tuple(boxes)))
    return lanes, _ticks(whole)


def _ticks(whole: int) -> list[Tick]:
    """Some five round moments."""
    for step in (s * 10**e for e in range(13) for s in (1, 2, 5)):
        if whole / step <= 6:
            return [Tick(round(t / whole * _WIDTH, 2), ms(t) if t else "0") for t in range(0, whole, step)]
    return []


def _spreads(shown: list[RankRow], late_labels: frozenset[str]) -> list[SpreadLine]:
    known = [(rank, rank.step_time) for rank in shown if rank.step_time is not None]
    top = max((spread.maximum for _, spread in known), default=0)
    if not top:
        return []
    return [
        SpreadLine(
            label=rank.label,
            late=rank.label in late_labels,
            low=100 * spread.minimum / top,
            p10=100 * spread.p10 / top,
            median=100 * spread.median / top,
            p90=100 * spread.p90 / top,
            high=100 * spread.maximum / top,
            text=f"median {ms(spread.median)}, {ms(spread.minimum)} to {ms(spread.maximum)}, "
            f"{count(spread.count, 'step')}",
        )
        for rank, spread in known
    ]


class NamedBar(msgspec.Struct, frozen=True):
    item: NamedTime
    css: str
    share: float  # of the largest self time


def _named(items: tuple[NamedTime, ...]) -> list[NamedBar]:
    top = max((item.self_time for item in items), default=0) or 1
    return [
        NamedBar(
            item,
            "p-communication"
            if names.is_host_communication(item.name) or names.is_nccl_kernel(item.name)
            else "p-operators",
            item.self_time / top,
        )
        for item in items[:14]
    ]


def _split(row: CollectiveRow) -> list[Bar]:
    """Wait against transfer, per rank: a collective that mostly waits is not a slow network."""
    if row.mean_wait is None or row.mean_transfer is None:
        return []
    whole = row.mean_wait + row.mean_transfer
    pieces = (("c-wait", "waiting for the last rank", row.mean_wait), ("c-transfer", "transfer", row.mean_transfer))
    return [Bar(css, title, v / whole, f"{ms(v)} {title}") for css, title, v in pieces if whole and v > 0]


def _excess(rank: LateRank) -> list[Bar]:
    """What the late rank did more of than its peers, per step; share is of the largest."""
    if rank.excess is None:
        return []
    values = [(part, rank.excess.get(part)) for part in Part if abs(rank.excess.get(part)) >= 50_000]
    top = max((abs(value) for _, value in values), default=1)
    return [
        Bar(f"p-{part}", PART_TITLES[part], value / top, f"{'+' if value > 0 else ''}{ms(value)}")
        for part, value in values
    ]
