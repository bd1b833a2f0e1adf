"""One call makes a running job's report: the group of tasks, what it does with skips and failures, many jobs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, TaskGroup, task_group
from dag_file import DagRun, dag_file, run_dag
from live import running_job

from sameshot.steps.history import rows
from sameshot.steps.results import AnalysisResult, CompareResult, from_builtins
from sameshot_airflow.operators.analyze import SameshotAnalyzeOperator
from sameshot_airflow.task_groups import profile_job, profile_jobs


def edges(dag: DAG) -> set[tuple[str, str]]:
    return {(task.task_id, below) for task in dag.tasks for below in task.downstream_task_ids}


def stored(dag: DAG) -> Any:
    """As the scheduler reads it back from the database."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))


# -- the graph


def test_the_group_captures_maps_the_ranks_and_reduces() -> None:
    with DAG("graph", schedule=None) as dag:
        profile_job("bert")
    assert edges(dag) == {
        ("profile_bert.capture", "profile_bert.shards"),
        ("profile_bert.capture", "profile_bert.analyze"),
        ("profile_bert.capture", "profile_bert.reduce"),
        ("profile_bert.shards", "profile_bert.analyze"),
        ("profile_bert.analyze", "profile_bert.reduce"),
    }
    assert [task.task_id for task in dag.tasks if task.is_mapped] == ["profile_bert.analyze"]
    again = stored(dag)
    assert {(each, below) for each in again.task_ids for below in again.get_task(each).downstream_task_ids} == edges(
        dag
    )
    assert again.get_task("profile_bert.analyze").is_mapped


def test_a_threshold_adds_the_comparison_at_the_end() -> None:
    with DAG("compared", schedule=None) as dag:
        group = profile_job("bert", compare_threshold=0.2, on_regression="report")
        profile_job("gpt")
    assert ("profile_bert.reduce", "profile_bert.compare") in edges(dag)
    assert (group.compare.threshold, group.compare.on_regression) == (0.2, "report")
    assert "profile_gpt.compare" not in dag.task_ids


def test_the_group_is_one_thing_to_its_neighbours_and_its_tasks_are_within_reach() -> None:
    with DAG("neighbours", schedule=None) as dag:
        group = profile_job("bert", group_id="p", compare_threshold=0.1)
        EmptyOperator(task_id="before") >> group >> EmptyOperator(task_id="after")
        EmptyOperator(task_id="look") << group.reduce
    assert isinstance(group, TaskGroup)
    assert {("before", "p.capture"), ("p.compare", "after"), ("p.reduce", "look")} < edges(dag)
    assert [group.capture.task_id, group["shards"].task_id, group.compare.task_id] == [
        "p.capture",
        "p.shards",
        "p.compare",
    ]


def test_a_branch_of_the_comparison_leads_out_of_the_group() -> None:
    with DAG("branch", schedule=None) as dag:
        group = profile_job(
            "bert", compare_threshold=0.1, on_regression="branch", if_regressed="alert", otherwise=["promote"]
        )
        group >> [EmptyOperator(task_id="alert"), EmptyOperator(task_id="promote")]
    assert {("profile_bert.compare", "alert"), ("profile_bert.compare", "promote")} < edges(dag)
    assert (group.compare.if_regressed, group.compare.otherwise) == (("alert",), ("promote",))
    assert stored(dag).get_task("profile_bert.compare").inherits_from_skipmixin


def test_options_reach_the_tasks_that_they_are_for() -> None:
    with DAG("options", schedule=None):
        group = profile_job(
            "bert",
            duration="500ms",
            with_stack=True,
            if_unavailable="skip",
            min_ranks=3,
            results_uri="/results",
            sameshot_conn_id="gpus",
            image="trainer:7",
            commit="{{ params.commit }}",
            history=False,
            compare_threshold=0.1,
            max_active_ranks=4,
            default_args={"retries": 5, "pool": "profiling"},
        )
    capture, ranks, reduce = group.capture, group["analyze"], group.reduce
    assert (capture.job, capture.duration, capture.with_stack, capture.if_unavailable) == (
        "bert",
        "500ms",
        True,
        "skip",
    )
    assert (capture.min_ranks, reduce.min_ranks, group.compare.min_ranks) == (3, 3, 3)
    assert (reduce.image, reduce.commit, reduce.history) == ("trainer:7", "{{ params.commit }}", False)
    assert {each.sameshot_conn_id for each in (capture, reduce, group.compare)} == {"gpus"}
    assert {each.results_uri for each in (reduce, group.compare)} == {"/results"}
    assert (ranks.partial_kwargs["results_uri"], ranks.partial_kwargs["sameshot_conn_id"]) == ("/results", "gpus")
    assert ranks.max_active_tis_per_dagrun == 4
    assert {(each.retries, each.pool) for each in group} == {(5, "profiling")}


