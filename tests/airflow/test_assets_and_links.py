"""What other DAGs and people see of a task's result: asset events and buttons, through Airflow's own machinery.

The tasks pretend to have captured; what Airflow makes of that is real, in one run of one DAG.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from airflow.sdk import Asset

from sameshot.model import JobRef, Outcome
from sameshot.steps.results import CaptureResult
from sameshot_airflow.assets import announce, capture_asset, captures, new_captures

RESULT = CaptureResult(
    capture_id="c1",
    job=JobRef("team a", "bert-x7f2", "uid-1", 3),
    series="bert/nightly",
    outcome=Outcome.SUCCEEDED,
    published=True,
    manifest_uri="s3://arch/team-a/bert-x7f2/3/c1/manifest.json",
    manifest_sha256="ab" * 32,
)


class TestTheAssetOfASeries:
    def test_it_is_the_same_however_it_is_written_down(self) -> None:
        assert capture_asset("team-a", "nightly") == Asset("sameshot://team-a/nightly")
        assert capture_asset("team-a", "nightly") != capture_asset("team-b", "nightly")

    def test_any_name_makes_one_and_no_two_share_it(self) -> None:
        odd = ["a/b", "a%2Fb", "a b", "a?b", "a#b", "ä", "..", "a/", "a"]
        uris = [capture_asset("local", name).uri for name in odd]
        assert len(set(uris)) == len(odd)
        assert all(uri.isascii() for uri in uris)
        assert capture_asset("local", "a/b?").uri == "sameshot://local/a%2Fb%3F"

    @pytest.mark.parametrize(
        "uri", ["sameshot://nightly", "sameshot:///nightly", "sameshot://a/b/c", "sameshot://a/b?c=d"]
    )
    def test_a_misspelt_one_fails_where_it_is_written(self, uri: str) -> None:
        with pytest.raises(ValueError, match="sameshot://<namespace>/<series>"):
            Asset(uri)

    @pytest.mark.parametrize(("namespace", "series"), [("", "x"), ("x", "")])
    def test_an_empty_name_is_refused(self, namespace: str, series: str) -> None:
        with pytest.raises(ValueError, match="needs a namespace and a series"):
            capture_asset(namespace, series)


@pytest.mark.parametrize(
    "result",
    [
        CaptureResult(message="skipped: the job has ended"),
        CaptureResult(
            capture_id="c1", job=RESULT.job, outcome=Outcome.SUCCEEDED, manifest_uri="s3://a/m", published=False
        ),
        CaptureResult(capture_id="c1", job=RESULT.job, manifest_uri="s3://a/m"),
    ],
    ids=["skipped", "not published", "not over"],
)
def test_what_has_no_manifest_is_not_announced(result: CaptureResult) -> None:
    events = mock.MagicMock()
    assert announce({"outlet_events": events}, result, [captures()]) is None
    assert not events.mock_calls


def test_a_dag_that_was_triggered_sees_each_capture_once() -> None:
    """Through the mapping that Airflow gives to tasks: every event stands in it under its asset and under the alias."""
    from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

    def event(at: int, asset: str, extra: dict[str, Any] | None) -> Any:
        aliases = [SimpleNamespace(name=captures().name)]
        return SimpleNamespace(
            asset=SimpleNamespace(name=asset, uri=asset), source_aliases=aliases, extra=extra, timestamp=at
        )

    one, two = ({"capture_id": name, "manifest_uri": f"s3://a/{name}"} for name in ("one", "two"))
    events = [event(3, "sameshot://x/b", two), event(1, "sameshot://x/a", one), event(2, "other", None)]
    given = TriggeringAssetEventsAccessor.build(events)
    assert sum(len(listed) for listed in given.values()) == 6
    assert new_captures(given) == [one, two]


DAGS = """
from airflow.sdk import DAG, Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from sameshot.model import JobRef, Outcome
from sameshot.steps.results import CaptureResult, to_builtins
from sameshot_airflow.assets import announce, capture_asset, captures
from sameshot_airflow.links import SameshotComparisonLink, SameshotManifestLink, SameshotReportLink

MINE = Asset("x-mine://captures")

class Pretended(BaseOperator):
    operator_extra_links = (SameshotReportLink(), SameshotComparisonLink(), SameshotManifestLink())

    def __init__(self, *, series, fails=False, result=None, sameshot_conn_id="profiles", **kwargs):
        super().__init__(**kwargs)
        self.series, self.fails, self.result, self.sameshot_conn_id = series, fails, result, sameshot_conn_id

    def execute(self, context):
        root = f"s3://arch/deep/er/local/{{self.series}}-x/0/c-{{self.series}}"
        result = CaptureResult(
            capture_id=f"c-{{self.series}}", job=JobRef("local", f"{{self.series}}-x", "uid", 0), series=self.series,
            outcome=Outcome.SUCCEEDED, published=True, manifest_uri=f"{{root}}/manifest.json", manifest_sha256="ab",
        )
        told = to_builtins(result) if self.result is None else self.result
        announce(context, result, self.outlets)
        if self.fails:
            context["ti"].xcom_push(key="return_value", value=told)
            raise AirflowFailException("on purpose")
        return told

