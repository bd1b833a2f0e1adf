"""`sameshot history`: all series at a glance, one of them with the capture where it changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from history_lab import row, series

from sameshot.cli.main import invoke
from sameshot.steps.history import append
from sameshot.steps.history.trend import trend

BROKEN = [100.0] * 10 + [130.0] * 5


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("results")
    for each in series(BROKEN):
        append(str(folder), each)
    for each in series([50.0] * 3, series="[red]resnet\x1b[2J/.."):
        append(str(folder), each)
    append(str(folder), row(0, None, namespace="other", report_uri="https://r/0"))
    return str(folder)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = invoke(["history", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_without_a_series_all_are_listed_with_their_trend(capsys: pytest.CaptureFixture[str], results: str) -> None:
    code, out, err = run(capsys, results)
    assert (code, err) == (0, "")
    (bert,) = [line.split() for line in out.splitlines() if line.startswith("team") and "bert" in line]
    assert bert[:5] == ["team", "bert", "15", "2026-01-01", "14:00"]
    assert " ".join(bert[5:]) == "UTC 130 ms 30 % slower since 2026-01-01 10:00 UTC"
    assert "[red]resnet\\x1b[2J/.." in out, "a name is no markup and moves no cursor"
    assert "too few captures, it takes 8" in out
    (other,) = [line for line in out.splitlines() if line.startswith("other")]
    assert "–" in other
    code, out, _ = run(capsys, results, "--namespace", "other")
    assert (code, "resnet" in out, "other" in out) == (0, False, True)


def test_with_a_series_the_rows_the_sentence_and_the_two_captures_around_the_break_are_shown(
    capsys: pytest.CaptureFixture[str], results: str
) -> None:
    code, out, err = run(capsys, results, "--series", "bert", "--namespace", "team", "--limit", "6")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    shown = [line.split()[3] for line in lines if line.startswith("2026")]
    assert shown == [f"c{number:03d}" for number in range(9, 15)], "the newest last"
    assert "9 earlier captures; --limit shows more" in lines
    assert trend(series(BROKEN)).sentence in lines
    assert "last before: s3://traces/team/bert-9/0/c009/manifest.json" in lines
    assert "first after: s3://traces/team/bert-10/0/c010/manifest.json" in lines


def test_a_series_of_one_namespace_needs_no_namespace_and_that_of_several_does(
    capsys: pytest.CaptureFixture[str], results: str
) -> None:
    code, out, _ = run(capsys, results, "--series", "[red]resnet\x1b[2J/..")
    assert (code, out.count("50 ms")) == (0, 3)
    code, out, err = run(capsys, results, "--series", "bert")
    assert (code, out) == (2, "")
    assert "several namespaces: other, team" in err


def test_an_unknown_series_is_an_error_that_names_the_known_ones(
    capsys: pytest.CaptureFixture[str], results: str, tmp_path: Path
) -> None:
    code, out, err = run(capsys, results, "--series", "berd", "-o", "json")
    assert (code, out) == (2, "")
    assert "no series 'berd'" in err
    assert "Known are 'bert' (other), '[red]resnet\\x1b[2J/..' (team), 'bert' (team)." in err
    code, _, err = run(capsys, results, "--series", "berd", "--namespace", "other")
    assert code == 2
    assert "'bert' (other)" in err
    assert "(team)" not in err
    code, _, err = run(capsys, str(tmp_path), "--series", "berd")
    assert code == 2
    assert "there is no history" in err


def test_a_place_without_a_history_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, str(tmp_path / "none"))
    assert code == 0
    assert "no history yet" in out
    assert not (tmp_path / "none").exists(), "looking creates nothing"
    assert run(capsys, str(tmp_path), "-o", "json")[:2] == (0, "[]\n")


def test_json_is_one_document_with_all_of_it(capsys: pytest.CaptureFixture[str], results: str) -> None:
    code, out, _ = run(capsys, results, "-o", "json")
    listed = json.loads(out)
    assert code == 0
    assert [(each["namespace"], each["captures"]) for each in listed] == [("other", 1), ("team", 3), ("team", 15)]
    assert listed[2]["trend"]["found"]["first"]["capture_id"] == "c010"
    assert listed[2]["last"]["headline"]["step_time_ns"] == 130_000_000
    code, out, _ = run(capsys, results, "--series", "bert", "--namespace", "team", "--limit", "2", "-o", "json")
    one = json.loads(out)
    assert [each["capture_id"] for each in one["rows"]] == ["c013", "c014"]
    assert (one["captures"], one["trend"]["change"], one["warnings"]) == (15, "slower", [])


def test_the_page_is_written_for_one_series_or_for_all(
    capsys: pytest.CaptureFixture[str], results: str, tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "all.html"
    code, out, _ = run(capsys, results, "--html", str(path))
    assert code == 0
    assert f"page: {path}" in out
    text = path.read_text()
    assert text.count('<section class="card"') == 3
    code, out, _ = run(capsys, results, "--series", "bert", "--namespace", "team", "--html", str(path), "-o", "json")
    assert json.loads(out)["series"] == "bert", "nothing else is on standard output"
    assert path.read_text().count('<section class="card"') == 1
    assert [each.name for each in path.parent.iterdir()] == ["all.html"]


def test_what_is_no_row_is_named_on_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    append(str(tmp_path), row(0))
    damaged = tmp_path / "history/team/bert/x.parquet"
    damaged.write_bytes(b"PAR1")
    code, out, err = run(capsys, str(tmp_path), "--series", "bert", "-o", "json")
    assert code == 0
    assert damaged.as_uri() in err
    assert json.loads(out)["captures"] == 1
    assert damaged.as_uri() in json.loads(out)["warnings"][0]


def test_a_store_that_does_not_exist_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "ftp://x")
    assert code == 2
    assert "ftp://x" in err
