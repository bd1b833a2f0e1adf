"""A whole Airflow for tests: its four processes, a database, one user, and a client of its REST API.

    with AirflowServer(environment={"SAMESHOT_RUNTIME_DIR": runtime}) as server:
        server.write_dag("one.py", SOURCE)
        run = server.api.trigger("one")
        server.api.wait_run("one", run, "success")

Hermetic: a private AIRFLOW_HOME with sqlite, free loopback ports, LocalExecutor, no example DAGs, no usage reports.

What `airflow standalone` does is done here one by one, with the same commands: `airflow db migrate`, a user, and then
`airflow api-server`, `scheduler`, `dag-processor` and `triggerer`, each a process group of its own. `standalone` keeps
its parts to itself and ends when one of them dies; tests kill one, hold it, and start it again while the others go on.
Every process that descends from them carries a marker in its environment: `strays()` finds by it what a clean stop must
not leave behind.

Each process, those of tasks and of DAG parsing included, logs warnings of what will go away; `warnings_about()` finds
those that blame given files.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import httpx
import psutil
from airflow_home import hermetic_environment
from live import free_port, wait_for

Part = Literal["api-server", "scheduler", "dag-processor", "triggerer"]
PARTS: tuple[Part, ...] = ("api-server", "scheduler", "dag-processor", "triggerer")
_MARKER = "SAMESHOT_TEST_AIRFLOW"
_STOP_S = 20.0  # for a part that was asked to end, before it is killed
_LOCKED_S = 30.0
START_S = 240.0  # measured: 12 s on two idle cores; a busy machine takes several times that

# Where a test waits for Airflow to notice something, it notices within a few seconds. Health checks stay well above
# what a busy machine delays a heartbeat by.
_SETTINGS: dict[str, object] = {
    "core__parallelism": 4,
    "core__simple_auth_manager_users": "admin:admin",
    "core__test_connection": "Enabled",
    "api__host": "127.0.0.1",
    "api__workers": 1,
    "scheduler__scheduler_heartbeat_sec": 1,
    "scheduler__scheduler_idle_sleep_time": 0.3,
    "scheduler__job_heartbeat_sec": 2,
    "scheduler__task_instance_heartbeat_timeout": 15,
    "scheduler__task_instance_heartbeat_timeout_detection_interval": 3,
    "workers__min_heartbeat_interval": 1,
    "triggerer__job_heartbeat_sec": 1,
    "triggerer__triggerer_health_check_threshold": 10,
    "dag_processor__refresh_interval": 2,
    "dag_processor__bundle_refresh_check_interval": 1,
    "dag_processor__min_file_process_interval": 5,
    "dag_processor__parsing_processes": 1,
}


class AirflowServer:
    """Started by `with`; `home`, `dags` and `logs` are its folders, `url` is where people and tests go."""

    def __init__(self, *, environment: Mapping[str, str] | None = None, dags: Mapping[str, str] | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ssaf-", dir="/tmp"))
        self.dags = self.home / "dags"
        self.logs = self.home / "logs"
        self.database = self.home / "airflow.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.marker = uuid.uuid4().hex
        self.processes: dict[Part, subprocess.Popen[bytes]] = {}
        self.others: list[subprocess.Popen[bytes]] = []  # they run beside the one of `processes`
        self.dags.mkdir()
        (self.home / "passwords.json").write_text(json.dumps({"admin": "admin"}))
        self.environment = self._environment(environment or {})
        for name, source in (dags or {}).items():
            self.write_dag(name, source)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
        settings = _SETTINGS | {
            "core__execution_api_server_url": f"{self.url}/execution/",
            "core__simple_auth_manager_passwords_file": self.home / "passwords.json",
            "logging__base_log_folder": self.logs,
            "api__port": self.port,
            "api__base_url": self.url,
            "api__secret_key": uuid.uuid4().hex,
            "api_auth__jwt_secret": uuid.uuid4().hex * 2,
        }
        return {
            **hermetic_environment(self.home, inherited),
            **{f"AIRFLOW__{name.upper()}": str(value) for name, value in settings.items()},
            _MARKER: self.marker,
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONUNBUFFERED": "1",
            # By their base classes: Python reads this before any other module can be imported.
            "PYTHONWARNINGS": "default::DeprecationWarning,default::FutureWarning",
            "SPT_NOENV": "1",  # setproctitle writes over the environment otherwise, and the marker with it
            **more,
        }

    # ---- life

    def __enter__(self) -> Self:
        try:
            migrated = self.run("db", "migrate")
            assert migrated.returncode == 0, migrated.stdout[-3000:]
            for part in PARTS:
                self.start(part)
            self.api = AirflowApi(self.url)
            wait_for(lambda: self._alive() and self.api.healthy(), "Airflow is healthy", START_S)
        except BaseException as error:
            error.add_note(self.output())
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        left = self.stop()
        assert not left, f"Airflow left processes behind: {left}"

    def run(self, *arguments: str, timeout_s: float = 180.0) -> subprocess.CompletedProcess[str]:
        """`airflow …` in this server's environment; stdout and stderr together."""
        return subprocess.run(
            [*_AIRFLOW, *arguments],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, part: Part) -> None:
        with (self.home / f"{part}.log").open("ab") as log:
            self.processes[part] = subprocess.Popen(
                [*_AIRFLOW, part, *_OPTIONS.get(part, ())],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_the_tests,
            )

    def kill(self, part: Part) -> None:
        """SIGKILL to the part and to all that it started in its process group: nobody says goodbye."""
        process = self.processes.pop(part)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def end(self, part: Part, timeout_s: float = _STOP_S) -> int:
        """SIGTERM, as whoever operates it restarts it, and the exit code; killed if it hasn't ended by then."""
        process = self.processes.pop(part)
        process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    @contextlib.contextmanager
    def stalled(self, part: Part) -> Iterator[None]:
        """The part does nothing meanwhile, not even a heartbeat; another one may be started beside it. Afterwards it
        goes on, until the test ends it by `stop`."""
        process = self.processes[part]

        def stop() -> bool:
            """Not within a transaction: that would lock everybody out of the database."""
            os.killpg(process.pid, signal.SIGSTOP)
            with contextlib.closing(sqlite3.connect(self.database, timeout=1)) as database:
                try:
                    database.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    os.killpg(process.pid, signal.SIGCONT)
                    return False
                return True

        wait_for(stop, f"{part} can be held")
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            if self.processes.get(part) is not process:
                self.others.append(process)

    def mend(self) -> None:
        """Start again what a test that failed has left down."""
        down = [part for part in PARTS if part not in self.processes or self.processes[part].poll() is not None]
        for part in down:
            self.start(part)
        if down:
            wait_for(lambda: self._alive() and self.api.healthy(), f"Airflow is healthy again with {down}", START_S)

    def stop(self) -> list[str]:
        """End all parts; the command lines of what was still there afterwards (and was then killed)."""
        processes = [*self.processes.values(), *self.others]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        self.processes.clear()
        self.others.clear()
        # Tasks are sessions of their own; they end by themselves once nobody supervises them.
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.strays(), "all processes ended", 10)
        left = self.strays()
        described = [" ".join(_command(process)) or str(process.pid) for process in left]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not os.environ.get("SAMESHOT_TEST_KEEP_AIRFLOW"):
            shutil.rmtree(self.home, ignore_errors=True)
        return described

    def strays(self) -> list[psutil.Process]:
        """All living processes that carry this server's marker, its parts included."""
        return [process for process in psutil.process_iter() if _carries(process, self.marker)]

    def children(self, part: Part) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.processes[part].pid).children(recursive=True)
        return []

    def _alive(self) -> bool:
        ended = {part: process.returncode for part, process in self.processes.items() if process.poll() is not None}
        assert not ended, f"ended by themselves: {ended}"
        return True

    def output(self, last: int = 3000) -> str:
        """What the parts have said lately."""
        logs = sorted(self.home.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-last:]}" for log in logs)

    def warnings_about(self, *folders: Path) -> list[str]:
        """The lines of all logs, also of tasks and triggers, that blame a file at or below `folders`, each once.

        Of any category: what Airflow collects while it parses a DAG file it tells as a mere UserWarning.
        """
        found = set()
        for log in self.home.rglob("*.log"):
            for line in log.read_text(errors="replace").splitlines():
                blamed = _WARNING.search(line)
                if blamed and any(Path(blamed[1] or blamed[2]).is_relative_to(folder) for folder in folders):
                    found.add(f"{log.relative_to(self.home)}: {line}")
        return sorted(found)

    # ---- DAGs

    def write_dag(self, name: str, source: str) -> None:
        scratch = self.dags / f".{name}.tmp"
        scratch.write_text(source)
        scratch.replace(self.dags / name)

    def wait_dag(self, dag_id: str, timeout_s: float = 90.0) -> None:
        """Until the DAG was parsed; it is not paused afterwards. The failure shows what could not be imported."""
        try:
            wait_for(lambda: self.api.has_dag(dag_id), f"the DAG {dag_id} was parsed", timeout_s)
        except AssertionError as error:
            error.add_note("\n".join(self.api.import_errors()))
            raise
        self.api.unpause(dag_id)

    def backfill(self, dag_id: str, day: str) -> str:
        """Backfill the one run of a day (2026-01-02); the run's id. By the command line: sqlite is too little for the
        REST API's way, it says."""
        arguments = ("--dag-id", dag_id, "--from-date", day, "--to-date", day)
        for _ in range(5):
            done = self.run("backfill", "create", *arguments)
            if "database is locked" not in done.stdout:
                break
        assert done.returncode == 0, done.stdout[-3000:]
        (run,) = [run for run in self.api.runs(dag_id) if (run["logical_date"] or "").startswith(day)]
        return str(run["dag_run_id"])