def test_report_and_ranks_have_the_same_fetch_pattern() -> None:
    with DAG("fetching", schedule=None):
        group = profile_job("one", group_id="one", fetch_pattern="next_batch")
        whole = profile_job("one", group_id="whole", fetch_pattern="next_batch", fan_out=False)
    assert group["analyze"].partial_kwargs["fetch_pattern"] == "next_batch"
    assert group.reduce.fetch_pattern == whole.reduce.fetch_pattern == "next_batch"


def test_only_where_some_ranks_are_enough_the_report_waits_for_no_analysis_to_succeed() -> None:
    """`all_done_min_one_success`: a skipped capture skips it, a failed one leaves it not run."""
    with DAG("lenient", schedule=None) as dag:
        profile_job("all", group_id="all", compare_threshold=0.1)
        profile_job("some", group_id="some", min_ranks=3, compare_threshold=0.1)
        profile_job("one", group_id="one", min_ranks=3, fan_out=False)
    again = stored(dag)
    rules = {each: str(again.get_task(each).trigger_rule) for each in again.task_ids}
    assert {each for each, rule in rules.items() if rule != "all_success"} == {"some.reduce"}
    assert rules["some.reduce"] == "all_done_min_one_success"


def test_how_tasks_are_run_holds_for_all_of_the_group() -> None:
    def told(context: Any) -> None:
        pass

    with DAG("run", schedule=None):
        group = profile_job(
            "bert",
            compare_threshold=0.1,
            retries=5,
            pool="x",
            queue="gpu",
            on_failure_callback=told,
            outlets=[Asset("mine")],
            default_args={"retries": 1, "owner": "ana"},
        )
        whole = profile_job("bert", group_id="whole", fan_out=False, retries=5)
        each = profile_jobs(["bert"], retries=5)
    assert len(list(group)) == 5
    assert {(task.retries, task.pool, task.queue, task.owner) for task in group} == {(5, "x", "gpu", "ana")}
    assert all(task.on_failure_callback == [told] for task in group)
    assert {task.retries for task in [*whole, *each]} == {5}
    assert [bool(task.outlets) for task in group] == [True, False, False, False, False]  # what is made is the capture's
    assert group.capture.outlets[0].name == "mine"


def test_what_each_task_must_have_of_its_own_is_refused_for_the_group() -> None:
    with DAG("refused", schedule=None), pytest.raises(ValueError, match=r"^trigger_rule: each task .* has its own"):
        profile_job("bert", trigger_rule="all_done")


def test_all_tasks_after_the_capture_get_its_manifest_and_digest_together() -> None:
    with DAG("digest", schedule=None):
        group = profile_job("bert", compare_threshold=0.1)
    given = [
        group["shards"].capture,
        group.reduce.capture,
        group.compare.capture,
        group["analyze"].partial_kwargs["capture"],
    ]
    assert all(each == group.capture.output != group.reduce.output for each in given)


@pytest.mark.parametrize(
    ("job", "group_id"),
    [
        ("bert", "profile_bert"),
        ("team-a/bert v2.1", "profile_team-a-bert-v2-1"),
        ("{{ params.job }}", "profile_job"),
        (None, "profile_job"),
    ],
)
def test_the_group_is_named_after_the_job_where_that_is_known(job: str | None, group_id: str) -> None:
    with DAG("names", schedule=None):
        assert profile_job(job).group_id == group_id
        assert profile_job(job, group_id="mine").group_id == "mine"


def test_groups_of_several_jobs_in_one_dag_do_not_touch() -> None:
    with DAG("several", schedule=None) as dag:
        for job in ("bert", "gpt"):
            profile_job(job, compare_threshold=0.1)
        with TaskGroup("nightly"):
            profile_job("bert")
    groups = {task_id.rpartition(".")[0] for task_id in dag.task_ids}
    assert groups == {"profile_bert", "profile_gpt", "nightly.profile_bert"}
    assert all(one.rpartition(".")[0] == other.rpartition(".")[0] for one, other in edges(dag))


# -- over many jobs


