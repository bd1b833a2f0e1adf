"""The DAG files of dags/, as the DAG processor meets them: quick, self-contained, and valid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow_home import hermetic_environment

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "dags"
NAMES = ["capture_every_armed_job", "profile_on_demand", "profile_on_schedule"]
EMPTY = 'from airflow.sdk import DAG, task\n\nwith DAG("empty", schedule=None):\n    task(print)("nothing")\n'
LIMIT_S = 0.3


def probe(folder: Path, *files: Path, **more: str) -> dict[str, Any]:
    (empty := folder / "empty.py").write_text(EMPTY)
    environment = hermetic_environment(folder)
    for name in [name for name in environment if name.startswith("SAMESHOT_")]:
        del environment[name]
    environment |= {"HOME": str(folder / "nobody"), "XDG_RUNTIME_DIR": str(folder / "nowhere"), **more}
    done = subprocess.run(
        [sys.executable, HERE / "parse_probe.py", empty, *files],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return probe(tmp_path_factory.mktemp("parse"), *sorted(FOLDER.glob("*.py")))


def test_every_shipped_file_holds_one_dag_of_its_own_name(parsed: dict[str, Any]) -> None:
    assert sorted(parsed["parsed"]) == NAMES == sorted(path.stem for path in FOLDER.iterdir() if path.suffix == ".py")
    for name, found in parsed["parsed"].items():
        assert found["errors"] == {}, name
        assert found["warnings"] == [], name
        assert found["unstable"] == [], name
        assert found["dags"] == [name]


def test_nothing_is_reached_while_they_are_parsed(parsed: dict[str, Any]) -> None:
    assert parsed["tried"] == []
    assert parsed["heavy"] == []


def test_what_a_dag_file_reaches_for_is_noticed(tmp_path: Path) -> None:
    (file := tmp_path / "reaching.py").write_text(
        "import socket, sqlite3\n"
        "from airflow.sdk import DAG\n"
        "for reach in (lambda: socket.create_connection(('127.0.0.1', 1)), lambda: sqlite3.connect(':memory:')):\n"
        "    try:\n        reach()\n    except OSError:\n        pass\n"
        "import numpy\n"
        "DAG('reaching', schedule=None)\n"
    )
    found = probe(tmp_path, file)
    assert [line.split()[0] for line in found["tried"]] == ["socket.getaddrinfo", "sqlite3.connect"]
    assert found["heavy"] == ["numpy"]


def test_parsing_costs_less_than_three_tenths_of_a_second(parsed: dict[str, Any]) -> None:
    """CPU over that of Airflow itself. The first of the files imports the provider for all, so their sum counts."""
    assert sum(found["cpu_s"] for found in parsed["parsed"].values()) < LIMIT_S


def test_a_scheduled_dag_runs_every_six_hours_one_at_a_time_and_never_for_the_past(parsed: dict[str, Any]) -> None:
    dag = parsed["parsed"]["profile_on_schedule"]["serialized"]["profile_on_schedule"]["dag"]
    assert dag["timetable"]["__var"]["delta"] == 6 * 3600
    assert (dag["catchup"], dag["max_active_runs"]) == (False, 1)


def test_hours_labels_and_connection_come_from_the_environment(tmp_path: Path) -> None:
    settings = {"SAMESHOT_EVERY_HOURS": "1.5", "SAMESHOT_LABELS": "team=vision, tier=prod", "SAMESHOT_CONN_ID": "mine"}
    file = FOLDER / "profile_on_schedule.py"
    dag = probe(tmp_path, file, **settings)["parsed"]["profile_on_schedule"]["serialized"]["profile_on_schedule"]["dag"]
    assert dag["timetable"]["__var"]["delta"] == 5400
    assert {name: param["default"] for name, param in dag["params"]}["labels"] == {
        "__type": "dict",
        "__var": {"team": "vision", "tier": "prod"},
    }
    asked = {task["__var"].get("sameshot_conn_id") for task in dag["tasks"]} - {None}
    assert asked == {"mine"}


@pytest.mark.parametrize("name", NAMES)
def test_every_param_has_a_title_and_a_description_for_the_form(name: str, parsed: dict[str, Any]) -> None:
    params = dict(parsed["parsed"][name]["serialized"][name]["dag"]["params"])
    assert params
    for key, param in params.items():
        schema = param["schema"]["__var"]
        assert schema["title"], key
        assert param["description"], key
        assert schema["type"], key


@pytest.mark.full
def test_the_same_dag_serializes_to_the_same_text_in_every_process(parsed: dict[str, Any], tmp_path: Path) -> None:
    again = probe(tmp_path, *sorted(FOLDER.glob("*.py")), PYTHONHASHSEED="7")

    def text(found: dict[str, Any], name: str) -> str:
        dag = dict(found["parsed"][name]["serialized"][name]["dag"])
        return json.dumps({key: dag[key] for key in dag if key != "_processor_dags_folder"}, sort_keys=True)

    assert os.environ.get("PYTHONHASHSEED") != "7"
    for name in NAMES:
        assert text(parsed, name) == text(again, name), "Airflow would keep a new version of the DAG per parse"
