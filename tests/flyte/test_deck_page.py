"""Decks are our own pages, whole and alone: nothing of Flyte's around them, and nothing in them that asks anybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from string import Template

import pytest
from asked_for import asked_for
from gloo_job import GlooJob, archive
from made_up import full, hostile

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
import flytekit
from adlfs import AzureBlobFileSystem
from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.deck.deck import get_deck_template
from flytekit.tools.translator import get_serializable_task
from flytekit_alone import alone, decks
from gcsfs import GCSFileSystem
from s3fs import S3FileSystem

from sameshot.analysis.report import render
from sameshot_flyte import deck, work
from sameshot_flyte.flyte1.analysis import analyze, analyze_rank, compare, reduce
from sameshot_flyte.flyte1.decks import OwnDeck, as_html, publish

EVIL = "</iframe><script>document.title='owned'</script>\"><img src=https://example.invalid/x>"


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    with alone(tmp_path / "flyte") as folder:
        yield folder


@flytekit.task(task_config=OwnDeck())
def shows(page: str, fails: bool) -> None:
    publish(page)
    if fails:
        raise ValueError("afterwards")


# -- what is asked for


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("<link href='https://x/f.css' rel=stylesheet>", ["https://x/f.css"]),
        ("<script src=//x/s.js></script>", ["//x/s.js"]),
        ("<style>@import 'https://x/f.css'; p { background: url(https://x/y.png) }</style>", ["https://x/f.css", "https://x/y.png"]),
        ("<p style='background:url(\"https://x/y.png\")'>", ["https://x/y.png"]),
        ("<iframe srcdoc='&lt;img src=https://x/y&gt;'></iframe>", ["https://x/y"]),
        ("<a href='https://x'>a click</a><img src='data:image/png;base64,AA'><link rel=icon href='data:,'>", []),
    ],
)  # fmt: skip
def test_a_reader_of_pages_sees_what_they_ask_for(page: str, found: list[str]) -> None:
    assert asked_for(page) == found


def test_the_page_that_flytekit_would_have_made_asks_for_fonts() -> None:
    page = get_deck_template().substitute(NAV_HTML="", BODY_HTML="")
    assert ["fonts.googleapis.com" in each for each in asked_for(page)] == [True]


# -- the file


def test_a_deck_is_the_report_byte_by_byte_and_asks_nobody(tmp_path: Path, here: Path) -> None:
    manifest = archive(tmp_path / "archive", GlooJob(seed=1).traces())
    made = analyze(
        manifest_uri=str(manifest),
        manifest_sha256=json.loads(manifest.read_bytes())["sha256"],
        results=str(tmp_path / "results"),
    )
    (shown,) = decks(here)
    assert shown == next((tmp_path / "results").rglob("report.html")).read_text()
    assert shown == Path(str(made.report)).read_text()
    assert asked_for(shown) == []


def test_pages_that_only_say_something_ask_nobody_either(tmp_path: Path) -> None:
    for made in (
        work.reduce("", "", str(tmp_path), out=tmp_path / "a").page,
        work.compare("", "", str(tmp_path), out=tmp_path / "b", threshold=-1).page,
    ):
        assert asked_for(made) == []
        assert made.startswith("<!doctype html>")


def test_a_task_that_fails_has_shown_what_it_published(here: Path) -> None:
    with pytest.raises(ValueError, match="afterwards"):
        shows(page="<p>seen</p>", fails=True)
    assert decks(here) == ["<p>seen</p>"]


def test_a_task_that_publishes_nothing_has_no_deck(here: Path) -> None:
    analyze_rank(manifest_uri="", manifest_sha256="", results="x", shard="0/1")
    assert decks(here) == []


def test_in_a_pod_the_deck_lies_where_flyte_looks_for_it(tmp_path: Path) -> None:
    context = FlyteContextManager.current_context()
    told = context.user_space_params.builder()
    told.output_metadata_prefix = str(tmp_path / "prefix")
    state = context.execution_state or context.new_execution_state()
    state = state.with_params(mode=ExecutionState.Mode.TASK_EXECUTION, user_space_params=told.build())
    with FlyteContextManager.with_context(context.with_execution_state(state)):
        publish("<p>seen</p>")
    assert (tmp_path / "prefix" / "deck.html").read_text() == "<p>seen</p>"


def test_a_store_that_takes_no_deck_does_not_fail_the_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefix").write_text("a file, where a folder should be")
    context = FlyteContextManager.current_context()
    told = context.user_space_params.builder()
    told.output_metadata_prefix = str(tmp_path / "prefix")
    state = context.execution_state or context.new_execution_state()
    state = state.with_params(mode=ExecutionState.Mode.TASK_EXECUTION, user_space_params=told.build())
    monkeypatch.setattr("sameshot_flyte.flyte1.decks.logger.propagate", True)
    with FlyteContextManager.with_context(context.with_execution_state(state)):
        publish("<p>seen</p>")
    assert "The Deck could not be stored" in caplog.text


def test_each_store_is_told_in_its_own_words_what_a_deck_is() -> None:
    """And in no others': some refuse what they don't know."""
    assert as_html(S3FileSystem.protocol) == {"ContentType": "text/html"}
    assert as_html(GCSFileSystem.protocol) == {"content_type": "text/html"}
    (name, settings), *more = as_html(AzureBlobFileSystem.protocol).items()
    assert (name, settings.content_type, more) == ("content_settings", "text/html", [])
    assert as_html("s3") == as_html(("s3", "s3a"))
    assert as_html("abfs").keys() == {"content_settings"}
    assert as_html("file") == as_html(("file", "local")) == as_html("http") == {}


@pytest.mark.parametrize("task", [reduce, analyze, compare], ids=lambda task: task.task_function.__name__)
def test_flyte_is_told_that_there_is_a_deck_and_flytekit_not_to_write_it(task: flytekit.PythonFunctionTask) -> None:
    image = flytekit.configuration.ImageConfig.auto(img_name="x:1")
    settings = flytekit.configuration.SerializationSettings(image_config=image)
    spec = get_serializable_task({}, settings, task).to_flyte_idl()
    assert spec.template.metadata.generates_deck.value
    with pytest.warns(DeprecationWarning, match="enable_deck"):
        assert task.disable_deck  # what flytekit's entry point of pods asks


# -- where an SDK insists on a page around it


def test_a_framed_page_stays_the_page_it_was() -> None:
    page = render(hostile(full(3), EVIL))
    framed = deck.framed(page)
    inside = framed.partition('srcdoc="')[2].partition('"')[0]
    assert unescape(inside) == page
    assert asked_for(framed) == asked_for(page) == []
    assert "<script" not in framed  # all of it is the frame's


def test_a_frame_can_not_reach_what_is_around_it() -> None:
    sandbox = deck.framed("<p>").partition('sandbox="')[2].partition('"')[0].split()
    assert "allow-scripts" in sandbox
    assert not {"allow-same-origin", "allow-top-navigation"} & set(sandbox)


def test_our_page_around_asks_nobody() -> None:
    page = Template(deck.TEMPLATE.read_text()).substitute(NAV_HTML="<li>main</li>", BODY_HTML="<div>x</div>")
    assert asked_for(page) == []
    assert "<li>main</li>" in page
    assert "<div>x</div>" in page
