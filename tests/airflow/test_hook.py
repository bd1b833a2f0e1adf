"""What a connection of type `sameshot` means, and what its Test button finds out."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import ClusterApi

from sameshot import __version__
from sameshot.errors import UsageError
from sameshot_airflow.hooks.sameshot import SameshotHook
from support.coordination import coordinating, in_loop
from support.fake_agent import JOB, FakeAgent
from support.s3 import make_bucket, moto_server, s3_environment

Connect = Callable[..., SameshotHook]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """A hook whose connection stands in the environment, as JSON, the way docs/airflow.md shows it."""

    def connection(**fields: Any) -> SameshotHook:
        monkeypatch.setenv("AIRFLOW_CONN_PROFILES", json.dumps({"conn_type": "sameshot", **fields}))
        return SameshotHook("profiles")

    return connection


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where jobs of this machine are announced: empty, and ours alone."""
    with tempfile.TemporaryDirectory(prefix="ss-", dir="/tmp") as folder:
        monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", folder)
        yield Path(folder)


def announce_job(root: Path, name: str, labels: dict[str, str], coordinator: str = "127.0.0.1:1") -> None:
    """A run of this machine as `sameshot run` leaves it; this process is the one that lives."""
    run = root / f"run-{name}"
    run.mkdir(mode=0o700)
    content = {
        "schema": "sameshot.dev/run/v1",
        "job": {"namespace": "local", "name": name, "uid": f"uid-{name}", "attempt": 0},
        "series": "nightly",
        "labels": labels,
        "coordinator": coordinator,
        "archive": str(root / "archive"),
        "pid": os.getpid(),
    }
    (run / "job.json").write_text(json.dumps(content))
    (run / "alive.lock").touch()


@pytest.mark.parametrize(
    ("fields", "job", "address"),
    [
        ({"host": "kube", "schema": "ml"}, None, "kube:ml"),
        ({"host": "kube", "schema": "ml"}, "bert", "kube:ml/bert"),
        ({"host": " kube:ml "}, "bert", "kube:ml/bert"),
        ({"host": "kube:ml/bert"}, None, "kube:ml/bert"),
        ({"host": "kube:ml/bert"}, "vit", "kube:ml/bert"),
        ({"host": "kube:ml?route=direct", "schema": "ml"}, "bert", "kube:ml/bert?route=direct"),
        (
            {"host": "kube", "schema": "ml", "extra": {"context": "prod", "kubeconfig": "/etc/kube config"}},
            "bert",
            "kube:ml/bert?context=prod&kubeconfig=/etc/kube%20config",
        ),
        (
            {"host": "kube", "schema": "ml", "extra": {"service_account": "airflow/sameshot"}},
            "bert",
            "kube:ml/bert?service-account=airflow/sameshot",
        ),
    ],
    ids=str,
)
def test_jobs_of_a_cluster_are_named_by_their_namespace_and_chosen_by_each_task(
    connect: Connect, fields: dict[str, Any], job: str | None, address: str
) -> None:
    assert connect(**fields).address(job) == address


