"""Rank × time: what every main thread and every GPU mostly did, as one picture of a line (or a band) per rank."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import Block, Lane, Picture, Section, Tick
from sameshot.analysis.report.png import Colour, png
from sameshot.analysis.report.view import View
from sameshot.analysis.results import RankRow, Timeline
from sameshot.analysis.text import count, ms

# The colours of style.css; grey lets the page through, so that one picture suits light and dark.
_COLOURS: dict[str, Colour] = {
    "": (0, 0, 0, 0),
    "operators": (0x34, 0x70, 0xCF, 255),
    "communication": (0xEE, 0xA1, 0x2E, 255),
    "data_wait": (0x8A, 0x57, 0xCF, 255),
    "runtime": (0x17, 0x80, 0x7A, 255),
    "backward_thread": (0x7D, 0xB3, 0xEA, 255),
    "untraced": (120, 132, 150, 107),
    "compute": (0x34, 0x70, 0xCF, 255),
    "memory": (0x17, 0x80, 0x7A, 255),
    "idle": (120, 132, 150, 107),
    "step": (120, 132, 150, 255),
}
_INDEX = {word: index for index, word in enumerate(_COLOURS)}
_WIDTH = 960
_WIDTH_OF_MANY = 480
_NAMED_LANES = 64  # with more ranks than this, a line has no room for its name


def section(view: View) -> Section | None:
    ranks = [rank for rank in view.summary.ranks if rank.timeline is not None or rank.device_timeline is not None]
    if not ranks:
        return None
    whole, starts, aligned = _axis(ranks)
    note = (
        f"{_placed(view, aligned)} Where one rank holds the others up, their waiting (orange) stands above and below "
        "its own long piece."
        if len(ranks) > 1
        else "What filled most of each moment."
    )
    chosen = list(zip(ranks, starts, strict=True))
    if len(ranks) > _NAMED_LANES:
        keep = {rank.label for rank in view.few}
        few = [pair for pair in chosen if pair[0].label in keep]
        blocks = [*_pictures(view, "few", f"{count(len(few), 'rank')} of {len(view.summary.ranks)}: ", few, whole)]
        every = "All ranks: " if len(ranks) == len(view.summary.ranks) else f"{count(len(ranks), 'rank')}: "
        blocks += _pictures(view, "all", every, chosen, whole)
    else:
        blocks = _pictures(view, "all", "", chosen, whole)
    return Section("timeline", "The window on one screen", tuple(blocks), note=note, short="Timeline")


def _placed(view: View, aligned: bool) -> str:
    """By which clocks the lines lie side by side."""
    if not aligned:
        return "The clocks of the hosts lie too far apart for one axis: each line begins with its own window."
    hosts = view.summary.clocks.hosts if view.summary.clocks is not None else ()
    if len(hosts) > 1 and all(host.offset is not None for host in hosts):
        error = max((host.expected_error or 0 for host in hosts), default=0)
        return f"Each rank's window on one clock: hosts were aligned on their collectives (expected error {ms(error)})."
    return "Each rank's window where the clock of its host puts it."


def _pictures(view: View, ident: str, title: str, chosen: list[tuple[RankRow, int]], whole: int) -> list[Block]:
    ranks, starts = [rank for rank, _ in chosen], [start for _, start in chosen]
    host = [rank.timeline for rank in ranks]
    device = [rank.device_timeline for rank in ranks]
    found: list[Block] = []
    if any(host):
        found.append(_picture(view, f"{ident}-host", f"{title}main threads", ranks, host, words.PARTS, whole, starts))
    if any(device):
        found.append(
            _picture(view, f"{ident}-device", f"{title}GPUs", ranks, device, words.DEVICE_PARTS, whole, starts)
        )
    return found


def _axis(ranks: list[RankRow]) -> tuple[int, list[int], bool]:
    """The length of the common axis, where each window begins on it, and whether the clocks allow one."""
    whole = max(rank.starts_after + rank.window for rank in ranks)
    longest = max(rank.window for rank in ranks)
    if whole > 100 * longest:
        return longest or 1, [0] * len(ranks), False
    return whole or 1, [rank.starts_after for rank in ranks], True


def _picture(
    view: View,
    ident: str,
    title: str,
    ranks: list[RankRow],
    lines: list[Timeline | None],
    titles: dict[str, str],
    whole: int,
    starts: list[int],
) -> Picture:
    many = len(ranks) > _NAMED_LANES
    height, gap = (
        (max(1, min(4, 1000 // len(ranks))), 0)
        if many
        else (22, 4)
        if len(ranks) <= 3
        else (14, 4)
        if len(ranks) <= 24
        else (10, 2)
    )
    width = _WIDTH_OF_MANY if many else _WIDTH
    cells = np.zeros((len(ranks) * (height + gap), width), dtype=np.uint8)
    seen: set[str] = set()
    for number, (rank, line, start) in enumerate(zip(ranks, lines, starts, strict=True)):
        if line is None:
            continue
        top = number * (height + gap) + gap // 2
        begin, end = round(start / whole * width), max(round((start + rank.window) / whole * width), 1)
        cells[top : top + height, begin:end] = _sampled(line, end - begin, seen)
        if not many and len(rank.step_edges) <= width // 8:
            at = [min(round((start + edge) / whole * width), width - 1) for edge in rank.step_edges]
            cells[top + height : top + height + gap - gap // 2, at] = _INDEX["step"]
    colours = [word for word in titles if word in seen]
    steps = not many and any(rank.step_edges for rank in ranks)
    return Picture(
        ident=ident,
        title=words.capitalised(title),
        alt=f"{words.capitalised(title)}: what each of {count(len(ranks), 'rank')} mostly did over {ms(whole)}. "
        "The sums are in the charts and tables below.",
        png=base64.b64encode(png(cells, tuple(_COLOURS.values()))).decode(),
        lanes=tuple(_lanes(view, ranks, many, height + gap)),
        lane_height=height + gap,
        ticks=tuple(_ticks(whole)),
        span=whole,
        legend=words.legend(colours, titles),
        labels=not many,
        note="Small marks below a line: a step begins." if steps and titles is words.PARTS else "",
    )


def _sampled(line: Timeline, width: int, seen: set[str]) -> npt.NDArray[np.uint8]:
    """The runs of a timeline as `width` palette indices."""
    names = [str(word) for word, _ in line.runs]
    seen.update(names)
    codes = np.repeat(
        np.array([_INDEX.get(word, _INDEX[""]) for word in names], dtype=np.uint8), [length for _, length in line.runs]
    )
    if not len(codes) or width <= 0:
        return np.zeros(max(width, 0), dtype=np.uint8)
    return codes[np.minimum(np.arange(width) * line.buckets // width, len(codes) - 1)]


def _lanes(view: View, ranks: list[RankRow], many: bool, height: int) -> list[Lane]:
    if not many:
        return [Lane(rank.label, view.marked(rank.label), rank.node or "") for rank in ranks]
    every = next(step for step in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if step * height >= 40)
    named = [number for number, rank in enumerate(ranks) if view.marked(rank.label)][:50]
    near = 16 / height
    lanes = []
    for number, rank in enumerate(ranks):
        marked = number in named
        tick = number % every == 0 and all(abs(number - other) > near for other in named)
        lanes.append(Lane(rank.label, marked, rank.label if marked or tick else ""))
    return lanes


def _ticks(whole: int) -> list[Tick]:
    """Some five round moments."""
    for step in (s * 10**e for e in range(14) for s in (1, 2, 5)):
        if whole / step <= 8:
            return [Tick(t / whole * 100, ms(t) if t else "0") for t in range(0, whole, step)]
    return []
