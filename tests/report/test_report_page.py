"""What is in the page: the answer first, a section for each measure that there is, and names that stay text."""

from __future__ import annotations

import html.parser
import re
from typing import Any

import msgspec
import pytest
from made_up import full, hostile

from sameshot.analysis.hta import HtaFailure, HtaResult, HtaTable
from sameshot.analysis.hta.section import hta_section
from sameshot.analysis.job.cautions import DATA_WAIT_CAVEAT
from sameshot.analysis.report import render
from sameshot.analysis.report.blocks import BarRow, Bars, Cell, Column, Page, Piece, Row, Section, Table, Text
from sameshot.analysis.report.page import page, visible
from sameshot.analysis.results import Finding, FindingKind, Lateness, Part, PartTimes, Summary, Verdict

VOID = {"meta", "link", "img", "input", "br"}

SECTIONS = [
    "findings", "timeline", "waiting", "steps", "main-threads", "gpus", "data", "launching", "collectives",
    "communication", "operators", "kernels", "imbalance", "clocks", "ranks", "method",
]  # fmt: skip


class Outline(html.parser.HTMLParser):
    """Elements in order, with their attributes and text; fails where an element is closed that was not open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.found if found == tag]

    @property
    def idents(self) -> list[str]:
        return [value for _, attributes in self.found if (value := attributes.get("id"))]


def part(text: str, ident: str) -> str:
    """The HTML of one section."""
    return text[text.index(f'<section class="card" id="{ident}"') :].partition("</section>")[0]


def without(**changes: Any) -> Summary:
    """A full summary, each rank with these fields emptied."""
    summary = full(3)
    return msgspec.structs.replace(
        summary, ranks=tuple(msgspec.structs.replace(rank, **changes) for rank in summary.ranks)
    )


def test_every_measure_has_its_section_in_the_order_in_which_one_reads() -> None:
    outline = Outline(render(full(8)))
    assert [a["id"] for a in outline.all("section") if a.get("class") == "card"] == SECTIONS
    linked = {(a["href"] or "")[1:] for a in outline.all("a")}
    assert linked <= set(outline.idents), "each link leads somewhere on this page"
    assert len(outline.idents) == len(set(outline.idents))
    assert set(SECTIONS) - {"findings"} <= linked, "the list of contents names each"


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("data", {"data_wait": None}),
        ("launching", {"launches": None, "queues": (), "copies": ()}),
        ("timeline", {"timeline": None, "device_timeline": None}),
        ("communication", {"communication": ()}),
    ],
)
def test_a_section_without_data_is_not_there(section: str, changes: dict[str, Any]) -> None:
    outline = Outline(render(without(**changes)))
    assert section not in outline.idents
    assert f"#{section}" not in {a["href"] for a in outline.all("a")}
    assert set(SECTIONS) - {section} <= set(outline.idents), "all others are"


def test_a_summary_with_nothing_but_the_necessary_is_a_page_too() -> None:
    summary = full(3)
    bare = msgspec.structs.replace(
        summary,
        findings=(), warnings=(), step_time=None, device=None, operators=(), kernels=(), collectives=(), alignments=(),
        clocks=None, stragglers=(), waiting=None, bandwidth=(), slow_links=(), imbalance=(), groups=(), moments=(),
        ranks=(), analysed_ranks=1, parts=PartTimes(), common_window=None, notes=(),
        late=Lateness(Verdict.UNKNOWN, "There are no two ranks to compare.", (), 0, 0, 0, None, None, "By waiting."),
    )  # fmt: skip
    outline = Outline(render(bare))
    assert [a["id"] for a in outline.all("section") if a.get("class") == "card"] == ["method"]
    assert "One rank, nothing to compare" in outline.texts


def test_missing_ranks_come_before_the_verdict_and_the_verdict_before_all_else() -> None:
    text = render(full(8, missing=2))
    order = [
        text.index(words)
        for words in ("2 of 10 ranks have no verified trace.", "Rank 2 is late", 'class="tiles"', 'id="findings"')
    ]
    body = text.index("<body>")
    order[1] = text.index("Rank 2 is late", body)
    assert order == sorted(order)
    assert "rank 9" in text[order[0] : order[1]]
    assert "it died" in text[order[0] : order[1]]


def test_the_verdict_says_who_where_how_many_how_long_in_what_why_and_on_what_it_rests() -> None:
    text = render(full(8, missing=2))
    verdict = text[text.index('<section class="card verdict bad"') :].partition("</section>")[0]
    for words in (
        "Rank 2 is late", "confidence high", "node-0", "the 7 others wait 6 ms of every 25 ms step", "of all waiting",
        "most of it in all_reduce, group dp", "its GPU waits 6 ms longer per step for the next batch",
        "Rests on 8 of 10 ranks, 40 matched steps and 320 matched collectives",
    ):  # fmt: skip
        assert words in verdict, words
    assert '<a href="#waits" data-find="rank 2">' in verdict, "the proof is one step away"
    assert '<a href="#moments" data-find="rank 2">' in verdict
    moment = part(text, "waiting").partition('id="moments"')[2].partition("</tr>\n<tr")[0]
    assert '<td class="n" data-v="1000">1000</td>' in moment, "down to the events, on both sides"
    assert '<td class="n" data-v="7000">7000</td>' in moment


def test_nothing_significant_is_said_as_plainly() -> None:
    summary = full(4)
    calm = msgspec.structs.replace(
        summary,
        late=msgspec.structs.replace(summary.late, verdict=Verdict.NONE, ranks=(), reason="Nobody is steadily late."),
        stragglers=(),
    )
    text = render(calm)
    assert '<section class="card verdict good"' in text
    assert "No rank is late" in text
    assert "Nobody is steadily late." in text
    assert "is late:" not in text[text.index("<main") : text.index('id="findings"')]


def test_each_finding_has_its_evidence() -> None:
    findings = part(render(full(8)), "findings")
    for sentence, basis, link in (
        ("others 45.9 GB/s.", "2 ranks", "#slow-links"),
        ("Waiting for data takes 6 ms", "40 fetches on rank 2", "#data-waits"),
        ("ceiling", "40 fetches on rank 2", "#data-waits"),
        ("Exposed communication: 20 %", "", "#gpus"),
        ("pauses for garbage collection: 71 ms in 2 pauses", "event 123456 of rank 2", "#pauses"),
        ("Host-bound: GPUs wait 9 %", "616 gaps", "#host-bound"),
        ("A step takes 25 ms", "", "#steps"),
    ):
        line = next(line for line in findings.split("<li") if sentence in line)
        assert basis in line
        assert f'href="{link}"' in line


def test_what_proves_a_finding_does_not_hang_on_its_words() -> None:
    summary = full(8)
    for kind, link in (
        (FindingKind.STEP_TIME, "#steps"),
        (FindingKind.HOST_BOUND, "#host-bound"),
        (FindingKind.GPUS, "#gpus"),
        (FindingKind.MAIN_THREADS, "#main-threads"),
    ):
        said = part(render(msgspec.structs.replace(summary, findings=(Finding(kind, "in other words"),))), "findings")
        line = next(line for line in said.split("<li") if "In other words." in line)
        assert f'href="{link}"' in line
    above = tuple(Finding(kind, "in other words") for kind in (FindingKind.MISSING_RANKS, FindingKind.LATENESS))
    assert "In other words" not in part(render(msgspec.structs.replace(summary, findings=above)), "findings")


def test_what_data_wait_does_not_tell_stands_beside_it() -> None:
    text = render(full(4))
    tile = text[text.index('<span class="t">data wait</span>') :].partition("</li>")[0]
    assert DATA_WAIT_CAVEAT in tile
    assert DATA_WAIT_CAVEAT in part(text, "data")
    assert DATA_WAIT_CAVEAT in part(text, "main-threads")


def test_rounded_numbers_keep_the_exact_one() -> None:
    text = render(full(4))
    assert 'title="25,000,000 ns">25 ms</b>' in text
    assert re.search(r'<td class="n" data-v="25000000">25 ms</td>', part(text, "ranks"))
    assert re.search(r'<th scope="col" class="n" data-u="ns"[^>]*>window</th>', part(text, "ranks"))


def test_a_measure_that_nothing_is_known_of_is_no_column() -> None:
    text = render(without(data_wait=msgspec.structs.replace(full(3).ranks[0].data_wait, felt=None, hidden=None)))
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', part(text, "data"))
    assert "in the fetch" in heads
    assert "felt" not in heads
    assert "hidden" not in heads


EVIL = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;<!--{{ 7*7 }}\u202eevil\u2066\x00\ud800"


def test_hostile_text_stays_text_wherever_it_can_stand() -> None:
    text = render(hostile(full(3), EVIL))
    text.encode()  # no halves of surrogate pairs
    outline = Outline(text)
    plain = Outline(render(full(3)))
    assert len(outline.all("script")) == 1
    assert outline.all("img") == [] or {(a["src"] or "")[:22] for a in outline.all("img")} == {"data:image/png;base64,"}
    assert not any(name.startswith("on") for _, attributes in outline.found for name in attributes)
    assert {tag for tag, _ in outline.found} <= {tag for tag, _ in plain.found} | {"section", "template"}
    assert not re.search("[\x00\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    shown = "".join(outline.texts)
    assert "\\u202eevil\\u2066\\u0000\\ud800" in shown, "what can't be seen is spelled out"
    assert "<script>alert(1)</script>" in shown
    assert "{{ 7*7 }}" in shown


def test_what_can_not_be_seen_is_spelled_out_and_everything_else_is_left_alone() -> None:
    assert visible("größe 多 \U0001f600 a\tb\nc") == "größe 多 \U0001f600 a\tb\nc"
    assert visible("a\u200bb\ufeff\u2028\x1b[31m") == "a\\u200bb\\ufeff\\u2028\\u001b[31m"


def test_only_our_script_may_run_and_nothing_may_be_fetched() -> None:
    import base64
    import hashlib

    text = render(full(3))
    script = text[text.index("<script>") + 8 : text.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for a in Outline(text).all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    rules = [rule.strip() for rule in (policy or "").split(";")]
    assert rules == [
        "default-src 'none'", "style-src 'unsafe-inline'", "img-src data:", f"script-src 'sha256-{digest}'",
        "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|\bimport\b|eval\(|innerHTML", script)


def test_eight_full_ranks_are_a_small_file() -> None:
    assert len(render(full(8, names=200)).encode()) < 2_000_000


def test_a_thousand_ranks_stay_readable() -> None:
    text = render(full(1000, missing=24, names=60))
    assert len(text.encode()) < 4_000_000
    outline = Outline(text)
    shown = re.sub(r"<template>.*?</template>", "", text, flags=re.DOTALL)
    assert len(re.findall("<tr", shown)) < 400, "the rest waits until somebody asks for it"
    assert len(re.findall("<tr", part(text, "ranks"))) > 1000, "but every rank is in the page"
    assert len(re.findall('<span class="l">', shown)) < 200
    assert sum("rank 2" in (a.get("data-lanes") or "").split("\n") for a in outline.all("figure")) == 4
    assert "more ranks are in summary.json" in text


def test_tables_and_pictures_can_be_understood_without_seeing_them() -> None:
    outline = Outline(render(full(8)))
    assert len(outline.all("caption")) == len(outline.all("table")) == len(outline.all("thead"))
    assert all(a.get("scope") in ("col", "row") for a in outline.all("th"))
    assert all(len(a.get("alt") or "") > 30 for a in outline.all("img"))
    assert all(a.get("aria-label") for a in outline.all("ul") if a.get("class") in ("bars", "legend"))
    levels = [tag for tag, _ in outline.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == "h1"
    assert levels.count("h1") == 1
    assert {tag for tag, _ in outline.found} >= {"header", "main", "nav", "footer"}
    assert outline.all("html")[0]["lang"] == "en"


def test_the_picture_says_by_which_clocks_its_lines_lie_side_by_side() -> None:
    assert "aligned on their collectives (expected error 30 µs)" in part(render(full(16)), "timeline")
    assert "where the clock of its host puts it" in part(render(full(8)), "timeline"), "one host"
    assert "where the clock of its host puts it" in part(render(full(32)), "timeline"), "one host is unaligned"
    apart = full(3)
    ranks = (*apart.ranks[:2], msgspec.structs.replace(apart.ranks[2], starts_after=10**15))
    text = part(render(msgspec.structs.replace(apart, ranks=ranks)), "timeline")
    assert "too far apart for one axis" in text
    assert 'data-span="1000000000"' in text


def test_one_host_needs_no_table_of_clocks() -> None:
    assert 'id="hosts"' in part(render(full(16)), "clocks")
    assert 'id="hosts"' not in render(full(8))


def test_each_part_has_one_colour_and_a_name() -> None:
    text = render(full(8))
    style = text[text.index("<style>") : text.index("</style>")]
    for word in (
        *Part,
        "compute",
        "memory",
        "idle",
        "overlapped",
        "wait",
        "transfer",
        "why-host",
        "why-inherited",
        "why-unknown",
    ):
        assert re.search(rf"\.{word}\b[^{{}}]*\{{ background", style), word


def test_sections_of_another_engine_stand_in_the_same_page() -> None:
    table = HtaTable("temporal_breakdown", "hta/t.parquet", ("rank", "idle"), ((0, 1234.5), (1, None)), 7)
    found = HtaResult("0.5.0", (0, 1), (table,), (HtaFailure("load", 2, "KeyError", "'<dur>'"),), 1.5)
    text = render(full(3), more=(hta_section(found),))
    section = part(text, "hta")
    for words in ("0.5.0", "2 ranks", "could not load the trace of rank 2", "&lt;dur&gt;", "1,234.5", "hta/t.parquet"):
        assert words in section, words
    assert text.index('id="hta"') < text.index('id="method"')
    assert "HolisticTraceAnalysis" not in render(full(3))


def test_other_pages_are_made_of_the_same_blocks() -> None:
    table = Table("t", "Things", (Column("a"), Column("b", numeric=True)), (Row((Cell("x"), Cell("1", value=1))),))
    bars = Bars("b", "Bars", (BarRow("one", "", (Piece("wait", 1.0, "all"),), "v"),))
    sections = tuple(
        Section(f"s{i}", f"Section {i}", (table, bars) if not i else (Text(("p",)),), short=f"S{i}") for i in range(3)
    )
    outline = Outline(page(Page("title", "heading", "meta", "pill", "good", (), sections, ("foot",))))
    assert {"s0", "s1", "s2", "t", "b"} <= set(outline.idents)
    assert {"title", "heading", "meta", "pill", "foot", "Things"} <= set(outline.texts)
