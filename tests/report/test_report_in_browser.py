"""The report in a real browser: it asks nobody for anything, works by mouse and by keyboard, in light and dark, on a
phone, and for those who hear it.

Needs Debian's packages chromium and chromium-driver; the accessibility check also needs npm, which fetches axe-core.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from browser import chromium, requests
from history_lab import row, series
from made_up import WINDOW, full, hostile

from sameshot.analysis.report import render
from sameshot.analysis.results import Summary, Timeline
from sameshot.model import Outcome
from sameshot.steps.history import HistoryRow
from sameshot.steps.history.section import history_page, section

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

AXE = "axe-core@4.14.1"

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">" + "w" * 300


class Browser:
    """A page at a time, at a chosen width and in chosen colours."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, shown: Summary | str, *, width: int = 1280, dark: bool = False) -> None:
        """The report of a summary, or a page as it is."""
        path = self.folder / "report.html"
        path.write_text(shown if isinstance(shown, str) else render(shown))
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600,
        })  # fmt: skip
        self.media(dark)
        self.logs("browser")
        self.logs("performance")
        self.driver.get(path.as_uri())
        self.run("try { localStorage.clear() } catch {}")

    def media(self, dark: bool, kind: str = "") -> None:
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def logs(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log(kind)
        return found

    def requests(self) -> list[str]:
        return requests(self.driver)

    def column(self, table: str, index: int) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(row => row.cells[arguments[1]].textContent)"
        found: list[str] = self.run(script, f"#{table} tbody tr", index)
        return found

    def head(self, table: str, title: str) -> Any:
        return next(head for head in self.all(f"#{table} thead th") if head.text.startswith(title))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def browser(driver: Any, tmp_path: Path) -> Browser:
    return Browser(driver, tmp_path)


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("npm") is None:
        pytest.skip(f"no npm to fetch {AXE} with")
    folder = tmp_path_factory.mktemp("axe")
    done = subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"{AXE} could not be fetched: {done.stderr[-500:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def history(evil: str = "") -> list[HistoryRow]:
    """A series that became slower, with captures that failed, lack numbers, or were recorded otherwise."""
    rows = series([100.0] * 20 + [130.0] * 8, series=f"nightly{evil}", image=f"train:7{evil}", with_stack=False)
    rows += [
        row(28, 400, with_stack=True, series=f"nightly{evil}"),
        row(29, None, outcome=Outcome.FAILED, series=f"nightly{evil}"),
        row(30, 131, with_stack=False, series=f"nightly{evil}", report_uri="https://reports.example.com/r.html"),
    ]
    return rows


def with_history(evil: str = "") -> str:
    shown = section(history(evil), current="c030", warnings=(f"x.parquet was left out{evil}",))
    assert shown is not None
    return render(full(8), more=[shown])


def alone(evil: str = "") -> str:
    several = [(history(evil), f"team/nightly{evil}"), (series([100.0] * 3), "team/bert"), ([row(0, None)], "b/new")]
    return history_page(several, where=f"s3://results{evil}", warnings=(f"y.parquet was left out{evil}",))


PAGES = {
    "a report with its history": with_history,
    "a report with a hostile history": lambda: with_history(EVIL),
    "the page of a history": alone,
    "the page of a hostile history": lambda: alone(EVIL),
    "eight ranks": lambda: full(8, missing=1),
    "a thousand ranks": lambda: full(1000, missing=24),
    "hostile names": lambda: hostile(full(3), EVIL),
}


@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES.keys())
def test_nothing_is_asked_for_and_nothing_complains(browser: Browser, made: Any) -> None:
    browser.open(made())
    requests = browser.requests()
    assert len([url for url in requests if url.startswith("file:")]) == 1
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert browser.logs("browser") == []
    assert browser.driver.title != "owned"
    assert browser.all("img[onerror]") == []


