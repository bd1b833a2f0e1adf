"""A running Airflow together with a training job, and what both share.

def test_…(lab: Lab) -> None:
    run = lab.api.trigger("one_capture", {"job": lab.job.local.setup.name})
    lab.api.wait_task("one_capture", run, "capture", "deferred")
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow_server import AirflowApi, AirflowServer
from live import LiveJob, running_job, wait_for

from sameshot.api.views import CaptureView
from sameshot.model import CapturePolicy

JOB = "live"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lab:
    """`job` trains all the time, on two ranks, and is called `live`. Everything under `archive` and `results` is also
    served over http, as the connection `sameshot_default` says. In the file `told` a notifier tells of regressions."""

    server: AirflowServer
    job: LiveJob
    folder: Path
    archive: Path
    results: Path
    told: Path

    @property
    def api(self) -> AirflowApi:
        return self.server.api

    def run(self, dag_id: str, **conf: object) -> str:
        """Trigger a DAG as soon as it is known; the run's id."""
        self.server.wait_dag(dag_id)
        return self.api.trigger(dag_id, conf)

    def captures_for(self, run_id: str, job: LiveJob | None = None) -> list[CaptureView]:
        """What was asked for in a DAG run, in the order of asking."""
        with (job or self.job).local.client() as client:
            found = [view for view in client.captures() if f"/{run_id}/" in view.request_key]
            return [client.get(view.capture_id) for view in sorted(found, key=lambda view: view.accepted_at_ns)]

    def wait_capture(self, run_id: str, *, nth: int = 0, job: LiveJob | None = None) -> CaptureView:
        """The run's n-th capture, once it was asked for."""
        wait_for(lambda: len(self.captures_for(run_id, job)) > nth, f"capture {nth + 1} of {run_id} was begun", 90)
        return self.captures_for(run_id, job)[nth]

    def in_archive(self, run_id: str, job: str = JOB) -> list[str]:
        """The ids of all captures of a DAG run in the archive, by their manifests."""
        manifests = (self.archive / "local" / job).glob("*/*/manifest.json")
        bodies = [json.loads(path.read_bytes())["capture"] for path in manifests]
        return sorted(body["capture_id"] for body in bodies if f"/{run_id}/" in (body["request_key"] or ""))

    @contextlib.contextmanager
    def another_job(self, name: str, folder: Path, **options: object) -> Iterator[LiveJob]:
        """One more job, of this name, into the same archive."""
        setup = {"name": name, "archive": str(self.archive)}
        with running_job(folder, nodes=1, setup=setup, **options) as job:
            yield job


def start(stack: contextlib.ExitStack, *dags: Path) -> Lab:
    """An Airflow with the DAG files of the folders `dags`, and a job; `stack` ends what was started.

    The DAGs are as a user has them: labels, limit and connection from the environment, and a notifier for regressions
    written into the file.
    """
    folder = Path(tempfile.mkdtemp(prefix="ssl-", dir="/tmp"))  # short enough for Kineto's sockets
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    runtime, archive, results = folder / "r", folder / "archive", folder / "results"
    for each in (runtime, archive, results):
        each.mkdir(mode=0o700)
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    patch.setenv("SAMESHOT_RUNTIME_DIR", str(runtime))
    connection = {
        "conn_type": "sameshot",
        "host": "local",
        "extra": {
            "results_uri": str(results),
            "report_base_url": stack.enter_context(served(results)),
            "archive_base_url": stack.enter_context(served(archive)),
        },
    }
    environment = {
        "SAMESHOT_RUNTIME_DIR": str(runtime),
        "AIRFLOW_CONN_SAMESHOT_DEFAULT": json.dumps(connection),
        "SAMESHOT_LABELS": "team=vision",
        "SAMESHOT_CAPTURES_AT_ONCE": "1",
    }
    sources = {path.name: path.read_text() for each in dags for path in each.glob("*.py")}
    told = folder / "told"
    sources[_SCHEDULED] = _with_notifier(sources[_SCHEDULED], told)
    server = stack.enter_context(AirflowServer(environment=environment, dags=sources))
    (own := folder / "job").mkdir()
    job = stack.enter_context(
        running_job(
            own,
            nodes=1,
            setup={"name": JOB, "archive": str(archive), "policy": CapturePolicy(max_duration_ms=60_000)},
            script_args=("--pause", "0.05"),
        )
    )
    return Lab(server=server, job=job, folder=folder, archive=archive, results=results, told=told)


_SCHEDULED = "profile_on_schedule.py"
_NOTIFIERS = "ON_REGRESSION: list[Any] = []"


def _with_notifier(source: str, told: Path) -> str:
    assert _NOTIFIERS in source
    notifier = f"lambda context: open({str(told)!r}, 'a').write(str(context['exception']) + '\\n')"
    return source.replace(_NOTIFIERS, f"ON_REGRESSION = [{notifier}]")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The base URL of an http server for the files below `folder`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
