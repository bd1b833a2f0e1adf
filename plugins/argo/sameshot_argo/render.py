"""The objects as plain YAML, for people who write no Python; the same texts are shipped in deploy/argo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]
from hera.workflows import Workflow

from sameshot_argo.objects import cluster_workflow_template, cron_workflow, rights, workflow, workflow_template
from sameshot_argo.settings import NAME, Kind, Settings

EXAMPLE = {"address": "kube:default/bert", "results": "s3://results/profiling"}
"""Arguments of a run of which nothing is known."""
SCHEDULE = "0 */6 * * *"


def objects(
    kind: Kind,
    settings: Settings | None = None,
    *,
    namespace: str | None = None,
    arguments: Mapping[str, str] | None = None,
    name: str = NAME,
    schedule: str = SCHEDULE,
    timezone: str | None = None,
    cluster: bool = False,
    jobs_in: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The objects of a kind as plain data, in the order in which they are applied. Raises UsageError."""
    settings, run = settings or Settings(), EXAMPLE | dict(arguments or {})
    if kind is Kind.ROLE:
        return rights(settings, namespace=namespace or "default", jobs_in=jobs_in)
    if kind is Kind.ALL:
        return [
            *objects(Kind.ROLE, settings, namespace=namespace, jobs_in=jobs_in),
            *objects(Kind.WORKFLOW_TEMPLATE, settings, namespace=namespace),
        ]
    made: Workflow
    if kind is Kind.WORKFLOW_TEMPLATE:
        made = workflow_template(settings, namespace=namespace)
    elif kind is Kind.CLUSTER_WORKFLOW_TEMPLATE:
        made = cluster_workflow_template(settings)
    elif kind is Kind.CRON_WORKFLOW:
        made = cron_workflow(
            run, schedule, settings, name=name, namespace=namespace, timezone=timezone, cluster=cluster
        )
    else:
        made = workflow(run, settings, namespace=namespace, cluster=cluster)
    return [made.to_dict()]


def text(documents: list[dict[str, Any]]) -> str:
    """YAML, what identifies an object first."""
    return "---\n".join(
        yaml.dump(_ordered(each), Dumper=_Dumper, sort_keys=False, width=4096, allow_unicode=True) for each in documents
    )


_FIRST = ("name", "description", "apiVersion", "kind", "metadata", "spec", "template", "templateRef", "entrypoint")
_LAST = ("templates",)


def _ordered(value: Any) -> Any:
    """Short things before long ones, so that a reader sees what something is before what it is made of."""
    if isinstance(value, list):
        return [_ordered(each) for each in value]
    if not isinstance(value, dict):
        return value

    def place(item: tuple[str, Any]) -> tuple[int, int, str]:
        name, of = item
        if name in _FIRST:
            return (0, _FIRST.index(name), name)
        return (2 if name in _LAST else 1, isinstance(of, dict | list), name)

    return {name: _ordered(of) for name, of in sorted(value.items(), key=place)}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Lists are indented below their key, no text has its quotes doubled, and the same value twice is written twice."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if "'" in value else None)


_Dumper.add_representer(str, _text)