def test_mapped_over_jobs_each_has_its_own_chain() -> None:
    with DAG("jobs", schedule=None) as dag:
        profile_jobs(["bert", "gpt"], group_id="all", compare_threshold=0.1, duration="1s")
    assert edges(dag) == {
        ("all.job.capture", "all.job.reduce"),
        ("all.job.capture", "all.job.compare"),
        ("all.job.reduce", "all.job.compare"),
    }
    assert isinstance(dag.get_task("all.job.reduce"), SameshotAnalyzeOperator)
    again = stored(dag)
    assert all(again.get_task(each).get_closest_mapped_task_group() is not None for each in again.task_ids)


def test_within_a_mapped_group_ranks_can_not_be_mapped_once_more() -> None:
    """Airflow's limit, and why `fan_out=False` exists."""

    @task_group
    def each(job: str) -> None:
        profile_job(job)

    with DAG("nested", schedule=None), pytest.raises(NotImplementedError, match="expanded task group"):
        each.expand(job=["bert", "gpt"])


@pytest.mark.parametrize("option", ["fan_out", "if_regressed", "otherwise"])
def test_what_can_not_be_had_over_many_jobs_is_refused(option: str) -> None:
    with DAG("refused", schedule=None), pytest.raises(ValueError, match=option):
        profile_jobs(["bert"], **{option: "x"})


# -- in a real run

WITHOUT_JOBS = """
from airflow.sdk import DAG, task
from sameshot_airflow.task_groups import profile_job, profile_jobs

with DAG("no_jobs", schedule=None, default_args={"retries": 0}) as no_jobs:
    profile_job("ended", group_id="lenient", if_unavailable="skip", compare_threshold=0.1)
    profile_job("ended", group_id="strict", compare_threshold=0.1)
    profile_job("ended", group_id="some_lenient", if_unavailable="skip", compare_threshold=0.1, min_ranks=1)
    profile_job("ended", group_id="some_strict", compare_threshold=0.1, min_ranks=1)

with DAG("nobody", schedule=None, default_args={"retries": 0}) as nobody:
    @task
    def find():
        return []

    profile_jobs(find())
"""

ONE_RANK_FAILS = """
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from sameshot_airflow.task_groups import profile_job

OPTIONS = {"duration": "500ms", "warmup": "0s", "activities": ["cpu"], "timeout": "90s", "compare_threshold": 5.0}

def killed(context):
    ti = context["ti"]
    if ti.task_id.endswith(".analyze") and ti.map_index == 1:
        raise AirflowFailException("out of memory")

for name, min_ranks in (("enough", 1), ("too_few", 2), ("all", None)):
    with DAG(name, schedule=None, default_args={"retries": 0, "pre_execute": killed}) as dag:
        profile_job("live", group_id="p", min_ranks=min_ranks, **OPTIONS)
    globals()[name] = dag
"""

