"""`report.html`: one self-contained page that a person likes to read.

    html = render(summary)

Nothing leaves the page: no font, no request, no link but those to earlier reports that a reader may follow. It can be
mailed, archived, and opened in ten years. What is missing comes first, then the answer, then what proves it; every
job-wide number says on how many ranks it rests.

`blocks` are the values that a page is made of, `page` turns them into HTML. Each other module makes sections from a
`Summary`; a section without data is left out. Other pages with the same look are made from the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sameshot.analysis.report import (
    clocks,
    collectives,
    device,
    facts,
    findings,
    host,
    lead,
    timelines,
    verdict,
    waiting,
    work,
)
from sameshot.analysis.report.blocks import Block, Findings, Page, Section
from sameshot.analysis.report.page import page
from sameshot.analysis.report.view import View
from sameshot.analysis.results import Summary
from sameshot.analysis.text import count

_VERIFIED = "every trace was verified against the manifest while it was read"

_SECTIONS: tuple[Callable[[View], Section | None], ...] = (
    timelines.section,
    waiting.waiting,
    waiting.steps,
    host.main_threads,
    device.gpus,
    host.data,
    device.launching,
    collectives.collectives,
    work.communication,
    work.operators,
    work.kernels,
    collectives.imbalance,
    clocks.clocks,
    facts.ranks,
)


def render(summary: Summary, *, more: Sequence[Section] = ()) -> str:
    """The whole page as text. `more` are sections of other engines, shown before how the numbers came about."""
    view = View(summary)
    sections = [section for make in (_findings, *_SECTIONS) if (section := make(view)) is not None]
    capture = summary.capture
    attempt = f" · attempt {capture.attempt}" if capture.attempt else ""
    when = f" · {capture.frozen_at[:19].replace('T', ' ')} UTC" if capture.frozen_at else ""
    imported = " · imported traces" if capture.provenance == "imported" else ""
    return page(
        Page(
            title=f"{verdict.title(view)} · {capture.job} · sameshot",
            heading=f"{capture.namespace}/{capture.job}",
            meta=f"capture {capture.capture_id}{attempt}{when}{imported}",
            pill=view.ranks(summary.analysed_ranks)
            if summary.expected_ranks < 2
            else f"{summary.analysed_ranks} of {count(summary.expected_ranks, 'rank')}",
            pill_grade="bad" if summary.missing else "good",
            lead=tuple(_lead(view)),
            sections=(*sections, *more, facts.method(view)),
            footer=(
                f"{summary.generator} · {summary.generated_at} · {capture.provenance} · {_VERIFIED}",
                f"manifest {capture.manifest} · sha256 {capture.manifest_sha256}",
            ),
        )
    )


def _lead(view: View) -> list[Block]:
    """The answer; missing ranks are named before anything else."""
    gone = lead.missing(view)
    found: list[Block] = [gone] if gone is not None else []
    found.append(verdict.verdict(view))
    found += lead.warnings(view)
    found.append(lead.tiles(view))
    return found


def _findings(view: View) -> Section | None:
    items = findings.findings(view)
    return Section("findings", "Findings", (Findings(items),)) if items else None


__all__ = ["render"]
