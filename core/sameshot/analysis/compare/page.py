"""A comparison as one self-contained HTML page, in the look of the report."""

from __future__ import annotations

from collections.abc import Sequence

from sameshot.analysis.compare.change import Change, Comparison, Outcome
from sameshot.analysis.report.blocks import Block, Cell, Column, Notice, Page, Row, Section, Table, Text, Tile, Tiles
from sameshot.analysis.report.blocks import Verdict as Answer
from sameshot.analysis.report.page import page
from sameshot.analysis.report.words import exactly
from sameshot.analysis.results import CaptureInfo
from sameshot.analysis.text import count, ms, percent

_OUTCOMES = {
    Outcome.SLOWER: ("slower", "bad"),
    Outcome.FASTER: ("faster", "good"),
    Outcome.SAME: ("same", ""),
    Outcome.UNKNOWN: ("can't be said", "open"),
}

_NUMBERS = (
    Column("Before", numeric=True, unit="ns"),
    Column("After", numeric=True, unit="ns"),
    Column("Change", numeric=True, unit="ns"),
    Column("Noise ±", numeric=True, unit="ns", hint="95 %, from the samples of both captures; – where unknown"),
    Column("Share", numeric=True),
    Column("Outcome"),
    Column("Rests on", hint="samples before / after"),
)


def render(found: Comparison) -> str:
    """The whole page as text."""
    return page(
        Page(
            title=f"sameshot: {_name(found.before)} → {_name(found.after)}",
            heading=f"{_name(found.before)} compared with {_name(found.after)}",
            meta=(
                f"{_of(found.before)}, {count(found.ranks_before, 'rank')} → "
                f"{_of(found.after)}, {count(found.ranks_after, 'rank')}"
            ),
            pill=_pill(found),
            pill_grade=_grade(found),
            lead=tuple(_lead(found)),
            sections=tuple(_sections(found)),
            footer=(
                f"{found.generator}, {found.generated_at}",
                f"before: {found.before.manifest}",
                f"after: {found.after.manifest}",
            ),
        )
    )


def _name(capture: CaptureInfo) -> str:
    return f"{capture.job} {capture.capture_id[:12]}"


def _of(capture: CaptureInfo) -> str:
    return f"{capture.namespace}/{capture.job} {capture.frozen_at or ''}".strip()


def _pill(found: Comparison) -> str:
    return "no step times" if found.step is None else f"step {_OUTCOMES[found.step.outcome][0]}"


def _grade(found: Comparison) -> str:
    return "open" if found.step is None else _OUTCOMES[found.step.outcome][1] or "good"


def _lead(found: Comparison) -> list[Block]:
    blocks: list[Block] = [
        Notice("missing" if found.incomplete and not number else "warning", "", warning)
        for number, warning in enumerate(found.warnings[:-1])
    ]
    title, colon, rest = found.sentences[0].partition(": ")
    blocks.append(
        Answer(
            grade={"bad": "bad", "good": "good"}.get(_grade(found), "open"),
            title=title,
            paragraphs=(*((f"{rest}.",) if colon else ()), *(f"{sentence}." for sentence in found.sentences[1:])),
        )
    )
    if found.step is not None:
        step = found.step
        blocks.append(
            Tiles(
                (
                    Tile("step before", ms(step.before), count(step.samples_before, "step"), exactly(step.before)),
                    Tile("step after", ms(step.after), count(step.samples_after, "step"), exactly(step.after)),
                    Tile(
                        "change",
                        ms(step.delta),
                        "noise unknown" if step.noise is None else f"noise ± {ms(step.noise)}",
                        exactly(step.delta),
                    ),
                )
            )
        )
    return blocks


def _sections(found: Comparison) -> list[Section]:
    sections = [
        _section("parts", "Where a step's time goes", found.parts, "Averages over all ranks with known steps."),
        _section("waits", "Waiting", found.waits, "Averages over ranks, per step."),
        _section("ranks", "Single ranks", found.ranks, "Only what changed by more than noise.", both=True),
        _section("kernels", "Kernels", found.kernels, "Per step and rank; of each rank's largest.", named="Kernel"),
        _section("operators", "Operators", found.operators, "Self time of each rank's largest.", named="Operator"),
        _section("collectives", "Collectives", found.collectives, "Per call, where both matched them.", both=True),
    ]
    for ident, title, names in (
        ("appeared", "Kernels that are among the largest of the later capture only", found.appeared),
        ("vanished", "Kernels that are among the largest of the earlier capture only", found.vanished),
    ):
        if names:
            sections.append(Section(ident, title, (Text(names, points=True),)))
    caveat = Section("noise", "What noise means here", (Text((found.warnings[-1],)),))
    return [section for section in sections if section is not None] + [caveat]


def _section(
    ident: str, title: str, changes: Sequence[Change], note: str, *, named: str = "", both: bool = False
) -> Section | None:
    """`named`: rows are of one measure each, called by where it was; `both`: measure and place differ."""
    if not changes:
        return None
    heads = (Column("Measure"), Column("Where")) if both else (Column(named or "Measure"),)
    table = Table(
        ident=f"t-{ident}",
        caption=f"{title}: the largest differences first",
        columns=(*heads, *_NUMBERS),
        rows=tuple(_row(one, _heads(one, named=bool(named), both=both)) for one in changes),
    )
    return Section(ident, title, (table,), note=note, short=title)


def _heads(one: Change, *, named: bool, both: bool) -> tuple[Cell, ...]:
    measure, where = Cell(one.measure, one.measure), Cell(one.where, one.where)
    return (measure, where) if both else (where,) if named else (measure,)


def _row(one: Change, heads: tuple[Cell, ...]) -> Row:
    word, css = _OUTCOMES[one.outcome]
    return Row(
        (
            *heads,
            _time(one.before),
            _time(one.after),
            _time(one.delta),
            Cell("–") if one.noise is None else _time(one.noise),
            Cell("–") if one.share is None else Cell(percent(one.share), one.share),
            Cell(word, word, css=css),
            Cell(f"{one.samples_before} / {one.samples_after}", float(min(one.samples_before, one.samples_after))),
        ),
        marked=one.outcome is Outcome.SLOWER,
    )


def _time(value: int) -> Cell:
    return Cell(ms(value), float(value), title=exactly(value))
