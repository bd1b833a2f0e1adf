"""Names that Airflow 3.1 keeps elsewhere than 3.2 and later do, where the old places are deprecated."""

from __future__ import annotations

try:
    from airflow.sdk import SkipMixin
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        DownstreamTasksSkipped,
        TaskDeferralTimeout,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (  # type: ignore[attr-defined, no-redef, unused-ignore]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        DownstreamTasksSkipped,
        TaskDeferralTimeout,
    )
    from airflow.providers.standard.utils.skipmixin import SkipMixin  # type: ignore[assignment, no-redef, unused-ignore]

try:
    from airflow.sdk.bases.decorator import determine_kwargs
except ImportError:  # Airflow 3.1
    from airflow.utils.operator_helpers import determine_kwargs  # type: ignore[attr-defined, no-redef, unused-ignore]

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "DownstreamTasksSkipped",
    "SkipMixin",
    "TaskDeferralTimeout",
    "determine_kwargs",
]