@pytest.mark.parametrize(
    ("fields", "job", "says"),
    [
        ({"host": "kube"}, "bert", r"set its Namespace \(schema\)"),
        ({"host": "kube", "schema": "ml", "port": 7000}, "bert", "has a port"),
        ({"host": "kube:ml", "schema": "vision"}, "bert", "two namespaces, ml and vision"),
        ({"host": "kube", "schema": "ML"}, "bert", "'ML' is no name of a namespace"),
        ({"host": "kube", "schema": "ml"}, "bert/../x", "is no name of a job"),
        ({"host": "kube", "schema": "ml"}, "bert?kubeconfig=/tmp/mine", "is no name of a job"),
        ({"host": "kube:ml?context=prod"}, "bert?wait=1s#", "is no name of a job"),
        ({"host": "kube", "schema": "ml", "extra": {"service_account": "a/b/c"}}, "bert", "service-account"),
    ],
    ids=str,
)
def test_fields_that_name_no_place_in_a_cluster_are_explained(
    connect: Connect, fields: dict[str, Any], job: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        connect(**fields).address(job)


@pytest.mark.parametrize(
    ("fields", "job", "address"),
    [
        ({}, None, "local"),
        ({}, "train", "local:train"),
        ({"host": "local"}, "train", "local:train"),
        ({"host": " local "}, None, "local"),
        ({"host": "trainer-0", "port": 7000}, None, "trainer-0:7000"),
        ({"host": "trainer-0", "port": 7000}, "train", "trainer-0:7000"),
        ({"host": "trainer-0:7000"}, None, "trainer-0:7000"),
        ({"host": "fd00::1", "port": 7000}, None, "[fd00::1]:7000"),
        ({"host": "unix:/run/c.sock"}, None, "unix:/run/c.sock"),
    ],
)
def test_the_host_says_which_jobs_are_meant(
    connect: Connect, fields: dict[str, Any], job: str | None, address: str
) -> None:
    assert connect(**fields).address(job) == address


def test_a_form_of_address_that_the_client_learns_can_be_a_host(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sameshot.client import address, register_resolver

    monkeypatch.setattr(address, "_RESOLVERS", dict(address._RESOLVERS))
    register_resolver("fleet", lambda name: f"{name}.example.com:7000")
    with connect(host="fleet:blue").get_client() as client:
        assert client.address == "blue.example.com:7000"


def test_what_is_not_said_is_none(connect: Connect) -> None:
    hook = connect()
    assert (hook.caller, hook.results_uri, hook.report_base_url, hook.archive_base_url) == (None, None, None, None)
    assert hook.report_url("s3://b/res/a.html") is None
    assert hook.manifest_url("s3://arch/ns/job/0/c1/manifest.json") is None
    with pytest.raises(UsageError, match=r"results_uri in the extra of the connection 'profiles'"):
        hook.place_of_results()


def test_what_is_said_is_used(connect: Connect) -> None:
    hook = connect(
        login="nightly-bot",
        extra={
            "results_uri": "s3://b/res",
            "report_base_url": "https://p.example.com",
            "archive_base_url": "https://a.example.com",
        },
    )
    assert hook.caller == "nightly-bot"
    assert hook.place_of_results() == "s3://b/res"
    assert hook.place_of_results("/elsewhere") == "/elsewhere"
    assert hook.report_url("s3://b/res/x/report.html") == "https://p.example.com/x/report.html"
    assert hook.report_url("s3://b/other/report.html") is None
    assert hook.manifest_url("s3://arch/ns/job/0/c1/manifest.json") == "https://a.example.com/ns/job/0/c1/manifest.json"


def test_jobs_are_found_by_their_labels(connect: Connect, runtime: Path) -> None:
    announce_job(runtime, "one", {"team": "a"})
    announce_job(runtime, "two", {"team": "b"})
    hook = connect()
    assert {found.name for found in hook.jobs()} == {"one", "two"}
    assert [found.address for found in hook.jobs({"team": "b"})] == ["local:two"]
    assert hook.jobs({"team": "c"}) == []


class TestTheTestButton:
    def test_it_names_the_jobs_of_this_machine(self, connect: Connect, runtime: Path, tmp_path: Path) -> None:
        announce_job(runtime, "one", {})
        announce_job(runtime, "two", {})
        results = tmp_path / "results"
        good, message = connect(extra={"results_uri": str(results)}).test_connection()
        assert good, message
        assert "2 armed jobs run on the machine that ran this test: one, two." in message
        assert f"{results} can be written" in message
        assert not results.exists(), "a test writes nothing"

    def test_no_job_is_no_fault(self, connect: Connect, runtime: Path) -> None:
        good, message = connect().test_connection()
        assert good, message
        assert "No armed job runs" in message
        assert "No results_uri is set" in message

    def test_a_runtime_directory_that_others_can_write_is_one(self, connect: Connect, runtime: Path) -> None:
        runtime.chmod(0o777)
        good, message = connect().test_connection()
        assert not good
        assert "mode 0700" in message

    @in_loop
    async def test_a_coordinator_says_what_it_serves(self, tmp_path: Path) -> None:
        async with FakeAgent("node-0", tmp_path) as agent, coordinating(tmp_path, [agent]) as client:
            host, port = client.address.rsplit(":", 1)
            with pytest.MonkeyPatch.context() as patch:
                fields = {"conn_type": "sameshot", "host": host, "port": int(port)}
                patch.setenv("AIRFLOW_CONN_PROFILES", json.dumps(fields))
                hook = SameshotHook("profiles")
                good, message = await asyncio.to_thread(hook.test_connection)
                assert good, message
                assert f"The coordinator of {JOB} (series nightly) answers: sameshot {__version__}, broker." in message
                found = await asyncio.to_thread(hook.jobs)
                assert [each.name for each in found] == [JOB.name]

    def test_a_coordinator_that_is_gone_is_named(self, connect: Connect) -> None:
        good, message = connect(host="127.0.0.1", port=1).test_connection()
        assert not good
        assert "127.0.0.1:1" in message

    def test_a_host_without_a_port_is_explained(self, connect: Connect) -> None:
        good, message = connect(host="trainer-0").test_connection()
        assert not good
        assert "'trainer-0' is no address of a coordinator" in message
        assert "host:port" in message

    @pytest.mark.parametrize(
        ("extra", "says"),
        [
            ({"results_uri": "results"}, "is a relative path"),
            ({"results_uri": "ftp://x/y"}, "ftp://x/y"),
            ({"results_uri": "/dev/null/x"}, "/dev/null is not a folder"),
            ({"results_uri": "/tmp/x", "report_base_url": "s3://b/x"}, "report_base_url is not an http"),
            ({"archive_base_url": "https://u:p@h/"}, "archive_base_url is an address with a user name or password"),
            ({"report_base_url": "https://p.example.com"}, "results_uri is not set"),
        ],
    )
    def test_a_place_that_can_not_work_is_explained(
        self, connect: Connect, runtime: Path, extra: dict[str, str], says: str
    ) -> None:
        good, message = connect(extra=extra).test_connection()
        assert not good
        assert says in message

    def test_it_asks_a_bucket_and_writes_nothing(self, connect: Connect, runtime: Path) -> None:
        with moto_server() as endpoint, s3_environment(endpoint):
            from support.s3 import s3_client

            make_bucket(endpoint, "only-asked")
            good, message = connect(extra={"results_uri": "s3://only-asked/profiles"}).test_connection()
            assert good, message
            assert "s3://only-asked/profiles answers" in message
            assert s3_client(endpoint).list_objects_v2(Bucket="only-asked")["KeyCount"] == 0

    def test_a_lock_of_a_dead_run_makes_no_job(self, connect: Connect, runtime: Path) -> None:
        announce_job(runtime, "one", {})
        job_file = runtime / "run-one" / "job.json"
        content = json.loads(job_file.read_text()) | {"pid": 1 << 30}
        job_file.write_text(json.dumps(content))
        good, message = connect().test_connection()
        assert good, message
        assert "No armed job runs" in message


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterApi]:
    with ClusterApi() as server:
        server.apply_folder(Path(__file__).parents[2] / "deploy" / "crds")
        server.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        yield server


class TestTheTestButtonInACluster:
    """Before an emulated API server and without a coordinator; with one: live/test_a_job_of_a_cluster."""

    @pytest.fixture
    def tested(
        self, cluster: ClusterApi, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., tuple[bool, str]]:
        """What the button says for this user of the cluster."""
        monkeypatch.setattr("sameshot_airflow.hooks.sameshot.TEST_WAIT_MS", 0)

        def press(user: str = "kubernetes-admin", **extra: str) -> tuple[bool, str]:
            kubeconfig = str(cluster.kubeconfig(tmp_path / f"{user}.yaml", user))
            hook = connect(host="kube", schema="ml", extra={"kubeconfig": kubeconfig, **extra})
            return hook.test_connection()

        return press

    def test_no_job_is_no_fault(self, tested: Callable[..., tuple[bool, str]]) -> None:
        good, message = tested()
        assert good, message
        assert "No armed job runs in namespace ml now" in message

    def test_who_may_not_look_is_told_what_it_takes(self, tested: Callable[..., tuple[bool, str]]) -> None:
        good, message = tested("jane")
        assert not good
        assert "ClusterRole sameshot-user" in message

    def test_a_context_that_is_not_there_is_one(self, tested: Callable[..., tuple[bool, str]]) -> None:
        good, message = tested(context="prod")
        assert not good
        assert "context prod" in message

    def test_a_coordinator_that_does_not_come_up_is_told_with_its_reason(
        self, tested: Callable[..., tuple[bool, str]], cluster: ClusterApi
    ) -> None:
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": "bert", "uid": "0b1c", "attempt": 0}
        made = {
            "apiVersion": "sameshot.dev/v1alpha1",
            "kind": "CaptureCoordinator",
            "metadata": {"name": "c-0b1c", "namespace": "ml"},
            "spec": {"job": job},
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "Ready", "status": "False", "reason": "Unschedulable", "message": "no node"}],
            },
        }
        cluster.make(made)
        try:
            good, message = tested()
        finally:
            cluster.delete("capturecoordinators.sameshot.dev", "ml", "c-0b1c")
        assert not good
        assert "bert" in message
        assert "Unschedulable" in message
