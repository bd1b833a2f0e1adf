"""What is applied to a cluster: the templates, a schedule, a single run, and the rights that a run needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hera.workflows import ClusterWorkflowTemplate, CronWorkflow, Parameter, Workflow, WorkflowTemplate
from hera.workflows.models import Metadata, PodGC, WorkflowTemplateRef

from sameshot.errors import UsageError
from sameshot.steps.rights import captures_bindings, role, role_binding, service_account, token_rule
from sameshot_argo.composed import PROFILE_NAME, templates
from sameshot_argo.interface import KEY, PROFILE_INPUTS
from sameshot_argo.pods import LABELS
from sameshot_argo.settings import NAME, Settings

DEFAULT_KEY = "profile"
"""Of a workflow that runs the template by itself: it makes one capture, so any key tells it from others."""


def workflow_template(settings: Settings | None = None, *, namespace: str | None = None) -> WorkflowTemplate:
    """The WorkflowTemplate `sameshot`: run it by itself, or refer to its templates."""
    return WorkflowTemplate(namespace=namespace, **_template(settings or Settings()))


def cluster_workflow_template(settings: Settings | None = None) -> ClusterWorkflowTemplate:
    """The same for all namespaces; references to it say `clusterScope: true`."""
    return ClusterWorkflowTemplate(**_template(settings or Settings()))


def workflow(
    arguments: Mapping[str, str],
    settings: Settings | None = None,
    *,
    namespace: str | None = None,
    cluster: bool = False,
) -> Workflow:
    """One run of the installed template. Raises UsageError for an argument that is missing or unknown."""
    return Workflow(
        generate_name=f"{NAME}-",
        namespace=namespace,
        labels=LABELS,
        **_run(arguments, settings or Settings(), cluster),
    )


def cron_workflow(
    arguments: Mapping[str, str],
    schedule: str,
    settings: Settings | None = None,
    *,
    name: str = NAME,
    namespace: str | None = None,
    timezone: str | None = None,
    cluster: bool = False,
) -> CronWorkflow:
    """A run of the installed template at each time of the schedule, never two at once.

    Raises UsageError for an argument that is missing or unknown.
    """
    if len(name) > 52:  # Argo adds a time to it, and the name of a workflow ends in its pods' labels
        raise UsageError(f"The name of a CronWorkflow has at most 52 characters; {name!r} has {len(name)}.")
    return CronWorkflow(
        name=name,
        namespace=namespace,
        labels=LABELS,
        schedules=[schedule],
        timezone=timezone,
        concurrency_policy="Forbid",
        starting_deadline_seconds=300,
        successful_jobs_history_limit=3,
        failed_jobs_history_limit=3,
        **_run(arguments, settings or Settings(), cluster),
    )


def rights(
    settings: Settings | None = None, *, namespace: str = "default", jobs_in: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The ServiceAccount of the runs and what it needs: all that Argo's executor does since v3.4, to report a pod's
    outputs; and what finds and captures the jobs of the namespaces `jobs_in` (default: the same).
    """
    name = (settings or Settings()).service_account
    outputs = {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}
    return [
        service_account(name, namespace),
        role(name, namespace, [outputs, token_rule(name)]),
        role_binding(name, namespace, [(name, namespace)]),
        *captures_bindings(name, namespace, jobs_in),
    ]


def _template(settings: Settings) -> dict[str, Any]:
    return {
        "name": NAME,
        "labels": LABELS,
        "entrypoint": PROFILE_NAME,
        "arguments": [
            Parameter(name=each.name, description=each.about)
            if default is None
            else Parameter(name=each.name, description=each.about, value=default)
            for each in PROFILE_INPUTS
            for default in (DEFAULT_KEY if each is KEY else each.default,)
        ],
        "templates": templates(settings),
        "service_account_name": settings.service_account,
        "workflow_metadata": Metadata(labels=LABELS),
        "pod_gc": PodGC(strategy="OnPodSuccess"),  # all results are outputs; pods that failed keep their logs
    }


def _run(arguments: Mapping[str, str], settings: Settings, cluster: bool) -> dict[str, Any]:
    known = {each.name: each.default for each in PROFILE_INPUTS} | {KEY.name: DEFAULT_KEY}
    if unknown := sorted(set(arguments) - set(known)):
        raise UsageError(f"The template takes no {', '.join(unknown)}; it takes {', '.join(known)}.")
    if missing := [name for name, default in known.items() if default is None and not arguments.get(name)]:
        raise UsageError(f"A run needs {', '.join(missing)}.")
    return {
        "workflow_template_ref": WorkflowTemplateRef(name=NAME, cluster_scope=True if cluster else None),
        "arguments": [Parameter(name=name, value=arguments[name]) for name in known if name in arguments],
        "service_account_name": settings.service_account,
    }
