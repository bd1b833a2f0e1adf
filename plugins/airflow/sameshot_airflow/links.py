"""Buttons on a task that open what it made, where a web server makes it openable.

Airflow asks for a link on the worker when the task has ended, well or not, and keeps the answer: so a link is made from
the task's result (its `return_value` XCom) and from the base URLs of the connection, and a changed base URL is seen by
new runs only. Without one, or without a result, the link is empty and the button disabled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from sameshot_airflow.hooks.sameshot import SameshotHook


class _ResultLink(BaseOperatorLink):
    """A link to one of the URIs in a result."""

    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]

    @staticmethod
    def url(hook: SameshotHook, uri: str) -> str | None:
        return hook.report_url(uri)

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        from sameshot_airflow.compat import AirflowNotFoundException
        from sameshot_airflow.hooks.sameshot import SameshotHook

        uri = _uri(ti_key, self.fields)
        if not uri:
            return ""
        hook = SameshotHook(getattr(operator, "sameshot_conn_id", SameshotHook.default_conn_name))
        try:
            return self.url(hook, uri) or ""
        except AirflowNotFoundException:  # a task that was given its places needs no connection
            return ""


class SameshotReportLink(_ResultLink):
    """The report of an analysis."""

    name = "Report"
    fields = ("report_uri",)


class SameshotComparisonLink(_ResultLink):
    """The page of a comparison."""

    name = "Comparison"
    fields = ("comparison_uri",)


class SameshotManifestLink(_ResultLink):
    """The manifest of the capture in the archive."""

    name = "Manifest"
    fields = ("manifest_uri", "after_manifest_uri")

    @staticmethod
    def url(hook: SameshotHook, uri: str) -> str | None:
        return hook.manifest_url(uri)


def _uri(ti_key: TaskInstanceKey, fields: tuple[str, ...]) -> str:
    from airflow.sdk.execution_time.xcom import XCom

    result: Any = XCom.get_value(ti_key=ti_key, key="return_value")
    if not isinstance(result, Mapping):
        return ""
    return next((str(result[field]) for field in fields if result.get(field)), "")