def test_the_pages_own_policy_stops_what_it_did_not_bring(browser: Browser) -> None:
    browser.open(full(3))
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'document.title = \"owned\"';"
        "document.body.append(s);"
        "const i = document.createElement('img'); i.src = 'https://example.invalid/x'; document.body.append(i);"
    )
    assert browser.driver.title != "owned"
    said = " ".join(entry["message"] for entry in browser.logs("browser"))
    assert "Content Security Policy" in said


def test_a_click_on_a_head_sorts_and_another_turns_it_round(browser: Browser) -> None:
    browser.open(full(8))
    head = browser.head("waits", "waited itself")
    place = browser.all("#waits thead th").index(head)

    def exact() -> list[int]:
        script = "return [...document.querySelectorAll('#waits tbody tr')].map(r => r.cells[arguments[0]].dataset.v)"
        return [int(value) for value in browser.run(script, place)]

    assert head.get_attribute("aria-sort") == "none"
    head.find_element("tag name", "button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert exact() == sorted(exact(), reverse=True)
    head.find_element("tag name", "button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert exact() == sorted(exact())
    assert len(set(exact())) == 8
    other = browser.head("waits", "rank")
    other.find_element("tag name", "button").click()
    assert (head.get_attribute("aria-sort"), other.get_attribute("aria-sort")) == ("none", "ascending")
    assert browser.column("waits", 0) == [f"rank {i}" for i in range(8)]


def test_the_keyboard_sorts_as_well_and_what_is_unknown_comes_last_either_way(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    summary = full(8)
    ranks = [msgspec.structs.replace(r, waited=None) if r.rank == 2 else r for r in summary.ranks]
    browser.open(msgspec.structs.replace(summary, ranks=tuple(ranks)))
    button = browser.head("waits", "waited itself").find_element("tag name", "button")
    for key in (Keys.ENTER, Keys.SPACE):
        button.send_keys(key)
        assert browser.column("waits", 0)[-1] == "rank 2"
    assert browser.driver.switch_to.active_element == button


def test_of_a_long_table_the_first_rows_stand_there_and_all_on_demand(browser: Browser) -> None:
    browser.open(full(1000, missing=24))
    assert browser.run("return document.querySelectorAll('*').length") < 20_000
    assert len(browser.column("rank-list", 0)) == 24
    browser.one("#rank-list .more button").click()
    assert len(browser.column("rank-list", 0)) == 1000
    browser.one("#rank-list .more button").click()
    assert len(browser.column("rank-list", 0)) == 24
    browser.head("rank-list", "rank").find_element("tag name", "button").click()
    browser.head("rank-list", "rank").find_element("tag name", "button").click()
    assert browser.column("rank-list", 0)[:2] == ["rank 999", "rank 998"], "sorting looks at all rows"
    field = browser.one("#rank-list input")
    field.send_keys("rank 12")
    assert browser.column("rank-list", 0) == ["rank 12"], "and not rank 120"
    field.clear()
    field.send_keys("node-12 ")
    field.send_keys("\b")
    assert set(browser.column("rank-list", 2)) == {"node-12"}
    assert len(browser.column("rank-list", 0)) == 8


def test_evidence_is_shown_where_it_is_linked(browser: Browser) -> None:
    browser.open(full(100))
    browser.one('.verdict a[href="#waits"]').click()
    assert browser.column("waits", 0) == ["rank 2"]
    browser.one('.findings a[href="#pauses"]').click()
    assert browser.one("#pauses tbody tr th").is_displayed()


def test_the_exact_number_shows_under_the_pointer(browser: Browser) -> None:
    from selenium.webdriver import ActionChains

    browser.open(full(3))
    cell = browser.one("#rank-list td[data-v='1000000000']")
    ActionChains(browser.driver).scroll_to_element(cell).move_to_element(cell).perform()
    assert cell.get_attribute("title") == "1,000,000,000 ns"


def _dark(browser: Browser) -> bool:
    colour = browser.run("return getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour[4:-1].split(",")) < 3 * 128


def test_colours_follow_the_system_until_somebody_chooses(browser: Browser) -> None:
    browser.open(full(3), dark=True)
    assert _dark(browser)
    browser.media(False)
    assert not _dark(browser)
    button = browser.one("#theme")
    button.click()
    assert (button.text, _dark(browser)) == ("Colours: light", False)
    button.click()
    assert (button.text, _dark(browser)) == ("Colours: dark", True)
    browser.driver.refresh()
    assert _dark(browser), "the choice is remembered"
    browser.one("#theme").click()
    assert (browser.one("#theme").text, _dark(browser)) == ("Colours: auto", False)


@pytest.mark.parametrize("width", [390, 320])
@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES.keys())
def test_a_phone_shows_it_without_sideways_scrolling(browser: Browser, made: Any, width: int) -> None:
    browser.open(made(), width=width)
    browser.run("for (const d of document.querySelectorAll('details')) d.open = true")
    wide = browser.run(
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg, .unseen') &&"
        " e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"
    )
    assert wide == []
    assert browser.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
@pytest.mark.parametrize("made", PAGES.values(), ids=PAGES.keys())
def test_axe_finds_nothing(browser: Browser, axe: str, made: Any, width: int, dark: bool) -> None:
    browser.open(made(), width=width, dark=dark)
    browser.run("for (const d of document.querySelectorAll('details')) d.open = true")
    browser.run(axe)
    browser.driver.set_script_timeout(200)
    found = browser.driver.execute_async_script(
        "const done = arguments[0];"
        "axe.run(document, {resultTypes: ['violations']}).then(done, e => done({error: `${e}`}))"
    )
    assert "violations" in found, found
    nodes = [(v["id"], n["html"][:200], n["failureSummary"][:400]) for v in found["violations"] for n in v["nodes"]]
    assert not nodes, "\n".join([f"{len(nodes)} in all"] + [" ".join(node) for node in nodes[:12]])
    assert found["passes"], "axe has looked"


def test_a_picture_tells_by_pointer_and_by_arrow_keys_what_is_there(browser: Browser) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    summary = full(3)
    line = Timeline(480, (("operators", 240), ("untraced", 240)))
    other = Timeline(480, (("data_wait", 480),))
    ranks = [
        msgspec.structs.replace(r, timeline=line if r.rank == 0 else other, starts_after=0, step_edges=())
        for r in summary.ranks
    ]
    browser.open(msgspec.structs.replace(summary, ranks=tuple(ranks)))
    area, said = browser.one("#all-host .canvas"), browser.one("#all-host .readout")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", area)
    box = area.size
    for x, y, expected in ((0.25, 0.1, "rank 0 at 2"), (0.75, 0.1, "rank 0 at 7"), (0.5, 0.5, "rank 1 at 5")):
        pointer = ActionChains(browser.driver)
        pointer.move_to_element_with_offset(area, (x - 0.5) * box["width"], (y - 0.5) * box["height"]).perform()
        assert said.text.startswith(expected)
        assert said.text.endswith({0.25: "operators", 0.75: "untraced", 0.5: "waiting for data"}[x])
        assert abs(float(said.text.split()[3]) - x * WINDOW / 1e6) < 5
    area.send_keys(Keys.ARROW_DOWN)
    assert said.text.startswith("rank 2")
    for _ in range(2):
        area.send_keys(Keys.ARROW_UP)
    assert said.text.startswith("rank 0")
    for _ in range(80):
        area.send_keys(Keys.ARROW_LEFT)
    assert said.text == "rank 0 at 0.0 µs: operators"


def test_on_paper_everything_is_open_and_tools_are_gone(browser: Browser) -> None:
    browser.open(full(30))
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.media(False, "print")
    assert browser.run("return [...document.querySelectorAll('details')].every(d => d.open)")
    with contextlib.suppress(IndexError):
        assert not browser.all(".tools")[0].is_displayed()
    assert not browser.one("#theme").is_displayed()
    assert browser.one("#verdict").is_displayed()