# As Airflow's logging writes a warning (as text or JSON), and as Python does before that is set up.
_WARNING = re.compile(r"""category\W+\w+Warning\b.*?\bfilename\W+(/[^\s"]+)|^(/[^\s:]+):\d+: \w+Warning: """)
_AIRFLOW = (sys.executable, "-m", "airflow")
# Logs are read from the folder that all parts share: nobody needs to serve them on ports that others may hold.
_OPTIONS: dict[Part, Sequence[str]] = {"scheduler": ("--skip-serve-logs",), "triggerer": ("--skip-serve-logs",)}


def _end_with_the_tests() -> None:
    """A test run that is killed leaves no Airflow behind (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _carries(process: psutil.Process, marker: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARKER) == marker
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class AirflowApi:
    """The parts of Airflow's REST API that tests need, as its one user. Methods raise with the server's answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False)
        self._signed_in = False

    def request(self, method: str, path: str, **options: Any) -> Any:
        """JSON of `/api/v2<path>`, or None where the answer is empty. Repeated while sqlite is locked."""
        self._sign_in()
        deadline = time.monotonic() + _LOCKED_S
        while True:
            answer = self._http.request(method, f"/api/v2{path}", **options)
            if not (answer.is_server_error and "atabase" in answer.text and time.monotonic() < deadline):
                break
            time.sleep(0.2)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:1500]}"
        return answer.json() if answer.content else None

    def _sign_in(self) -> None:
        if not self._signed_in:
            answer = self._http.post("/auth/token", json={"username": "admin", "password": "admin"})
            answer.raise_for_status()
            self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
            self._signed_in = True

    # ---- the server

    def healthy(self) -> bool:
        """All four parts are, by their heartbeats."""
        try:
            health = self._http.get("/api/v2/monitor/health").raise_for_status().json()
        except httpx.HTTPError:
            return False
        return all((health.get(part) or {}).get("status") == "healthy" for part in _HEALTH)

    def import_errors(self) -> list[str]:
        errors = self.request("GET", "/importErrors")["import_errors"]
        return [f"{error['filename']}: {error['stack_trace']}" for error in errors]

    def pool(self, name: str = "default_pool") -> dict[str, Any]:
        """`slots`, and how many are `open_slots`, `running_slots`, `deferred_slots`, …"""
        return dict(self.request("GET", f"/pools/{name}"))

    def make_pool(self, name: str, slots: int) -> None:
        self.request("POST", "/pools", json={"name": name, "slots": slots, "include_deferred": False})

    def test_connection(self, **fields: object) -> dict[str, Any]:
        """What the *Test* button of the connection form does: `status` (bool) and `message`."""
        return dict(self.request("POST", "/connections/test", json={"connection_id": "tested", **fields}))

    # ---- DAGs and their runs

    def has_dag(self, dag_id: str) -> bool:
        self._sign_in()
        return self._http.get(f"/api/v2/dags/{dag_id}").is_success

    def unpause(self, dag_id: str) -> None:
        self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": True})

    def trigger(self, dag_id: str, conf: Mapping[str, object] | None = None) -> str:
        """Start a run now; its id."""
        body = {"logical_date": None, "conf": dict(conf or {}), "dag_run_id": f"test-{uuid.uuid4().hex[:8]}"}
        return str(self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return dict(self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}"))

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        return list(self.request("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"])

    def wait_run(self, dag_id: str, run_id: str, state: str, timeout_s: float = 90.0) -> None:
        """Until the run has ended; fails with its tasks' states and logs where it ended otherwise."""

        def ended() -> bool:
            found = self.run(dag_id, run_id)["state"]
            assert found in (state, "running", "queued"), f"the run is {found}\n{self.story(dag_id, run_id)}"
            return bool(found == state)

        with self._told(dag_id, run_id):
            wait_for(ended, f"{dag_id} {run_id} is {state}", timeout_s)

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a whole run as a person does in the UI."""
        self.request("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    # ---- task instances

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        return dict(self.request("GET", f"{_task(dag_id, run_id, task_id)}{_mapped(map_index)}"))

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return list(self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"])

    def wait_task(
        self, dag_id: str, run_id: str, task_id: str, *states: str, map_index: int = -1, timeout_s: float = 60.0
    ) -> dict[str, Any]:
        """Until the task is in one of `states`; fails at once where it ended in another one."""
        found: dict[str, Any] = {}

        def reached() -> bool:
            found.update(self.task(dag_id, run_id, task_id, map_index))
            state = found["state"]
            assert state in states or state not in _ENDED, f"{task_id} is {state}\n{self.story(dag_id, run_id)}"
            return state in states

        with self._told(dag_id, run_id):
            wait_for(reached, f"{dag_id}.{task_id} is {' or '.join(states)}", timeout_s)
        return found

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark as a person does in the UI."""
        self.request("PATCH", f"{_task(dag_id, run_id, task_id)}{_mapped(map_index)}", json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_ids: Sequence[str]) -> None:
        body = {
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "dry_run": False,
            "reset_dag_runs": True,
        }
        self.request("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """One try's log as text, the trigger's part included."""
        self._sign_in()
        answer = self._http.get(
            f"/api/v2{_task(dag_id, run_id, task_id)}/logs/{try_number}",
            params={"map_index": map_index, "full_content": True},
            headers={"Accept": "application/json"},
        )
        if not answer.is_success:
            return f"(no log: {answer.status_code})"
        return "\n".join(_line(entry) for entry in answer.json()["content"])

    def links(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str | None]:
        """Extra links by name."""
        path = f"{_task(dag_id, run_id, task_id)}/links"
        return dict(self.request("GET", path, params={"map_index": map_index})["extra_links"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        path = f"{_task(dag_id, run_id, task_id)}/xcomEntries/{key}"
        return self.request("GET", path, params={"map_index": map_index, "deserialize": False})["value"]

    def xcoms(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """All entries of a run: `task_id`, `map_index`, `key`, without values."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/~/xcomEntries"
        return list(self.request("GET", path)["xcom_entries"])

    def asset_events(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        params = {"source_dag_id": dag_id, "source_run_id": run_id}
        return list(self.request("GET", "/assets/events", params=params)["asset_events"])

    def story(self, dag_id: str, run_id: str) -> str:
        """The tasks' states, and the log of each that did not succeed: for a test that failed."""
        told = []
        for task in self.tasks(dag_id, run_id):
            told.append(f"{task['task_id']}[{task['map_index']}] try {task['try_number']}: {task['state']}")
            if task["state"] not in ("success", "skipped", None):
                try_number = max(task["try_number"], 1)
                told.append(self.log(dag_id, run_id, task["task_id"], try_number, task["map_index"])[-4000:])
        return "\n".join(told)

    @contextlib.contextmanager
    def _told(self, dag_id: str, run_id: str) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            if "try " not in str(error):
                error.add_note(self.story(dag_id, run_id))
            raise


_HEALTH = ("metadatabase", "scheduler", "triggerer", "dag_processor")
_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"


def _mapped(map_index: int) -> str:
    return f"/{map_index}" if map_index >= 0 else ""


def _line(entry: object) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    more = {name: value for name, value in entry.items() if name not in ("event", "timestamp", "level")}
    level = str(entry.get("level") or "").upper()
    return f"{entry.get('timestamp') or ''} {level} {entry.get('event')} {_shown(more)}".strip()


def _shown(more: Mapping[str, object]) -> str:
    return " ".join(f"{name}={json.dumps(value)}" for name, value in more.items() if value is not None)
