"""`sameshot analyze --on-cluster` against an API server; kubelet and Job controller are played by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_api import ClusterApi

from sameshot.cli.main import invoke
from sameshot.errors import Denied, SameshotError, TryAgain, Unreachable, UsageError
from sameshot.steps.image import IMAGE
from sameshot.steps.on_cluster import AnalysisJob, Finished, follow, job_of, run, submit

ASKED = AnalysisJob(
    manifest="s3://traces/ml/llama-7b/0/0197f3a2/manifest.json", results="s3://results/profiling", namespace="ml"
)
NAME = job_of(ASKED)["metadata"]["name"]
RESULT = {
    "step": "analyze",
    "exit_code": 0,
    "error": "",
    "message": "All 2 ranks analysed.",
    "findings": ["Rank 1 is late."],
    "report_uri": "s3://results/profiling/report.html",
    "summary_uri": "s3://results/profiling/summary.json",
}
CLOCK = "2026-01-01T00:00:0"


@pytest.fixture(scope="module")
def server() -> Iterator[ClusterApi]:
    with ClusterApi() as made:
        made.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        account = {"name": "sameshot-analysis", "namespace": "ml"}
        made.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        yield made


@pytest.fixture
def api(server: ClusterApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterApi]:
    monkeypatch.setattr("sameshot.steps.on_cluster.submitted.EVERY_S", 0.02)
    yield server
    for what in ("jobs.batch", "pods", "events"):
        for each in server.list(what, "ml"):
            server.delete(what, "ml", each["metadata"]["name"])


def a_pod(api: ClusterApi, phase: str = "Running", state: dict[str, Any] | None = None) -> None:
    """What the Job controller makes of the Job, and the kubelet of that."""
    name = f"{NAME}-abcde"
    status = {"phase": phase, "containerStatuses": [{"name": "analyze", "state": state or {}}]}
    if api.find("pods", "ml", name) is None:
        template = api.get("jobs.batch", "ml", NAME)["spec"]["template"]
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": NAME}
        metadata = {"name": name, "namespace": "ml", "labels": labels}
        api.make({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    api.set_status("pods", "ml", name, status)


def ends(api: ClusterApi, kind: str, reason: str = "", *, code: int = 0, message: str = "") -> None:
    a_pod(
        api,
        "Failed" if code else "Succeeded",
        {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}},
    )
    condition = {"type": kind, "status": "True", "reason": reason, "message": "as it was told"}
    api.set_status("jobs.batch", "ml", NAME, {"conditions": [condition]})


def played(api: ClusterApi, *acts: Callable[[], None]) -> Callable[[float], None]:
    """Something happens in the cluster between any two looks."""
    left = list(acts)

    def sleep(_: float) -> None:
        assert left, "nothing is left to happen"
        left.pop(0)()

    return sleep


def test_it_is_made_followed_and_its_result_comes_back(api: ClusterApi) -> None:
    told: list[str] = []
    kube = api.kube()
    job = submit(kube, ASKED, told.append)
    assert (job.name, job.found) == (NAME, False)
    api.logs = lambda namespace, pod: f"{CLOCK}1.000000000Z analysed 1/2\n"
    sleep = played(
        api,
        lambda: a_pod(api, "Pending", {"waiting": {"reason": "ContainerCreating"}}),
        lambda: a_pod(api, "Running"),
        lambda: ends(api, "Complete", message=json.dumps(RESULT)),
    )
    finished = follow(kube, job, told.append, sleep=sleep)
    assert (finished.exit_code, finished.message) == (0, "All 2 ranks analysed.")
    assert finished.result["report_uri"] == RESULT["report_uri"]
    assert told == [
        f"made Job {NAME} in namespace ml",
        "its pod is being made",
        f"pod {NAME}-abcde has a node, which gets its image and volumes ready",
        f"pod {NAME}-abcde runs",
        "  analysed 1/2",
    ]


def test_the_same_request_finds_it_again_running_or_done(api: ClusterApi) -> None:
    kube = api.kube()
    first = submit(kube, ASKED)
    uid = api.get("jobs.batch", "ml", NAME)["metadata"]["uid"]
    assert submit(kube, ASKED).found
    ends(api, "Complete", message=json.dumps(RESULT))
    assert run(kube, ASKED).result == RESULT
    assert api.get("jobs.batch", "ml", first.name)["metadata"]["uid"] == uid


def test_one_that_has_failed_is_replaced(api: ClusterApi) -> None:
    kube = api.kube()
    submit(kube, ASKED)
    uid = api.get("jobs.batch", "ml", NAME)["metadata"]["uid"]
    ends(api, "Failed", "PodFailurePolicy", code=3, message=json.dumps({**RESULT, "exit_code": 3}))
    told: list[str] = []
    assert not submit(kube, ASKED, told.append).found
    assert api.get("jobs.batch", "ml", NAME)["metadata"]["uid"] != uid
    assert "replaced" in " ".join(told)


def test_one_that_somebody_else_has_replaced_meanwhile_is_left_alone(
    api: ClusterApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube = api.kube()
    submit(kube, ASKED)
    ends(api, "Failed", "PodFailurePolicy", code=3)
    send, theirs = kube.send, ""

    def racing(method: str, path: str, body: object = None, **more: Any) -> bytes:
        nonlocal theirs
        if method == "DELETE" and not theirs:
            api.delete("jobs.batch", "ml", NAME)
            theirs = api.make(job_of(ASKED))["metadata"]["uid"]
        return send(method, path, body, **more)

    monkeypatch.setattr(kube, "send", racing)
    assert submit(kube, ASKED).found
    assert api.get("jobs.batch", "ml", NAME)["metadata"]["uid"] == theirs


def test_what_hinders_it_for_long_ends_the_following_and_not_the_job(api: ClusterApi) -> None:
    kube = api.kube()
    job = submit(kube, ASKED)
    a_pod(api, "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 10.0

    with pytest.raises(UsageError, match="no such image") as raised:
        follow(kube, job, clock=lambda: now[0], sleep=sleep)
    assert 60 <= now[0] < 90  # a registry that is away for a moment is no reason
    assert f"kubectl delete job -n ml {NAME}" in str(raised.value)
    assert api.find("jobs.batch", "ml", NAME) is not None


def test_a_job_that_can_make_no_pod_says_why_from_its_events(api: ClusterApi) -> None:
    kube = api.kube()
    job = submit(kube, ASKED)
    uid = api.get("jobs.batch", "ml", NAME)["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e1", "namespace": "ml"},
        "involvedObject": {"kind": "Job", "name": NAME, "namespace": "ml", "uid": uid},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": 'Error creating: pods "x" is forbidden: exceeded quota: team, requested: memory=2Gi',
    }
    api.make(event)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 20.0

    with pytest.raises(TryAgain, match="exceeded quota"):
        follow(kube, job, clock=lambda: now[0], sleep=sleep)


def test_an_api_server_that_is_away_for_a_moment_is_waited_for_and_not_for_ever(api: ClusterApi) -> None:
    kube = api.kube()
    job = submit(kube, ASKED)
    api.fail(503, resource="jobs", times=3)
    sleep = played(api, *[lambda: None] * 3, lambda: ends(api, "Complete", message=json.dumps(RESULT)))
    assert follow(kube, job, sleep=sleep).exit_code == 0
    api.fail(503, resource="jobs")
    now = [0.0]

    def later(seconds: float) -> None:
        now[0] += 20.0

    try:
        with pytest.raises(Unreachable, match="may run"):
            follow(kube, job, clock=lambda: now[0], sleep=later)
    finally:
        api.fail(0)


def test_one_that_somebody_deletes_is_told_so(api: ClusterApi) -> None:
    kube = api.kube()
    job = submit(kube, ASKED)
    with pytest.raises(SameshotError, match="deleted before it had ended"):
        follow(kube, job, sleep=played(api, lambda: api.delete("jobs.batch", "ml", NAME) and None))


def test_whoever_may_not_make_jobs_is_denied(api: ClusterApi) -> None:
    with pytest.raises(Denied, match="role `edit`"):
        submit(api.kube("jane"), ASKED)


def invoked(api: ClusterApi, tmp_path: Path, *more: str) -> int:
    config = str(api.kubeconfig(tmp_path / "config"))
    return invoke(["analyze", ASKED.manifest, "--out", ASKED.results, "--on-cluster", "--kubeconfig", config, *more])


def in_time(api: ClusterApi, act: Callable[[], None]) -> threading.Thread:
    """Once its Job is there."""

    def wait() -> None:
        api.wait_for(lambda: api.find("jobs.batch", "ml", NAME))
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("code", [0, 3])
def test_the_command_ends_as_the_job_does(
    api: ClusterApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    result = {**RESULT, "exit_code": code}
    kind, reason = ("Failed", "PodFailurePolicy") if code else ("Complete", "")
    thread = in_time(api, lambda: ends(api, kind, reason, code=code, message=json.dumps(result)))
    assert invoked(api, tmp_path) == code
    thread.join(10)
    shown = capsys.readouterr()
    assert f"made Job {NAME}" in shown.err
    assert "Rank 1 is late." in shown.out
    assert "report: s3://results/profiling/report.html" in shown.out


def test_without_waiting_its_name_is_all_there_is(
    api: ClusterApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoked(api, tmp_path, "--no-wait", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"namespace": "ml", "job": NAME, "found": False}


def test_the_image_is_the_one_that_is_named_else_the_environments(
    api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def image() -> str:
        (job,) = api.list("jobs.batch", "ml")
        api.delete("jobs.batch", "ml", job["metadata"]["name"])
        return str(job["spec"]["template"]["spec"]["containers"][0]["image"])

    monkeypatch.setenv("SAMESHOT_STEPS_IMAGE", "registry.local/steps:1")
    assert invoked(api, tmp_path, "--no-wait") == 0
    assert image() == "registry.local/steps:1"
    assert invoked(api, tmp_path, "--no-wait", "--image", "registry.local/other") == 0
    assert image() == "registry.local/other"
    monkeypatch.setenv("SAMESHOT_STEPS_IMAGE", "")
    assert invoked(api, tmp_path, "--no-wait") == 0
    assert image() == IMAGE


def test_ctrl_c_leaves_it_and_says_how_to_go_on(
    api: ClusterApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Finished:
        raise KeyboardInterrupt

    monkeypatch.setattr("sameshot.steps.on_cluster.follow", interrupted)
    assert invoked(api, tmp_path) == 130
    said = capsys.readouterr().err
    assert f"kubectl logs -n ml -f job/{NAME}" in said
    assert f"kubectl delete job -n ml {NAME}" in said
    assert api.find("jobs.batch", "ml", NAME) is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["s3://traces/x", "--out", "s3://results", "--on-cluster"], "--namespace"),
        (["s3://a/ml/b/0/c/manifest.json", "--on-cluster"], "object store"),
        (["cap", "--limits", "memory=1Gi"], "add --on-cluster"),
        (["cap", "--out", "s3://results"], "sameshot step analyze cap --results s3://results"),
        (["s3://a/ml/b/0/c", "--out", "s3://r", "--on-cluster", "--engine", "hta"], "on this machine"),
    ],
)
def test_options_of_the_one_way_are_refused_on_the_other(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["analyze", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_result_file_that_is_mounted_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/termination-log in a pod: it can't be replaced, and the kubelet reads at most 4,096 bytes."""
    log = tmp_path / "termination-log"
    log.touch()
    inode = log.stat().st_ino
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == log)
    assert invoke(["step", "analyze", "/nowhere/at/all", "--results", str(tmp_path / "r"), "--result", str(log)]) == 5
    assert log.stat().st_ino == inode
    document = json.loads(log.read_bytes())
    assert (document["step"], document["exit_code"], document["error"]) == ("analyze", 5, "UnknownCapture")
    assert len(log.read_bytes()) < 4096
