"""Tests here never touch the Airflow of whoever runs them."""

from __future__ import annotations

import os
import sqlite3
import warnings
from pathlib import Path

import pytest


def test_airflow_lives_in_a_private_home(airflow_home: Path) -> None:
    from airflow.configuration import AIRFLOW_HOME, conf

    assert Path(AIRFLOW_HOME) == airflow_home != Path.home() / "airflow"
    assert conf.get("database", "sql_alchemy_conn") == f"sqlite:///{airflow_home}/airflow.db"
    assert Path(conf.get("core", "dags_folder")).is_relative_to(airflow_home)
    assert not conf.getboolean("core", "load_examples")
    assert not [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]


def test_the_database_is_migrated_and_private(airflow_database: Path) -> None:
    with sqlite3.connect(airflow_database) as database:
        (tables,) = database.execute("select count(*) from sqlite_master where name in ('dag', 'xcom')").fetchone()
    assert tables == 2


def test_what_airflow_deprecates_is_an_error_here() -> None:
    from airflow.exceptions import RemovedInAirflow4Warning
    from airflow.utils.deprecation_tools import DeprecatedImportWarning

    for category in (RemovedInAirflow4Warning, DeprecatedImportWarning):
        with pytest.raises(category):
            warnings.warn("old", category, stacklevel=1)