with DAG("pretends", is_paused_upon_creation=False):
    Pretended.partial(task_id="mapped", outlets=[captures()]).expand(series=["one", "two"])
    Pretended(task_id="mine", series="three", outlets=[MINE, captures()])
    Pretended(task_id="failing", series="four", fails=True, outlets=[captures()])
    Pretended(task_id="report", series="x", result={{"report_uri": "{results}/a b/report.html"}})
    Pretended(task_id="comparison", series="x", result={{
        "comparison_uri": "file://{results}/c.html", "after_manifest_uri": "/arch/ns/job/0/c1/manifest.json",
    }})
    Pretended(task_id="elsewhere", series="x", result={{"report_uri": "/etc/report.html", "manifest_uri": "s3://a/m"}})
    Pretended(task_id="unconnected", series="x", sameshot_conn_id="no_such_connection",
              result={{"report_uri": "{results}/report.html"}})
    Pretended(task_id="wordless", series="x", result="done")

for name, schedule in (
    ("on_one", [capture_asset("local", "one")]), ("on_four", [capture_asset("local", "four")]),
    ("on_any", [captures()]), ("on_mine", [MINE]),
):
    with DAG(name, schedule=schedule, is_paused_upon_creation=False):
        BaseOperator(task_id="nothing")
"""


@pytest.fixture(scope="module")
def after_the_run(airflow_home: Path, airflow_database: Path) -> Iterator[str]:
    """The DAG was run, in this process; the id of its run."""
    from airflow.dag_processing.dagbag import DagBag

    results = "/data/results"
    file = airflow_home / "dags" / "pretends.py"
    file.write_text(DAGS.format(results=results))
    connection = {
        "conn_type": "sameshot",
        "extra": {
            "results_uri": results,
            "report_base_url": "https://p.example.com/r",
            "archive_base_url": "https://a.example.com/",
        },
    }
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIRFLOW_CONN_PROFILES", json.dumps(connection))
            bag = DagBag(str(file), bundle_path=file.parent, bundle_name="dags-folder")
            assert not bag.import_errors
            run = bag.dags["pretends"].test()
        yield run.run_id
    finally:
        file.unlink()


def rows(statement: str, *values: object) -> list[tuple[Any, ...]]:
    import sqlite3

    from airflow.configuration import AIRFLOW_HOME

    with sqlite3.connect(f"{AIRFLOW_HOME}/airflow.db") as database:
        return database.execute(statement, values).fetchall()


@pytest.mark.full
class TestAnnouncements:
    def events(self) -> dict[str, dict[str, Any]]:
        found = rows(
            "select asset.uri, asset_event.extra from asset_event join asset on asset.id = asset_event.asset_id "
            "where source_dag_id = 'pretends'"
        )
        assert len(found) == len(dict(found)), "one event each"
        return {uri: json.loads(extra) for uri, extra in found}

    def test_each_capture_is_an_event_of_its_series(self, after_the_run: str) -> None:
        series = {uri for uri in self.events() if uri.startswith("sameshot:")}
        assert series == {f"sameshot://local/{name}" for name in ("one", "two", "three")}

    def test_the_event_carries_the_manifest(self, after_the_run: str) -> None:
        extra = self.events()["sameshot://local/one"]
        assert extra == {
            "capture_id": "c-one",
            "manifest_uri": "s3://arch/deep/er/local/one-x/0/c-one/manifest.json",
            "manifest_sha256": "ab",
            "outcome": "SUCCEEDED",
            "job": "local/one-x/0",
            "uid": "uid",
            "series": "one",
        }

    def test_an_asset_of_the_users_own_carries_it_too(self, after_the_run: str) -> None:
        assert self.events()["x-mine://captures"]["capture_id"] == "c-three"

    def test_dags_that_wait_for_them_are_triggered_and_no_others(self, after_the_run: str) -> None:
        triggered = {name for (name,) in rows("select target_dag_id from asset_dag_run_queue")}
        assert triggered & {"on_one", "on_four", "on_any", "on_mine"} == {"on_one", "on_any", "on_mine"}


@pytest.mark.full
class TestButtons:
    def links(self, run_id: str, task: str, map_index: int = -1) -> dict[str, str]:
        """What is not empty: as for Airflow's interface, which disables the others."""
        found = rows(
            "select key, value from xcom where dag_id = 'pretends' and run_id = ? and task_id = ? and map_index = ? "
            "and key like '_link_%'",
            run_id,
            task,
            map_index,
        )
        assert len(found) == 3
        return {key.removeprefix("_link_"): url for key, value in found if (url := json.loads(value))}

    def test_a_capture_links_its_manifest_for_each_mapped_task(self, after_the_run: str) -> None:
        for index, name in enumerate(["one", "two"]):
            url = f"https://a.example.com/local/{name}-x/0/c-{name}/manifest.json"
            assert self.links(after_the_run, "mapped", index) == {"SameshotManifestLink": url}

    def test_a_failed_task_links_what_it_left(self, after_the_run: str) -> None:
        url = "https://a.example.com/local/four-x/0/c-four/manifest.json"
        assert self.links(after_the_run, "failing") == {"SameshotManifestLink": url}

    def test_an_analysis_links_its_report(self, after_the_run: str) -> None:
        url = "https://p.example.com/r/a%20b/report.html"
        assert self.links(after_the_run, "report") == {"SameshotReportLink": url}

    def test_a_comparison_links_its_page_and_the_later_manifest(self, after_the_run: str) -> None:
        assert self.links(after_the_run, "comparison") == {
            "SameshotComparisonLink": "https://p.example.com/r/c.html",
            "SameshotManifestLink": "https://a.example.com/ns/job/0/c1/manifest.json",
        }

    @pytest.mark.parametrize("task", ["elsewhere", "unconnected", "wordless"])
    def test_without_a_place_that_is_served_there_is_none(self, after_the_run: str, task: str) -> None:
        assert self.links(after_the_run, task) == {}
