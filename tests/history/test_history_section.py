"""The history in a report: a sentence, a drawing that says the same, a table, and names that stay text."""

from __future__ import annotations

import html.parser
import re
import urllib.parse

import msgspec
import pytest
from history_lab import row, series
from made_up import full

from sameshot.analysis.report import render
from sameshot.analysis.report.blocks import Course, Findings, Section, Table
from sameshot.steps.history.section import history_page, openable, section
from sameshot.steps.history.trend import trend

BROKEN = [100.0] * 10 + [130.0] * 5


class Elements(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str, css: str = "") -> list[dict[str, str | None]]:
        return [
            attributes for found, attributes in self.found if found == tag and css in (attributes.get("class") or "")
        ]


def made(rows: list, **options: object) -> Section:  # type: ignore[type-arg]
    found = section(rows, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def block(found: Section, kind: type) -> object:
    return next(each for each in found.blocks if isinstance(each, kind))


def test_without_a_row_there_is_no_section() -> None:
    assert section([]) is None


def test_the_sentence_is_the_trends_and_graded() -> None:
    findings = block(made(series(BROKEN)), Findings)
    assert isinstance(findings, Findings)
    assert [(line.grade, line.text) for line in findings.items] == [("bad", trend(series(BROKEN)).sentence)]
    for times, grade in (([100.0] * 15, ""), (BROKEN[::-1], "good"), ([100.0] * 15 + [150.0], "warn"), ([1.0], "")):
        findings = block(made(series(times)), Findings)
        assert isinstance(findings, Findings)
        assert findings.items[0].grade == grade


def test_the_drawing_has_a_dot_a_capture_and_the_break_between_the_right_two() -> None:
    course = block(made(series(BROKEN)), Course)
    assert isinstance(course, Course)
    assert len(course.dots) == 15
    assert [at for at, dot in enumerate(course.dots) if dot.marked] == [10]
    assert course.turn is not None
    assert course.dots[9].x < course.turn < course.dots[10].x
    assert course.dots[0].y == pytest.approx(100 * 100 / 150), "drawn from zero to 150 ms"
    assert course.dots[14].y == pytest.approx(100 * 130 / 150)
    assert [(level.begin, level.end) for level in course.levels] == [(0.0, course.turn), (course.turn, 100.0)]
    assert [level.y for level in course.levels] == pytest.approx([100 * 100 / 150, 100 * 130 / 150])
    assert [tick.text for tick in course.up] == ["0", "50 ms", "100 ms", "150 ms"]
    assert trend(series(BROKEN)).sentence in course.alt, "the drawing in words"
    assert "100 ms to 130 ms" in course.alt


def test_without_a_break_there_is_one_level_and_with_too_few_captures_none() -> None:
    steady = block(made(series([100.0] * 10)), Course)
    assert isinstance(steady, Course)
    assert (steady.turn, [(level.begin, level.end) for level in steady.levels]) == (None, [(0.0, 100.0)])
    few = block(made(series([100.0] * 3)), Course)
    assert isinstance(few, Course)
    assert few.levels == ()
    assert not any(isinstance(each, Course) for each in made(series([100.0])).blocks)
    assert not any(isinstance(each, Course) for each in made([row(0, None), row(1, None)]).blocks)


def test_captures_recorded_otherwise_are_listed_and_not_drawn() -> None:
    plain, costly = (
        series([100.0] * 9, with_stack=False),
        [row(9, 140, with_stack=True), row(10, 100, with_stack=False)],
    )
    found = made([*plain, *costly])
    course, table = block(found, Course), block(found, Table)
    assert isinstance(course, Course)
    assert isinstance(table, Table)
    assert len(course.dots) == 10
    assert not any("c009" in dot.text for dot in course.dots)
    assert "c009" in [each.cells[1].text for each in table.rows]
    assert "1 capture recorded otherwise" in found.note


def test_the_table_has_the_last_twenty_newest_first_and_marks_where_it_changed() -> None:
    table = block(made(series([100.0] * 25 + [130.0] * 5), current="c029"), Table)
    assert isinstance(table, Table)
    ids = [each.cells[1].text for each in table.rows]
    assert ids == ["c029 (this one)", *(f"c{number:03d}" for number in range(28, 9, -1))]
    assert [each.cells[1].text for each in table.rows if each.marked] == ["c025"]
    assert table.left_out == "10 earlier captures in the history"


@pytest.mark.parametrize(
    ("uri", "opens"),
    [
        ("https://reports.example/a/report.html", True),
        ("http://127.0.0.1:8000/x?y=1#z", True),
        ("s3://results/captures/x/report.html", False),
        ("file:///tmp/report.html", False),
        ("/tmp/report.html", False),
        ("javascript:alert(1)", False),
        ("JAVASCRIPT:alert(1)//https://x", False),
        ("https:alert", False),
        ("https://", False),
        (" https://x/y", False),
        ("https://x/\njavascript:1", False),
        ("http://[broken", False),
        ("data:text/html,x", False),
        ("", False),
        (None, False),
    ],
)
def test_only_what_a_browser_opens_as_a_page_is_linked(uri: str | None, opens: bool) -> None:
    assert openable(uri) == (uri if opens else "")
    text = render(full(3), more=[made(series([100.0] * 3, report_uri=uri))])
    outside = [each for each in Elements(text).all("a") if not (each["href"] or "").startswith("#")]
    assert [each["href"] for each in outside] == ([uri] * 3 if opens else [])
    assert all(each["rel"] == "noopener noreferrer" for each in outside)


def test_the_own_report_is_not_linked_from_itself() -> None:
    text = render(full(3), more=[made(series([100.0] * 3, report_uri="https://r/x"), current="c002")])
    assert [each["href"] for each in Elements(text).all("a")].count("https://r/x") == 2


@pytest.mark.parametrize("root", ["s3://results/deep", "file:///tmp/my%20results"])
def test_reports_below_the_same_results_are_linked_from_where_this_one_lies(root: str) -> None:
    def uri(number: int) -> str:
        return f"{root}/captures/team/bert-{number}/0/c{number:03d}/report.html"

    rows = [msgspec.structs.replace(each, report_uri=uri(at)) for at, each in enumerate(series([100.0] * 4))]
    rows[1] = msgspec.structs.replace(rows[1], report_uri=uri(1).replace(root, f"{root}2"))
    rows[2] = msgspec.structs.replace(rows[2], report_uri=f"{root}/captures/../../x/report.html")
    outside = [
        each["href"] or "" for each in Elements(render(full(3), more=[made(rows, current="c003")])).all("a")
        if not (each["href"] or "").startswith("#")
    ]  # fmt: skip
    served = uri(3).replace(root, "https://reports.example")
    assert [urllib.parse.urljoin(served, each) for each in outside] == [
        "https://reports.example/captures/team/bert-0/0/c000/report.html"
    ]
    assert "as long as this page lies among its results" in render(full(3), more=[made(rows, current="c003")])
    without = made(rows)
    assert "../" not in render(full(3), more=[without]), "from nowhere there is no way"


def test_in_a_report_it_stands_before_the_method_and_in_the_contents() -> None:
    text = render(full(3), more=[made(series(BROKEN))])
    cards = [each["id"] for each in Elements(text).all("section", "card") if each.get("id")]
    assert cards[-2:] == ["history", "method"]
    assert '<a href="#history">History</a>' in text
    (drawing,) = Elements(text).all("svg")
    assert drawing["role"] == "img"
    assert "Slower since" in (drawing["aria-label"] or "")
    assert len(Elements(text).all("path", "dot")) == 15
    assert "<image" not in text
    assert not re.search(r"\bstyle=\"[^\"]*url", text)


EVIL = "</title><script>alert(1)</script>\" onload=x '\u202e"


def test_names_stay_text_wherever_they_are_shown() -> None:
    rows = series(
        BROKEN, series=EVIL, namespace=EVIL, job=EVIL, image=EVIL, report_uri='https://r/"><script>alert(1)</script>'
    )
    rows = [msgspec.structs.replace(each, commit=f"{EVIL}{at // 10}", capture_id=f"{EVIL}{at}") for at, each in
            enumerate(rows)]  # fmt: skip
    clean = history_page([(series(BROKEN), "clean")], where="s3://x")
    text = history_page([(rows, EVIL)], where=EVIL, warnings=[EVIL])
    assert len(Elements(text).all("script")) == len(Elements(clean).all("script")) == 1
    assert not any("onload" in attributes for _, attributes in Elements(text).found)
    assert "\u202e" not in text, "what turns text around is spelled out"
    assert "alert(1)" in text


def test_a_page_has_a_section_for_each_series_and_every_ident_once() -> None:
    text = history_page(
        [(series(BROKEN), "a/x"), (series([100.0] * 3), "a/y"), ([row(0, None)], "b/z")], where="s3://results"
    )
    elements = Elements(text)
    assert [each["id"] for each in elements.all("section", "card")] == ["history-0", "history-1", "history-2"]
    idents = [attributes["id"] for _, attributes in elements.found if attributes.get("id")]
    assert len(idents) == len(set(idents))
    linked = {(each["href"] or "")[1:] for each in elements.all("a")}
    assert linked <= set(idents)
    assert "19 captures" in text


def test_warnings_of_reading_are_in_the_section() -> None:
    text = render(full(3), more=[made(series(BROKEN), warnings=["x.parquet was left out of the history"])])
    assert "x.parquet was left out of the history" in text
