"""A connection of type `sameshot`: which jobs are meant, on whose behalf, and where results and their web pages are.

host, port   empty or `local`: the jobs of this machine; `kube`: those of a cluster; else where one job's coordinator
             listens
schema       with `kube`: the namespace of the jobs
login        the caller that captures are asked for; empty: the user that Airflow runs as. With `kube` it says nothing:
             the caller is the account whose token is shown
extra        results_uri, report_base_url, archive_base_url; with `kube` also context, kubeconfig, service_account
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from sameshot.errors import SameshotError, UsageError
from sameshot.steps.links import manifest_url, report_url, web_problem
from sameshot_airflow.get_provider_info import (
    CONNECTION_TYPE,
    EXTRA_FIELDS,
    HIDDEN_FIELDS,
    HOOK_NAME,
    PLACEHOLDERS,
    RELABELING,
)

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from sameshot.client import Client
    from sameshot.client.cluster import KubeAddress
    from sameshot.steps.jobs import FoundJob

LOCAL, KUBE = "local", "kube"
IN_CLUSTER = ("context", "kubeconfig", "service_account")
"""Fields of the extra that say how a cluster is spoken to, and as whom."""
TEST_WAIT_MS = 5_000  # for a coordinator that is just starting: a person waits at the Test button


class SameshotHook(BaseHook):
    """Talks to coordinators of training jobs.

    :param sameshot_conn_id: the connection of type `sameshot`
    """

    conn_name_attr = "sameshot_conn_id"
    default_conn_name = "sameshot_default"
    conn_type = CONNECTION_TYPE
    hook_name = HOOK_NAME

    def __init__(self, sameshot_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sameshot_conn_id = sameshot_conn_id

    @cached_property
    def connection(self) -> Connection:
        """Read once, at the first use."""
        return self.get_connection(self.sameshot_conn_id)

    @property
    def caller(self) -> str | None:
        """On whose behalf captures are asked for; None: the user of the operating system."""
        return (self.connection.login or "").strip() or None

    @property
    def results_uri(self) -> str | None:
        return self._extra("results_uri")

    @property
    def report_base_url(self) -> str | None:
        return self._extra("report_base_url")

    @property
    def archive_base_url(self) -> str | None:
        return self._extra("archive_base_url")

    def place_of_results(self, given: str | None = None) -> str:
        """`given`, else the connection's; raises UsageError where neither says where results go."""
        if place := given or self.results_uri:
            return place
        raise UsageError(
            f"Nobody said where results go: set results_uri in the extra of the connection {self.sameshot_conn_id!r}, "
            "or give it to the task."
        )

    def address(self, job: str | None = None) -> str:
        """What `sameshot.connect` takes. `job` names one of this machine's jobs, or of a cluster's namespace; a
        coordinator has only its own.

        Forms of addresses that `connect` learns (`register_resolver`) can be written as the host, without a port.
        Raises UsageError where a cluster is meant, and the fields say no job's address in one.
        """
        host, port = (self.connection.host or "").strip(), self.connection.port
        if host in ("", LOCAL):
            return f"{LOCAL}:{job}" if job else LOCAL
        if host.partition(":")[0] == KUBE:
            return str(self._in_cluster(host, job))
        if port is None:
            return host
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"

    def _in_cluster(self, host: str, job: str | None) -> KubeAddress:
        """`host` is `kube`, or an address that fills in what the other fields leave out."""
        from msgspec.structs import replace

        from sameshot.client.cluster import parse

        namespace = (self.connection.schema or "").strip()
        if host in (KUBE, f"{KUBE}:") and not namespace:
            raise UsageError(
                f"The connection {self.sameshot_conn_id!r} does not say where in the cluster the jobs are: set its "
                "Namespace (schema)."
            )
        if self.connection.port is not None:
            raise UsageError(f"The connection {self.sameshot_conn_id!r} has a port, which jobs of a cluster have not.")
        found = parse(f"{KUBE}:{namespace}" if host in (KUBE, f"{KUBE}:") else host)
        if namespace not in ("", found.namespace):
            raise UsageError(
                f"The connection {self.sameshot_conn_id!r} names two namespaces, {found.namespace} and {namespace}."
            )
        said = {name: value for name in IN_CLUSTER if (value := self._extra(name))}
        # Once more as text: what the fields say is looked at, too.
        return parse(str(replace(found, job=found.job or job or "", **said)))

    def jobs(self, labels: Mapping[str, str] | None = None) -> list[FoundJob]:
        """The running jobs that this connection reaches, those with all of `labels`."""
        from sameshot.steps.jobs import find_jobs

        return find_jobs(self.address(), labels)

    def get_client(self, job: str | None = None) -> Client:
        """A client of the coordinator; use it in a `with` block. Raises NoSuchJob or UsageError."""
        from sameshot.client import connect

        return connect(self.address(job), caller=self.caller)

    def get_conn(self) -> Client:
        return self.get_client()

    def report_url(self, uri: str) -> str | None:
        """Where a browser can open a result; None where nothing serves it: no base URL, or not below `results_uri`."""
        if not (self.report_base_url and self.results_uri):
            return None
        return report_url(uri, self.results_uri, self.report_base_url)

    def manifest_url(self, uri: str) -> str | None:
        """Where a browser can open a manifest of the archive; None where nothing serves it."""
        return manifest_url(uri, self.archive_base_url) if self.archive_base_url else None

    def test_connection(self) -> tuple[bool, str]:
        """For the Test button: is the coordinator there, can results be kept, are the base URLs usable?

        It is the process that asks (the API server) which looks; a worker on another machine may see other jobs.
        """
        try:
            found = [self._test_jobs(), *self._test_places()]
        except SameshotError as error:
            return False, str(error)
        return True, " ".join(found)

    def _test_jobs(self) -> str:
        address = self.address()
        if address == LOCAL:
            names = sorted(found.name for found in self.jobs())
            where = "on the machine that ran this test"
            if not names:
                return f"No armed job runs {where} now; one that is started with `sameshot run` will be found."
            return f"{len(names)} armed job{'s run' if len(names) > 1 else ' runs'} {where}: {_some(names)}."
        if address.startswith(f"{KUBE}:"):
            return self._test_cluster(address)
        with self.get_client() as client:
            what = client.describe()
        return f"The coordinator of {what.job} (series {what.series}) answers: sameshot {what.version}, {what.backend}."

    def _test_cluster(self, address: str) -> str:
        """Are jobs seen there, and does the coordinator of one of them take this caller's token?"""
        from msgspec.structs import replace

        from sameshot.client import connect
        from sameshot.client.cluster import parse

        where = parse(address)
        found = sorted(self.jobs(), key=lambda each: each.name)
        if not found:
            return f"No armed job runs in namespace {where.namespace} now; one that is started there will be found."
        one = replace(parse(found[0].address), wait_ms=TEST_WAIT_MS)
        with connect(str(one), caller=self.caller) as client:
            what = client.describe()
        names = _some([each.name for each in found])
        return (
            f"{len(found)} armed job{'s run' if len(found) > 1 else ' runs'} in namespace {where.namespace}: {names}. "
            f"The coordinator of {what.job} answers {what.caller or 'this caller'}: sameshot {what.version}."
        )

    def _test_places(self) -> list[str]:
        from sameshot.steps.probe import probe_results

        for name in ("report_base_url", "archive_base_url"):
            if (url := self._extra(name)) and (problem := web_problem(url)):
                raise UsageError(f"{name} is {problem}; tasks would show no link.")
        if self.report_base_url and not self.results_uri:
            raise UsageError("report_base_url says where results_uri is served, but results_uri is not set.")
        if not self.results_uri:
            return ["No results_uri is set: captures work, analyses need it (or their own)."]
        return [f"Results: {probe_results(self.results_uri)}"]

    def _extra(self, name: str) -> str | None:
        return str(self.connection.extra_dejson.get(name) or "").strip() or None

    # Airflow 3.2 and newer read the same from get_provider_info; these two are for 3.1.

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {"hidden_fields": HIDDEN_FIELDS, "relabeling": RELABELING, "placeholders": PLACEHOLDERS}

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        try:
            from wtforms import StringField  # type: ignore[import-untyped]
            from wtforms.validators import Optional  # type: ignore[import-untyped]
        except ImportError:  # an Airflow without a web server
            return {}
        return {
            name: StringField(label, validators=[Optional()], description=text)
            for name, (label, text) in EXTRA_FIELDS.items()
        }


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
