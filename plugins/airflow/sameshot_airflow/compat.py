"""Names that Airflow 3.1 keeps elsewhere than 3.2 and later do, where the old places are deprecated."""

from __future__ import annotations

try:
    from airflow.sdk import SkipMixin
    from airflow.sdk.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (  # type: ignore[attr-defined, no-redef, unused-ignore]
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )
    from airflow.providers.standard.utils.skipmixin import SkipMixin  # type: ignore[assignment, no-redef, unused-ignore]

__all__ = [
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "DownstreamTasksSkipped",
    "SkipMixin",
]