WITH_A_JOB = """
from airflow.sdk import DAG, task
from sameshot_airflow.task_groups import profile_job, profile_jobs

OPTIONS = {"duration": "500ms", "warmup": "0s", "activities": ["cpu"], "timeout": "90s"}

with DAG("one_job", schedule=None, default_args={"retries": 0}) as one_job:
    @task
    def publish(report_uri):
        return report_uri

    group = profile_job("live", group_id="p", compare_threshold=5.0, **OPTIONS)
    publish("{{ ti.xcom_pull(task_ids='p.reduce')['report_uri'] }}") << group

with DAG("many_jobs", schedule=None, default_args={"retries": 0}) as many_jobs:
    @task
    def find():
        return ["live", "ended"]

    compared = {"compare_threshold": 5.0, "on_regression": "report"}
    profile_jobs(find(), group_id="all", if_unavailable="skip", **compared, **OPTIONS)
"""


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No job runs but ours; results go where the connection says, and are served somewhere."""
    with tempfile.TemporaryDirectory(prefix="ss-", dir="/tmp") as folder:
        monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", folder)
        connection = {
            "conn_type": "sameshot",
            "extra": {"results_uri": str(tmp_path / "results"), "report_base_url": "https://profiles.example.com"},
        }
        monkeypatch.setenv("AIRFLOW_CONN_SAMESHOT_DEFAULT", json.dumps(connection))
        yield Path(folder)


@pytest.mark.full
def test_a_skipped_capture_skips_all_and_a_failed_one_runs_nothing(airflow_database: Path, runtime: Path) -> None:
    with dag_file(airflow_database.parent, WITHOUT_JOBS) as dags:
        run = run_dag(dags["no_jobs"])
        nobody = run_dag(dags["nobody"])
    assert run.states == {
        f"{group}.{name}": state if name == "capture" else after
        for group, state, after in (
            ("lenient", "skipped", "skipped"),
            ("strict", "failed", "upstream_failed"),
            ("some_lenient", "skipped", "skipped"),
            ("some_strict", "failed", "upstream_failed"),
        )
        for name in ("capture", "shards", "analyze", "reduce", "compare")
    }
    assert "ended" in run.results["lenient.capture"]["message"]
    assert nobody.state == "success"
    assert {state for name, state in nobody.states.items() if name != "find"} == {"skipped"}


@pytest.mark.full
@pytest.mark.live
@pytest.mark.timeout(400)
def test_a_running_job_becomes_a_report(airflow_database: Path, runtime: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    setup = {"name": "live", "archive": str(tmp_path / "archive")}
    (own := runtime / "job").mkdir()
    with (
        running_job(own, nodes=1, setup=setup, script_args=("--pause", "0.02")),
        dag_file(airflow_database.parent, WITH_A_JOB) as dags,
    ):
        first = run_dag(dags["one_job"])
        second = run_dag(dags["one_job"])
        many = run_dag(dags["many_jobs"])
    _one_report(first, results)
    _one_report(second, results)
    compared = [from_builtins(run.results["p.compare"], CompareResult) for run in (first, second)]
    assert compared[0].verdict == "first"
    assert compared[1].before_capture_id == first.results["p.capture"]["capture_id"]
    assert many.states == {
        "find": "success",
        **{f"all.job.{name}[0]": "success" for name in ("capture", "reduce", "compare")},
        **{f"all.job.{name}[1]": "skipped" for name in ("capture", "reduce", "compare")},
    }
    assert {many.labels[f"all.job.{name}[0]"] for name in ("capture", "reduce", "compare")} == {"live"}
    found = from_builtins(many.results["all.job.compare[0]"], CompareResult)
    assert found.before_capture_id == second.results["p.capture"]["capture_id"]
    assert len(rows(str(results), "local", "live")) == 3


@pytest.mark.full
@pytest.mark.live
@pytest.mark.timeout(400)
def test_a_rank_whose_analysis_fails_is_missing_from_the_report_where_some_are_enough(
    airflow_database: Path, runtime: Path, tmp_path: Path
) -> None:
    setup = {"name": "live", "archive": str(tmp_path / "archive")}
    (own := runtime / "job").mkdir()
    with (
        running_job(own, nodes=1, setup=setup, script_args=("--pause", "0.02")),
        dag_file(airflow_database.parent, ONE_RANK_FAILS) as dags,
    ):
        runs = {name: run_dag(dags[name]) for name in ("enough", "too_few", "all")}
    analysed = {"p.capture": "success", "p.shards": "success", "p.analyze[0]": "success", "p.analyze[1]": "failed"}
    assert runs["enough"].states == {**analysed, "p.reduce": "success", "p.compare": "success"}
    assert runs["enough"].state == "success"
    report = from_builtins(runs["enough"].results["p.reduce"], AnalysisResult)
    assert (report.expected, report.analysed, report.missing) == (2, 1, "1")
    assert "not analysed: rank 1" in report.message
    assert runs["too_few"].states == {**analysed, "p.reduce": "failed", "p.compare": "upstream_failed"}
    capture = runs["too_few"].results["p.capture"]["capture_id"]
    (written,) = (tmp_path / "results").rglob(f"{capture}/report.html")
    assert "Run analyze_rank with shard 1/2 again" in written.read_text(), "the report is there all the same"
    assert runs["all"].states == {**analysed, "p.reduce": "upstream_failed", "p.compare": "upstream_failed"}


def _one_report(run: DagRun, results: Path) -> None:
    assert run.state == "success"
    assert run.states == {
        "p.capture": "success",
        "p.shards": "success",
        "p.analyze[0]": "success",
        "p.analyze[1]": "success",
        "p.reduce": "success",
        "p.compare": "success",
        "publish": "success",
    }
    assert {run.labels["p.analyze[0]"], run.labels["p.analyze[1]"]} == {"ranks 0/2", "ranks 1/2"}
    report = from_builtins(run.results["p.reduce"], AnalysisResult)
    path = Path(report.report_uri.removeprefix("file://"))
    assert path.is_relative_to(results)
    assert path.read_bytes().startswith(b"<!")
    assert run.results["publish"] == report.report_uri
    assert (report.expected, report.analysed) == (2, 2)
    assert report.manifest_sha256 == run.results["p.capture"]["manifest_sha256"]
    assert all(len(json.dumps(each)) < 2048 for each in run.results.values())
    (link,) = [value for key, value in run.xcoms["p.reduce"].items() if "Report" in key]
    assert link == f"https://profiles.example.com/{path.relative_to(results)}"
