"""An Airflow that knows nothing of this machine: its own home, its own database, no examples, nothing sent anywhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def hermetic_environment(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (default: ours) for an Airflow that lives in `home` alone; what another Airflow was told is left out.

    The sqlite database is there after `airflow db migrate`. DAG files are read from `home/dags`.
    """
    inherited = os.environ if base is None else base
    return {name: value for name, value in inherited.items() if not name.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "NO_COLOR": "1",
    }
