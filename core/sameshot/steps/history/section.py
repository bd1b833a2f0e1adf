"""The history of a series as a part of a report, and as a page of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import sameshot
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    Block,
    Cell,
    Course,
    Dot,
    FindingLine,
    Findings,
    Level,
    Notice,
    Page,
    Row,
    Section,
    Table,
    Text,
    Tick,
)
from sameshot.analysis.report.page import page
from sameshot.analysis.text import count, ms
from sameshot.model import JobRef
from sameshot.steps import places
from sameshot.steps.history.alike import alike
from sameshot.steps.history.row import HistoryRow
from sameshot.steps.history.trend import RELEVANT, Change, Trend, trend, usable, when
from sameshot.steps.results import shortened

_PLAIN = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")  # the same on every store and in every link
_DRAWN = 100  # captures in the drawing
_LISTED = 20
_GRADES = {Change.SLOWER: "bad", Change.FASTER: "good"}


def section(
    rows: Sequence[HistoryRow], *, current: str | None = None, relevant: float = RELEVANT,
    warnings: Sequence[str] = (), ident: str = "history", title: str = "",
) -> Section | None:  # fmt: skip
    """One series: its trend in a sentence, its time per step drawn, and its last captures; None without any row.

    `current` is the id of the capture whose report this is. Earlier reports are linked where they can be opened: at
    http(s) addresses, and those that lie below the same results_uri as this one, from there, so that the links work
    wherever all results are served. `warnings` are those of reading the rows; `ident` must be another one for each
    section.
    """
    if not rows:
        return None
    ordered = sorted(rows, key=lambda row: row.key)
    found = trend(ordered, relevant=relevant)
    grade = _GRADES.get(found.change, "warn" if found.apart else "")
    blocks: list[Block] = [Findings((FindingLine(grade, found.sentence, "", ()),))]
    if warnings:
        blocks.append(Text(tuple(warnings), points=True))
    drawing = _course(ordered, found, f"{ident}-course")
    if drawing is not None:
        blocks.append(drawing)
    blocks.append(_table(ordered, found, current, f"{ident}-captures", title))
    name = shortened(f"{ordered[-1].namespace}/{ordered[-1].series}", 120)
    return Section(
        ident,
        title or "The series so far",
        tuple(blocks),
        note=f"{count(len(ordered), 'capture')} of {name}{_left_out(found)}.",
        short=shortened(title, 60) or "History",
    )


def history_page(
    series: Sequence[tuple[Sequence[HistoryRow], str]], *, where: str, warnings: Sequence[str] = ()
) -> str:
    """A page with a section for each series: its rows and its title. `where` is the results_uri, for the footer."""
    sections = [
        made
        for number, (rows, title) in enumerate(series)
        if (made := section(rows, ident=f"history-{number}", title=title)) is not None
    ]
    captures = sum(len(rows) for rows, _ in series)
    one = series[0][1] if len(series) == 1 else f"{len(series)} series"
    return page(
        Page(
            title=f"History of {one} · sameshot",
            heading=f"History of {one}",
            meta=where,
            pill=count(captures, "capture"),
            pill_grade="open",
            lead=tuple(Notice("warning", "", warning) for warning in warnings),
            sections=tuple(sections),
            footer=(f"sameshot {sameshot.__version__}", where),
        )
    )


def _left_out(found: Trend) -> str:
    said = ""
    if found.left_out:
        said += f"; {count(found.left_out, 'capture')} without a step time, or not successful, count for no trend"
    if found.unlike:
        said += f"; {count(found.unlike, 'capture')} recorded otherwise are in the table only"
    return said


def _course(ordered: Sequence[HistoryRow], found: Trend, ident: str) -> Course | None:
    """The time per step of the last captures that were recorded alike, evenly spaced in the order of time."""
    timed = alike(usable(ordered))[-_DRAWN:]
    if len(timed) < 2:
        return None
    times = [row.headline.step_time_ns or 0 for row in timed]
    step, top = _scale(max(times))
    place = {row.key: 100 * (number + 0.5) / len(timed) for number, row in enumerate(timed)}
    broken = found.found
    turn, levels = None, []
    if broken is not None and broken.first.key in place:
        half = 50 / len(timed)
        turn = place[broken.first.key] - half
        begin = max(turn - 2 * half * broken.captures_before, 0.0)
        levels = [
            Level(begin, turn, 100 * broken.before_ns / top),
            Level(turn, 100.0, 100 * broken.after_ns / top),
        ]
    elif found.level_ns is not None:
        levels = [Level(0.0, 100.0, 100 * found.level_ns / top)]
    first = None if broken is None else broken.first.key
    every = max(1, math.ceil(len(timed) / 5))
    several = len({row.captured_at[:10] for row in timed[::every]}) == len(timed[::every])
    return Course(
        ident=ident,
        title="Time per step, capture by capture",
        alt=f"Median time per step of {count(len(timed), 'capture')}, from {ms(min(times))} to {ms(max(times))}. "
        f"{found.sentence} The numbers are in the table below.",
        dots=tuple(
            Dot(
                place[row.key],
                100 * time / top,
                f"{when(row)}: {ms(time)} per step, capture {row.capture_id}",
                row.key == first,
            )
            for row, time in zip(timed, times, strict=True)
        ),
        levels=tuple(levels),
        across=tuple(
            Tick(place[row.key], row.captured_at[:10] if several else when(row)[5:16]) for row in timed[::every]
        ),
        up=tuple(Tick(100 * at / top, ms(at) if at else "0") for at in range(0, top + 1, step)),
        turn=turn,
        grade=_GRADES.get(found.change, "bad"),
        note="Evenly spaced in the order of time, not by dates. The dashed line: here the level changed."
        if turn is not None
        else "Evenly spaced in the order of time, not by dates.",
    )


def _scale(most: int) -> tuple[int, int]:
    """A round distance of lines and the top of the drawing, with at most five lines above zero."""
    step = next(s * 10**e for e in range(20) for s in (1, 2, 5) if most <= 5 * s * 10**e)
    return step, step * math.ceil(most / step)


def _table(ordered: Sequence[HistoryRow], found: Trend, current: str | None, ident: str, title: str) -> Table:
    shown = list(reversed(ordered[-_LISTED:]))
    here = next((row for row in ordered if row.capture_id == current), None)
    cells = [_cells(row, here) for row in shown]
    first = None if found.found is None else found.found.first.key
    more = len(ordered) - len(shown)
    return Table(
        ident,
        f"The last captures{f' of {title}' if title else ''}, newest first",  # several on a page are told apart
        (words.words("captured"), words.words("capture"), words.words("outcome"), words.words("ranks"),
         words.numbers("world size"), words.times("step", "Median over all steps of all ranks"),
         words.times("spread", "90th minus 10th percentile of the steps"), words.numbers("GPU busy"),
         words.numbers("exposed communication"), words.numbers("data wait"), words.numbers("host-bound"),
         words.times("waiting", "For late ranks, per step and rank"), words.words("late"), words.words("image"),
         words.words("commit")),
        tuple(Row(each, row.key == first) for each, row in zip(cells, shown, strict=True)),
        note=" ".join(_notes(cells, marked=any(row.key == first for row in shown))),
        first=_LISTED,
        left_out=f"{count(more, 'earlier capture')} in the history" if more else "",
    )  # fmt: skip


def _notes(cells: Sequence[tuple[Cell, ...]], *, marked: bool) -> Iterator[str]:
    if marked:
        yield "Where the level changed is marked."
    if any(cell.href.startswith("../") for row in cells for cell in row):
        yield "Earlier reports open as long as this page lies among its results."


def _cells(row: HistoryRow, here: HistoryRow | None) -> tuple[Cell, ...]:
    numbers = row.headline
    this = here is not None and row.capture_id == here.capture_id
    return (
        Cell(when(row), value=row.captured_at, css="tight"),
        Cell(
            f"{row.capture_id}{' (this one)' if this else ''}",
            css="mono tight",
            title=row.job,
            href="" if this else openable(row.report_uri) or _from(here, row),
        ),
        Cell(row.outcome.value.lower()),
        Cell(f"{row.analysed_ranks} of {row.expected_ranks}", css="tight"),
        words.number(row.world_size),
        words.time(numbers.step_time_ns),
        words.time(numbers.step_spread_ns),
        words.share(numbers.gpu_busy_share),
        words.share(numbers.communication_exposed_share),
        words.share(numbers.data_wait_share),
        words.share(numbers.host_bound_share),
        words.time(numbers.waiting_ns),
        words.text(numbers.late),
        words.text(row.image and shortened(row.image, 60), title=row.image or ""),
        words.text(row.commit and shortened(row.commit, 16), "mono", title=row.commit or ""),
    )


def openable(uri: str | None) -> str:
    """The address, if a browser can open it and it is nothing else than a page: http or https with a host; else ""."""
    if not uri or not uri.isprintable() or " " in uri:
        return ""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    return uri if parts.scheme in ("http", "https") and parts.netloc else ""


def _from(here: HistoryRow | None, row: HistoryRow) -> str:
    """The way from one report to another below the same results_uri; "" where there is none."""
    if here is None or not here.report_uri or not row.report_uri:
        return ""
    job = JobRef(here.namespace, here.job, here.job_uid, here.attempt)
    own = f"{places.capture_folder(job, here.capture_id)}/report.html"
    if not here.report_uri.endswith(f"/{own}"):
        return ""
    root = here.report_uri.removesuffix(own)
    rest = row.report_uri.removeprefix(root)
    if rest == row.report_uri or not _PLAIN.fullmatch(rest) or ".." in rest:
        return ""
    return "../" * own.count("/") + rest
