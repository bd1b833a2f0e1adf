"""What a person reads first: missing ranks, the verdict, warnings, tiles, and findings with their evidence."""

from __future__ import annotations

from sameshot.analysis.job.cautions import DATA_WAIT_CAVEAT
from sameshot.analysis.report import words
from sameshot.analysis.report.blocks import (
    Block,
    Cell,
    Notice,
    Row,
    Table,
    Tile,
    Tiles,
)
from sameshot.analysis.report.view import View, most
from sameshot.analysis.results import Part
from sameshot.analysis.text import count, ms, percent


def missing(view: View) -> Notice | None:
    summary = view.summary
    if not summary.missing:
        return None
    number = len(summary.missing)
    kept, left_out = most(summary.missing, what="ranks")
    return Notice(
        "missing",
        f"{number} of {count(summary.expected_ranks, 'rank')} {'has' if number == 1 else 'have'} {summary.lacks}.",
        f"Everything below rests on the other {summary.analysed_ranks}.",
        (
            Table(
                "missing",
                "Missing ranks",
                (words.words("rank"), words.words("where"), words.words("reason"), words.words("detail")),
                tuple(
                    Row(
                        (
                            Cell(m.target_id if m.rank is None else f"rank {m.rank}", css="tight"),
                            Cell(m.where or m.target_id, css="tight"),
                            Cell(m.reason, css="mono tight"),
                            Cell(m.detail, css="wide"),
                        )
                    )
                    for m in kept
                ),
                first=8,
                left_out=left_out,
            ),
        ),
    )


def warnings(view: View) -> list[Block]:
    return [Notice("warning", "Careful.", warning) for warning in view.summary.warnings]


def tiles(view: View) -> Tiles:
    summary, found = view.summary, list[Tile]()
    analysed = view.ranks(summary.analysed_ranks)
    if (step := summary.step_time) is not None:
        spread = f"8 of 10 between {ms(step.p10)} and {ms(step.p90)}; " if step.count >= 10 else ""
        found.append(
            Tile(
                "step time",
                ms(step.median),
                f"median; {spread}{count(step.count, 'step')}, {view.ranks(summary.step_ranks)}",
                words.exactly(step.median),
            )
        )
    else:
        found.append(Tile("step time", "unknown", "no training steps could be recognised"))
    device = summary.device
    if device is not None and device.total:
        rests = view.ranks(summary.device_ranks)
        found.append(
            Tile(
                "GPU computing",
                percent(device.compute / device.total),
                f"of the window, {rests}",
                words.exactly(device.compute),
            )
        )
        found.append(
            Tile("GPU idle", percent(device.idle / device.total), f"of the window, {rests}", words.exactly(device.idle))
        )
        if device.overlap is not None:
            found.append(
                Tile(
                    "communication",
                    percent(device.communication / device.total),
                    f"of the window exposed; {percent(device.overlap)} of all communication is hidden by compute",
                    words.exactly(device.communication),
                )
            )
    if summary.parts.total:
        whole = summary.parts.total
        for part in (Part.OPERATORS, Part.COMMUNICATION) if device is None else ():
            value = summary.parts.get(part)
            found.append(
                Tile(
                    words.title_of(part, words.PARTS),
                    percent(value / whole),
                    f"of main-thread time, {analysed}",
                    words.exactly(value),
                )
            )
    if (data := _data_wait(view)) is not None:
        found.append(data)
    if summary.waiting is not None:
        rests = view.ranks(summary.late.rests_on_ranks or summary.analysed_ranks)
        lost = summary.waiting_exposed
        exposed = f"; {ms(lost)} of it with nothing else to do" if lost is not None and lost != summary.waiting else ""
        found.append(
            Tile(
                "waiting",
                ms(summary.waiting),
                f"for late ranks at collectives, summed over {rests}{exposed}",
                words.exactly(summary.waiting),
            )
        )
    if not view.single:
        common, asked = summary.common_window, summary.capture.asked_window
        found.append(
            Tile(
                "common window",
                "none" if common is None or common <= 0 else ms(common),
                f"shared by {count(summary.analysed_ranks, 'rank')}" + (f"; {ms(asked)} asked for" if asked else ""),
                words.exactly(common) if common is not None else "",
            )
        )
    return Tiles(tuple(found))


def _data_wait(view: View) -> Tile | None:
    """What the GPUs felt of it, or, without any, what main threads spent in it; never without its caveat."""
    summary = view.summary
    felt = [(rank.data_wait.felt, rank.window) for rank in summary.ranks
            if rank.data_wait is not None and rank.data_wait.felt is not None]  # fmt: skip
    value, whole = summary.parts.data_wait, summary.parts.total
    of = f"of main-thread time, {view.ranks(summary.analysed_ranks)}"
    if felt:
        value, whole = sum(ns for ns, _ in felt), sum(window for _, window in felt)
        of = f"of the window the GPU waits for the next batch, {view.ranks(len(felt))}"
    if not whole or (summary.device is not None and not felt and not value):
        return None
    return Tile("data wait", percent(value / whole), f"{of}. {DATA_WAIT_CAVEAT}", words.exactly(value))
